"""Validation of settings.

Dataclass fields are annotated with constraints (:class:`Fits`) that :func:`check_fields` checks.
"""

import dataclasses
import json
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from teacher.errors import ConfigError, short_repr

Problem = tuple[str, str]
"""Problem with one field: its name, and the error message."""


@dataclass(frozen=True)
class Fits:
    """Constraint on a field's value. It is not applied to None, which is valid if the type allows it."""

    expectation: str
    holds: Callable[[Any], bool]


def at_most(limit: str) -> Fits:
    """Return the constraint that a value is at most ``limit``.

    ``limit`` is a numeric string, such as ``"1e6"``; error messages quote it as written.
    """
    return Fits(f"{limit} or less", lambda value: value <= float(limit))


COUNT = Fits("1 or more", lambda value: value >= 1)
MILLION, BILLION = at_most("1e6"), at_most("1e9")
"""Upper limits of epochs (a million), and of steps and labels (a billion), to catch typos."""
POSITIVE = Fits("more than 0", lambda value: 0 < value < math.inf)
NOT_NEGATIVE = Fits("0 or more", lambda value: 0 <= value < math.inf)
SHARE = Fits("0 to 1", lambda value: 0 <= value <= 1)
SHARE_OF_LESS = Fits("0 or more and less than 1", lambda value: 0 <= value < 1)
SHARE_OF_MORE = Fits("more than 0 and at most 1", lambda value: 0 < value <= 1)
SEED = Fits("0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
"""Constraint of seeds: the range that NumPy, PyTorch and Gymnasium all accept."""


def refuse(settings: object, problems: Iterable[Problem], prefix: str = "--") -> None:
    """Raise one :class:`ConfigError` that lists all problems, if there are any.

    Args:
        settings: object whose invalid attributes are quoted in the message.
        prefix: text before each attribute's name, such as ``--``.
    """
    refused: dict[str, str] = {}
    said: list[str] = []
    for name, expectation in problems:
        said.append(f"{prefix}{name}: {expectation}; got {short_repr(attrgetter(name)(settings))}")
        refused[f"{prefix}{name}"] = "; ".join(filter(None, (refused.get(f"{prefix}{name}"), said[-1])))
    if said:
        raise ConfigError("; ".join(said), refused=refused)


def named_values(text: str | None) -> dict[str, Any]:
    """Parse comma-separated ``name=value`` pairs; values that are not JSON are kept as strings.

    For values with commas, a JSON object such as ``{"name": value}`` is also accepted.
    """
    text = (text or "").strip()
    if text.startswith("{"):
        return dict(json.loads(text))
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not name.strip().isidentifier() or not equals for name, equals, _ in pairs):
        raise ValueError(f"expected name=value pairs separated by commas, got {text!r}")
    return {name.strip(): _json_or_text(value.strip()) for name, _, value in pairs}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def are_named_values(text: str) -> bool:
    """Return True if :func:`named_values` can parse ``text`` and the result is not empty."""
    try:
        return bool(named_values(text))
    except (ValueError, TypeError, RecursionError):
        return False


def check_fields(settings: object, prefix: str = "--") -> None:
    """Raise :class:`ConfigError` if a field of a dataclass violates its type or constraints.

    Numbers are converted to the field's type first, so 5e6 and NumPy integers are valid integers.
    """
    hints = typing.get_type_hints(type(settings))
    values = [(name, kind, getattr(settings, name)) for name, kind in hints.items()]
    wrong = [
        (name, f"expected {_type_words(kind)}") for name, kind, value in values if not _is_of(value, kind)
    ]
    refuse(settings, wrong, prefix)
    for name, kind, value in values:
        object.__setattr__(settings, name, _as_number(value, kind))
    refuse(settings, _out_of_range(settings), prefix)


def whole_number(value: Any, name: str, fits: Fits) -> int:
    """Return ``value`` as a Python integer."""
    if not (_is_of(value, int) and fits.holds(value)):
        raise ConfigError(f"{name}: expected a whole number, {fits.expectation}; got {short_repr(value)}")
    return int(value)


def _type_words(kind: Any) -> str:
    kinds = set(get_args(kind) or (kind,)) - {types.NoneType}
    words = {int: "a whole number such as 1400 or 5e6", float: "a number", str: "text"}
    if len(kinds) == 1 and kinds <= words.keys():
        return words[kinds.pop()]
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _out_of_range(settings: object) -> Iterator[Problem]:
    for name, hint in typing.get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        for fits in _fits(*get_args(hint)):
            if value is not None and not fits.holds(value):
                yield name, f"expected {fits.expectation}"


def _as_number(value: Any, kind: Any) -> Any:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number:
        return value
    return float(value) if float in (kind, *get_args(kind)) else int(value)


def refuse_newer(path: Path, settings: type, names: Iterable[str], prefix: str = "") -> None:
    """Raise :class:`ConfigError` if a setting is unknown, presumably because a newer version saved it.

    ``names`` are the names of the settings in the file at ``path``.
    """
    known = {field.name for field in dataclasses.fields(settings)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"{path} was written by a newer version of RL-Teacher: unknown setting {prefix}{unknown[0]}; "
            "update RL-Teacher"
        )


def _is_of(value: object, kind: Any) -> bool:
    if get_origin(kind) in (types.UnionType, typing.Union):
        return any(_is_of(value, each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return value is not None  # _out_of_range checks the choices
    match value:
        case bool():
            return kind is bool
        case numbers.Integral():  # including NumPy's
            return kind in (int, float)
        case numbers.Real():
            return kind is float or (kind is int and float(value).is_integer())
    return isinstance(value, get_origin(kind) or kind)


def _fits(kind: Any, *annotations: object) -> Iterator[Fits]:
    yield from (each for each in annotations if isinstance(each, Fits))
    for choice in get_args(kind) if get_origin(kind) in (types.UnionType, typing.Union) else (kind,):
        if get_origin(choice) is Literal:
            *most, last = get_args(choice)
            yield Fits(f"{', '.join(most)} or {last}", get_args(choice).__contains__)
