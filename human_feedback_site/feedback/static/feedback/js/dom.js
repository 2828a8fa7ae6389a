// Helpers that find required elements of a page, and throw if an element is missing or has the wrong type; and helpers
// that fill in texts.

/**
 * Return the element with an id, or throw if it is missing or not of the given class.
 * @template {HTMLElement} [T=HTMLElement]
 * @overload
 * @param {string} id
 * @param {new () => T} [kind]
 * @returns {T}
 */
/**
 * @param {string} id
 * @param {new () => HTMLElement} [kind]
 */
export function element(id, kind = HTMLElement) {
  return checked(document.getElementById(id), kind, `#${id}`);
}

/**
 * Return the first element inside `whole` that matches a selector, or throw.
 * @template {HTMLElement} [T=HTMLElement]
 * @overload
 * @param {ParentNode} whole
 * @param {string} selector
 * @param {new () => T} [kind]
 * @returns {T}
 */
/**
 * @param {ParentNode} whole
 * @param {string} selector
 * @param {new () => HTMLElement} [kind]
 */
export function part(whole, selector, kind = HTMLElement) {
  return checked(whole.querySelector(selector), kind, selector);
}

/**
 * Return all elements of the page that match a selector.
 * @param {string} selector
 * @returns {NodeListOf<HTMLElement>}
 */
export function all(selector) {
  return document.querySelectorAll(selector);
}

/** Return a copy of a template's first element. @param {string} id the template's ID */
export function copied(id) {
  return checked(element(id, HTMLTemplateElement).content.firstElementChild?.cloneNode(true), HTMLElement, `#${id}`);
}

/** Return the JSON data embedded in the page under an ID. @param {string} id */
export function written(id) {
  return JSON.parse(element(id).textContent ?? "");
}

/**
 * Replace each `{name}` in a text by its value.
 * @param {string} text
 * @param {Record<string, unknown>} values
 */
export function filled(text, values) {
  return text.replace(/{(\w+)}/g, (_, name) => String(values[name]));
}

/**
 * Text for one and for several of something.
 * @typedef {{ one: string, other: string }} Counted
 */

/** Return a number in the page's language. @param {number} number */
export function localized(number) {
  return number.toLocaleString(document.documentElement.lang);
}

/** Return the text for a number, which replaces `{count}`. @param {Counted} texts @param {number} count */
export function counted({ one, other }, count) {
  return (count === 1 ? one : other).replace("{count}", localized(count));
}

/**
 * @template {HTMLElement} T
 * @param {Node | null | undefined} found
 * @param {new () => T} kind
 * @param {string} name
 */
function checked(found, kind, name) {
  if (!(found instanceof kind)) throw new TypeError(`no ${kind.name} ${name}`);
  return found;
}
