"""Kinds of questions: how many clips are shown, which answers there are, and what they mean."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from human_feedback_site.feedback.kinds.base import CANT_TELL, ITEMS, Kind, on_screen

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
KINDS: Mapping[str, Kind] = {kind.name: kind() for kind in sorted(Kind.all, key=lambda kind: kind.order)}
PAIR = KINDS["pair"]

__all__ = [
    "CANT_TELL",
    "ITEMS",
    "KINDS",
    "PAIR",
    "Kind",
    "answers_of_all",
    "by_kind",
    "choices_of_all",
    "on_screen",
    "stored_as",
]


def answers_of_all() -> list[str]:
    """Return the answers of all kinds, without duplicates."""
    return list(dict.fromkeys(answer for kind in KINDS.values() for answer in kind.answers))


def choices_of_all() -> list[str]:
    """Return the choices of all kinds, without duplicates."""
    return list(dict.fromkeys(choice for kind in KINDS.values() for choice in kind.choices))


def by_kind(stored: Any) -> Mapping[str, Any]:
    """Return stored estimates by kind; while there are only pairs, their estimate is stored by itself."""
    return stored if isinstance(stored, dict) else {PAIR.name: stored} if stored else {}


def stored_as(estimates: Mapping[str, Any]) -> Any:
    """Return estimates by kind as the database stores them; the inverse of :func:`by_kind`."""
    return estimates.get(PAIR.name) if estimates.keys() <= {PAIR.name} else dict(estimates)
