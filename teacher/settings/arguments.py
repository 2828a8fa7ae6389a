"""Command-line parsing shared by all commands: options from dataclasses, one-line errors, exit codes."""

import argparse
import dataclasses
import difflib
import re
import sys
import types
import typing
from collections.abc import Callable, Container, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from teacher.errors import TeacherError, one_line

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as in shells."""
DATASET = "preference file from teach export, .npz or .parquet"
PREDICTOR = "predictor file from teach fit, .npz"
"""Help texts that several commands share."""
_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)


class OneLineParser(argparse.ArgumentParser):
    """Argument parser that prints one-line errors without usage text and suggests similar options.

    Each error message starts with the command or module name, taken from ``prog``. Options can't be
    abbreviated, so that ``--token SECRET`` is never read as ``--token-file SECRET``.

    Args:
        all_settings: option that lists all settings, mentioned at the end of errors.
    """

    def __init__(self, *, all_settings: str = "--help", **others: Any) -> None:
        super().__init__(**others, allow_abbrev=False)
        self._all_settings = all_settings
        # argparse's default takes -1e6 for an option, and there is no public way to change it.
        self._negative_number_matcher = _NEGATIVE_NUMBER

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parse a command line. The error for an unknown option suggests a similar one if there is one."""
        given: argparse.Namespace
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._about_unknown(unknown))
        return given

    def _about_unknown(self, words: Sequence[str]) -> str:
        """Return the error message for unknown options. It omits their values, which may be secrets."""
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            return f"unexpected argument {one_line(words[0])!r}"
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        close = difflib.get_close_matches(options[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"unknown option {' '.join(options)}{hint}"

    def error(self, message: str) -> NoReturn:
        """Print a one-line error message, and exit with status 2."""
        self.exit(2, f"{self.name}: {message} ({self.prog} {self._all_settings} lists all settings)\n")

    @property
    def name(self) -> str:
        """Command name for error messages: ``teach fit``, or ``record`` for ``python -m teacher.record``."""
        return self.prog.rpartition("-m ")[2].rpartition(".")[2]


def report_errors(
    parser: OneLineParser, work: Callable[[], int | None], others: tuple[type[Exception], ...] = ()
) -> int:
    """Run a command and return its exit status; if it fails, print a one-line error."""
    try:
        return work() or 0
    except TeacherError as error:
        print(f"{parser.name}: {error}", file=sys.stderr)
        return error.exit_status
    except others as error:
        print(f"{parser.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def add_options(
    parser: argparse._ActionsContainer, settings: type, prefix: str = "", leave_out: Container[str] = ()
) -> None:
    """Add an option ``--prefix.field`` for each field of a dataclass except those in ``leave_out``.

    Each field is ``Annotated`` with its help text and optionally a short flag. Other annotations are ignored.
    """
    hints = typing.get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):
        if field.name not in leave_out:
            _add_option(parser, f"--{prefix}{field.name}", field.default, *get_args(hints[field.name]))


def _add_option(
    parser: argparse._ActionsContainer, name: str, default: object, kind: Any, help_text: str, *others: object
) -> None:
    names = (*(flag for flag in others if isinstance(flag, str)), name)
    if default not in (dataclasses.MISSING, None, False):
        help_text += f" (default: {default})"
    help_text = help_text.replace("%", "%%")
    if kind is bool:
        parser.add_argument(*names, action="store_true", help=help_text)
        return
    if get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(option for option in get_args(kind) if option is not types.NoneType)
    if get_origin(kind) is Literal:
        parser.add_argument(*names, choices=get_args(kind), help=help_text)
    else:
        convert = as_whole_number if kind is int else kind
        parser.add_argument(*names, type=convert, metavar=kind.__name__.upper(), help=help_text)


def as_whole_number(text: str) -> int:
    """Convert an integer option's text to an int: ``5e6`` becomes 5,000,000, and ``1.5`` is an error."""
    try:
        value = float(text)
        if value == int(value):
            return int(text) if text.lstrip("+-").isdigit() else int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number such as 1400 or 5e6, got {text!r}")
