// Opens the collapsed section of the admin's sidebar while its list is filtered, so that matches inside are visible.

const filter = document.getElementById("nav-filter");
const fold = document.querySelector("#nav-sidebar .fold");

if (filter instanceof HTMLInputElement && fold instanceof HTMLDetailsElement) {
  const unfolded = fold.open;
  const unfold = () => {
    fold.open = unfolded || filter.value !== "";
  };
  filter.addEventListener("input", unfold);
  setTimeout(unfold); // Django's own script restores the last filter text
}
