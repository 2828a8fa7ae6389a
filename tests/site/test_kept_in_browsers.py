"""Test that browser storage keeps its names; otherwise stored answers and settings would be lost."""

import re
from pathlib import Path

import human_feedback_site

SCRIPTS = Path(human_feedback_site.__file__).parent / "feedback" / "static" / "feedback" / "js"
KEPT = {f"rl-teacher.{name}" for name in ("character", "keys.", "learned.", "news.", "outbox.", "pace.")}


def test_names_of_stored_browser_data_are_stable() -> None:
    found = {
        name
        for path in SCRIPTS.rglob("*.js")
        for name in re.findall(r"rl-teacher\.[a-z.]+", path.read_text())
    }
    assert found == KEPT
