// Copying links: the buttons are there only where the browser allows it.

if (navigator.clipboard) {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const input = document.getElementById(button.dataset.copy);
      input.select();
      await navigator.clipboard.writeText(input.value);
      button.textContent = button.dataset.copied;
    });
  }
}
