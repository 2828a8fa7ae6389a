// Updates a part of a page with as few changes as possible, so that unchanged elements keep their focus, scroll
// position and playback. Elements are never moved, because moving a video stops it.

// Attributes that the user changes and that a new version of the page must not overwrite.
const READERS_OWN = ["open", "value", "style"];

/** Make `old` equal to `fresh`, whose child nodes are taken over. @param {Node} old @param {Node} fresh */
export function morph(old, fresh) {
  if (old instanceof CharacterData && fresh instanceof CharacterData && old.data !== fresh.data) old.data = fresh.data;
  if (!(old instanceof Element && fresh instanceof Element)) return;
  // Video links differ each time; a video that is already loaded doesn't need the new link.
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
 * Return the node that `next` replaces: a later sibling with the same ID, or without an ID the node `at` itself.
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

/** Remove a node and return its next sibling. @param {ChildNode} node */
function removed(node) {
  const after = node.nextSibling;
  node.remove();
  return after;
}
