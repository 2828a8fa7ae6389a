// Shows times in the reader's time zone and language. Without JavaScript, they are in UTC.

const format = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });

/** Rewrite the times in a page or a new version of it. @param {ParentNode} page */
export function showLocalTimes(page) {
  for (const each of page.querySelectorAll("time")) {
    if (each.dateTime) each.textContent = format.format(new Date(each.dateTime));
  }
}

showLocalTimes(document);
