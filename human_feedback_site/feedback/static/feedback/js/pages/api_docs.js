// The page of the API is dark where the reader's system is; Swagger has the colors, and a class that turns them on.

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
