// Asks before changes in another form than the one that is sent are lost.

/** @type {Set<unknown>} */
const edited = new Set();
addEventListener("input", ({ target }) => edited.add(/** @type {HTMLInputElement} */ (target).form));
addEventListener("submit", ({ target }) => edited.delete(target));
addEventListener("beforeunload", (event) => {
  if (edited.size) event.preventDefault();
});
