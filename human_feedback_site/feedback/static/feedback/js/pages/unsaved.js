// Beside the labeling page: answers that this browser still keeps for the account are sent from here, too. The page is
// loaded anew when the site has them all, for it does not show them yet.

import { Api } from "../labeling/api.js";
import { Outbox } from "../labeling/outbox.js";

const page = JSON.parse(document.getElementById("unsaved").textContent);
const [note, refused] = ["unsaved-note", "refused"].map((id) => document.getElementById(id));
const outbox = new Outbox(new Api(page));
let sent = 0;

function show() {
  const { length } = outbox.entries;
  note.hidden = length === 0;
  note.querySelector("b").textContent = String(length);
  if (sent && !length && refused.hidden) location.reload();
}

outbox.addEventListener("saved", () => {
  sent += 1;
  show();
});
outbox.addEventListener("refused", ({ detail }) => {
  refused.textContent = `${page.refused} ${detail.error.message}`;
  refused.hidden = false;
});
outbox.addEventListener("change", show);
show();
outbox.flush();
