// Elements of a page that its script cannot do without: it fails here where one is missing or of another kind.

/**
 * The element of an id.
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
 * The first element within another one, or within the page, that a selector finds.
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
 * Every element of the page that a selector finds.
 * @param {string} selector
 * @returns {NodeListOf<HTMLElement>}
 */
export function all(selector) {
  return document.querySelectorAll(selector);
}

/** A copy of the element in a template. @param {string} id the template's */
export function copied(id) {
  return checked(element(id, HTMLTemplateElement).content.firstElementChild?.cloneNode(true), HTMLElement, `#${id}`);
}

/** What the site has written into the page as JSON. @param {string} id */
export function written(id) {
  return JSON.parse(element(id).textContent ?? "");
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
