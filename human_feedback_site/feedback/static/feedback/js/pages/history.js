// Keys of the history page: Escape, and the labeler's key that opens the page, lead back to the clips.

import { element, written } from "../dom.js";
import { isShortcut } from "../labeling/keys.js";

const { account } = written("unsaved");

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  if (event.key === "Escape" || isShortcut("history", event, account)) element("back").click();
});
