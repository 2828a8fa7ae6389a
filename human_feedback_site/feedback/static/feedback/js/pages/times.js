// Shows times in the reader's time zone and language. Without JavaScript, they are in UTC.

const format = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });

for (const each of document.querySelectorAll("time")) {
  if (each.dateTime) each.textContent = format.format(new Date(each.dateTime));
}
