"""The ``--agent.*`` options, generated from the algorithms' configuration classes."""

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

from agents.defaults import CONFIGS
from teacher.settings.arguments import as_whole_number

_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_FIRST_SENTENCE = re.compile(r"\.\s(?=[A-Z])")
_LEFT_OUT = ("normalize_rewards", "anneal_timesteps")
"""Hyperparameters that have no option, because other settings of the run determine them."""


def add_agent_options(parser: argparse._ActionsContainer) -> None:
    """Add an ``--agent.NAME`` option for each hyperparameter; its default depends on the task."""
    for name, (kind, help_text) in agent_fields().items():
        convert, metavar = _converter(kind)
        parser.add_argument(f"--agent.{name}", type=convert, metavar=metavar, help=help_text)


def agent_fields() -> dict[str, tuple[Any, str]]:
    """Return each hyperparameter's type and help text, keyed by name.

    If only some algorithms have a hyperparameter, its help text lists those algorithms.
    """
    fields: dict[str, tuple[Any, str]] = {}
    documented = {name: dict(_documented(config)) for name, config in CONFIGS.items()}
    hints = {name: typing.get_type_hints(config) for name, config in CONFIGS.items()}
    for config in CONFIGS.values():
        for field in dataclasses.fields(config):
            having = [name for name in CONFIGS if field.name in documented[name]]
            if field.name in fields or field.name in _LEFT_OUT or not having:
                continue
            only = "" if len(having) == len(CONFIGS) else f" ({' and '.join(having)} only)"
            texts = {name: documented[name][field.name] for name in having}
            same = len(set(texts.values())) == 1
            text = texts[having[0]] if same else "; ".join(f"{name}: {text}" for name, text in texts.items())
            kind, *others = (hints[name][field.name] for name in having)
            for other in others:
                kind = kind if other == kind else kind | other
            fields[field.name] = kind, f"{text}{only}".replace("%", "%%")
    return fields


def _documented(config: type) -> Iterator[tuple[str, str]]:
    """Yield ``(name, first sentence of its documentation)`` for each attribute of a class and its bases."""
    for each in reversed(config.__mro__[:-1]):
        for name, text in _ATTRIBUTE.findall(inspect.cleandoc(each.__doc__ or "")):
            yield name, _FIRST_SENTENCE.split(" ".join(text.split()))[0].rstrip(".").replace("``", "")


def _converter(kind: Any) -> tuple[Callable[[str], Any], str]:
    """Return argparse's ``type`` function and ``metavar`` for an option with values of type ``kind``."""
    if get_args(kind) == (float, str):
        return _number_or_text, "FLOAT|auto"
    if get_origin(kind) in (types.UnionType, typing.Union):
        inner, *_ = (each for each in get_args(kind) if each is not types.NoneType)
        read, metavar = _converter(inner)
        return (lambda text: None if text.lower() == "none" else read(text)), metavar
    if get_origin(kind) is tuple:
        return _whole_numbers, "INT,INT"
    if get_origin(kind) is Literal:
        return _one_of(get_args(kind)), "|".join(get_args(kind))
    if kind is bool:
        return (lambda text: _one_of(("true", "false"))(text.lower()) == "true"), "true|false"
    numbers: dict[Any, tuple[Callable[[str], Any], str]] = {
        int: (as_whole_number, "INT"),
        float: (float, "FLOAT"),
    }
    return numbers.get(kind, (str, "MODULE:FUNCTION"))


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(as_whole_number(part) for part in text.split(","))


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"must be {' or '.join(choices)}, not {text!r}")
        return text

    return read
