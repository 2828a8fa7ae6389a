"""Exceptions: every error that the user can fix derives from :class:`TeacherError`.

A message is one line that says what was expected, what was found, and what to do. The command line prints it
without a traceback and exits with :attr:`TeacherError.exit_status`.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def one_line(value: object) -> str:
    """Return a value as a string, with all whitespace runs replaced by single spaces."""
    return " ".join(str(value).split())


def describe_exception(error: BaseException) -> str:
    """Return the type and text of any exception in one line."""
    name, text = type(error).__name__, one_line(error)
    return f"{name}: {text}" if text else name


def pluralize(number: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 preference`` or ``2,000 preferences``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class TeacherError(Exception):
    """Base class of errors that the command line reports in one line.

    Attributes:
        exit_status: exit status of a program that fails with it.
        remedy: settings that fix it, by name; empty if no setting does.
    """

    exit_status = 1

    def __init__(self, message: str, remedy: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.remedy: Mapping[str, Any] = remedy or {}


class ConfigError(TeacherError):
    """A setting is missing or invalid; nothing was started.

    Attributes:
        refused: messages about invalid settings, by name; empty if the error is about something else.
    """

    exit_status = 2

    def __init__(
        self, message: str, remedy: Mapping[str, Any] | None = None, refused: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, remedy)
        self.refused: Mapping[str, str] = refused or {}


def join_errors(errors: Sequence[TeacherError]) -> TeacherError:
    """Return one error with the messages and remedies of several; a single one is returned as is."""
    if len(errors) == 1:
        return errors[0]
    remedy = {name: value for error in errors for name, value in error.remedy.items()}
    said = "; ".join(str(error) for error in errors)
    is_of_environment = all(isinstance(error, EnvironmentUnsuitableError) for error in errors)
    return (EnvironmentUnsuitableError if is_of_environment else ConfigError)(said, remedy)


@contextlib.contextmanager
def collecting(problems: list[TeacherError]) -> Iterator[None]:
    """Append a :class:`TeacherError` of the ``with`` block to ``problems`` instead of raising it."""
    try:
        yield
    except TeacherError as error:
        problems.append(error)


class UndecidedError(ConfigError):
    """A scripted teacher can't tell any pairs apart; a run's teacher cannot be changed."""


class EnvironmentUnsuitableError(TeacherError):
    """The environment is unknown or unsupported, or its episodes are unsuitable for the run."""

    exit_status = 2


class ReplayMismatchError(TeacherError):
    """A replayed episode differs from the recorded one: the environment is not deterministic here."""


class BehaviorError(TeacherError):
    """A user's goal function or judge failed or returned an invalid value; the message names it."""


class RenderError(TeacherError):
    """A clip could not be rendered or encoded."""


class StorageError(TeacherError):
    """The media store cannot be read or written."""


class SiteUnreachableError(TeacherError):
    """The labeling site did not respond; retrying later may help."""


class SiteRefusedError(TeacherError):
    """The labeling site responded with an error that retrying does not fix."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class BackgroundError(TeacherError):
    """Asking or learning in the background failed; the message says why."""


class DataError(TeacherError):
    """A ledger, checkpoint or segment file is damaged, or belongs to something else."""


class ForgottenError(DataError):
    """The labeling site has lost decisions that this run has read from it."""
