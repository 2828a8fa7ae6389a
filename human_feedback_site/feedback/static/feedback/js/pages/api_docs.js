// Follows the system's dark mode on the API documentation page, using Swagger's own `dark-mode` class.

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
