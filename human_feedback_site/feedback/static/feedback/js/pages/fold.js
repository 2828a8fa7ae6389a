// The fold in the admin's sidebar opens while somebody filters its list: what is folded away is found, too.

const filter = document.getElementById("nav-filter");
const fold = document.querySelector("#nav-sidebar .fold");

if (filter instanceof HTMLInputElement && fold instanceof HTMLDetailsElement) {
  const unfolded = fold.open;
  const unfold = () => {
    fold.open = unfolded || filter.value !== "";
  };
  filter.addEventListener("input", unfold);
  setTimeout(unfold); // Django's own script remembers what was filtered last
}
