"""Pages in Chromium: one browser serves all tests of this package that a process runs in a row."""
