"""Functions that return actions, which bring a page into the state to show on a sheet."""

from typing import Any

from playwright.sync_api import Page

from scripts.sheets.album import Act

JUDGING = "main[data-state=judging]"


def sees(selector: str, *, ms: int = 0) -> Act:
    """Return an action that waits until an element is visible, and ``ms`` milliseconds longer."""

    def act(page: Page) -> None:
        page.wait_for_selector(selector)
        page.wait_for_timeout(ms)

    return act


def presses(*keys: str, before: str = JUDGING, after: str = JUDGING) -> Act:
    """Return an action that waits until a pair can be answered and presses keys.

    Args:
        before: selector to wait for before the keys.
        after: selector to wait for after the keys.
    """

    def act(page: Page) -> None:
        page.wait_for_selector(before, state="attached")
        page.wait_for_timeout(700)
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_selector(after, state="attached")
        page.wait_for_timeout(300)

    return act


def shows(element: str) -> Act:
    """Return an action that shows a hidden element, such as the suggestion to take a break."""

    def act(page: Page) -> None:
        page.wait_for_selector("main[data-state]", state="attached")
        page.wait_for_timeout(1200)
        page.evaluate(f"document.getElementById({element!r}).hidden = false")

    return act


def clicks(name: str, *, role: Any = "button") -> Act:
    """Return an action that clicks a button or link."""
    return lambda page: page.get_by_role(role, name=name).first.click()
