// Copy buttons for invitation links, shown only if the browser allows copying.

import { all, element } from "../dom.js";

if (navigator.clipboard) {
  for (const button of all("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const input = element(button.dataset.copy ?? "", HTMLInputElement);
      input.select();
      await navigator.clipboard.writeText(input.value);
      button.textContent = button.dataset.copied ?? "";
    });
  }
}
