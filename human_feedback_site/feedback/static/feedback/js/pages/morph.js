// Making one piece of a page like another by the smallest changes: what stays keeps its focus, its place when it is
// scrolled, and goes on playing. Nothing is ever moved, for a video that is moved stops.

// What the reader does to a page, which a new version of it does not know.
const READERS_OWN = ["open", "value", "style"];

/** Make `old` like `fresh`, which is used up. @param {Node} old @param {Node} fresh of the same name */
export function morph(old, fresh) {
  if (old instanceof CharacterData && fresh instanceof CharacterData && old.data !== fresh.data) old.data = fresh.data;
  if (!(old instanceof Element && fresh instanceof Element)) return;
  // Links to films are new each time; one that was fetched already has no need of them.
  if (old instanceof HTMLMediaElement && isFetched(old)) return;
  morphAttributes(old, fresh);
  morphChildren(old, fresh);
}

/** @param {HTMLMediaElement} media */
function isFetched(media) {
  if (media.error) return false;
  return media.readyState > media.HAVE_NOTHING || media.networkState === media.NETWORK_LOADING;
}

/** @param {Element} old @param {Element} fresh */
function morphAttributes(old, fresh) {
  const own = READERS_OWN.filter((name) => old.localName !== "progress" || name !== "value");
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !own.includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !own.includes(name)) old.setAttribute(name, value);
  }
}

/** @param {Element} old @param {Element} fresh */
function morphChildren(old, fresh) {
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const match = matching(at, next);
    if (!match) {
      old.insertBefore(next, at);
      continue;
    }
    while (at && at !== match) at = removed(at);
    at = match.nextSibling;
    morph(match, next);
  }
  while (at) at = removed(at);
}

/**
 * The node that `next` is a new version of: of the same id further on, or without one the very next.
 * @param {Node | null} at
 * @param {Node} next
 */
function matching(at, next) {
  if (!idOf(next)) return at && isLike(at, next) ? at : null;
  for (let node = at; node; node = node.nextSibling) {
    if (isLike(node, next)) return node;
  }
  return null;
}

/** @param {Node} node @param {Node} next */
function isLike(node, next) {
  return node.nodeName === next.nodeName && idOf(node) === idOf(next);
}

/** @param {Node} node */
function idOf(node) {
  return node instanceof Element ? node.id : "";
}

/** Remove a node; return the one after it. @param {ChildNode} node */
function removed(node) {
  const after = node.nextSibling;
  node.remove();
  return after;
}
