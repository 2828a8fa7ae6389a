// Sends answers that this browser still keeps for the account from other pages than the labeling page. The page reloads
// once the site has all of them, so that it shows them.

import { element, part, written } from "../dom.js";
import { Api } from "../labeling/api.js";
import { Outbox } from "../labeling/outbox.js";

const page = written("unsaved");
const note = element("unsaved-note");
const refused = element("refused");
const outbox = new Outbox(new Api(page));
let sent = 0;

function show() {
  const { length } = outbox.entries;
  note.hidden = length === 0;
  part(note, "b").textContent = String(length);
  if (sent && !length && refused.hidden) location.reload();
}

outbox.on("saved", () => {
  sent += 1;
  show();
});
outbox.on("refused", (_, error) => {
  refused.textContent = `${page.refused} ${error.message}`;
  refused.hidden = false;
});
outbox.on("change", show);
show();
outbox.flush();
