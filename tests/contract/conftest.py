"""The exchanges both sides must satisfy: one story, told by the JSON files of this folder in their order.

``<*>`` stands for anything, ``<some name>`` for anything that then stays the same through the story.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_NAMED = re.compile(r"<[^*>]+>")


@dataclass(frozen=True)
class Exchange:
    """One request and its response; ``who`` asks: trainer, labeler, or a stranger with a wrong token."""

    name: str
    who: str
    method: str
    path: str
    body: Any
    status: int
    answer: Any


def _read(path: Path) -> Exchange:
    data = json.loads(path.read_text())
    request, response = data["request"], data["response"]
    return Exchange(
        path.stem,
        data["as"],
        request["method"],
        request["path"],
        request.get("body"),
        response["status"],
        response["body"],
    )


@pytest.fixture(scope="session")
def story() -> list[Exchange]:
    return [_read(path) for path in sorted(Path(__file__).parent.glob("*.json"))]


class Names:
    """Keep the values of the ``<names>`` of the story."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def fill(self, value: Any) -> Any:
        """``value`` with every name replaced that has been met."""
        text = json.dumps(value)
        return json.loads(_NAMED.sub(lambda match: self._values.get(match[0], match[0]), text))

    def matches(self, expected: Any, actual: Any) -> bool:
        """Return whether ``actual`` is as expected, learning names on the way."""
        if expected == "<*>":
            return True
        if isinstance(expected, str) and _NAMED.fullmatch(expected):
            return bool(actual) and self._values.setdefault(expected, actual) == actual
        if isinstance(expected, dict) and isinstance(actual, dict):
            return expected.keys() == actual.keys() and all(
                self.matches(value, actual[key]) for key, value in expected.items()
            )
        if isinstance(expected, list) and isinstance(actual, list):
            return len(expected) == len(actual) and all(map(self.matches, expected, actual))
        return type(expected) is type(actual) and bool(expected == actual)


@pytest.fixture
def names() -> Names:
    return Names()
