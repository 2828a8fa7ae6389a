"""One exception tree: everything the user can put right derives from :class:`TeacherError`.

A message is one line that says what was expected, what came, and what to do. The command line prints it
without a traceback and exits with :attr:`TeacherError.exit_status`.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def one_line(value: object) -> str:
    """Return ``str`` of a value with its line breaks and runs of spaces as single spaces."""
    return " ".join(str(value).split())


def describe_exception(error: BaseException) -> str:
    """Describe an exception of any library as part of a one-line message."""
    name, text = type(error).__name__, one_line(error)
    return f"{name}: {text}" if text else name


def pluralize(number: int, noun: str) -> str:
    """Return a count in words, such as ``1 preference`` or ``2,000 preferences``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class TeacherError(Exception):
    """Base of all errors the command line reports in one line.

    Attributes:
        exit_status: of the program that reports it.
        remedy: settings that mend it, by name; empty where no setting does.
    """

    exit_status = 1

    def __init__(self, message: str, remedy: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.remedy: Mapping[str, Any] = remedy or {}


class ConfigError(TeacherError):
    """A setting is missing or invalid; nothing was started.

    Attributes:
        refused: what is said of which settings, by name; empty where it is of something else.
    """

    exit_status = 2

    def __init__(
        self, message: str, remedy: Mapping[str, Any] | None = None, refused: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, remedy)
        self.refused: Mapping[str, str] = refused or {}


def join_errors(errors: Sequence[TeacherError]) -> TeacherError:
    """Make one error of several, with all they say and all that mends them; of one itself."""
    if len(errors) == 1:
        return errors[0]
    remedy = {name: value for error in errors for name, value in error.remedy.items()}
    said = "; ".join(str(error) for error in errors)
    is_of_environment = all(isinstance(error, EnvironmentUnsuitableError) for error in errors)
    return (EnvironmentUnsuitableError if is_of_environment else ConfigError)(said, remedy)


@contextlib.contextmanager
def collecting(problems: list[TeacherError]) -> Iterator[None]:
    """Go on after an error of one line, and keep it among the others."""
    try:
        yield
    except TeacherError as error:
        problems.append(error)


class UndecidedError(ConfigError):
    """A scripted teacher can tell no pairs apart, whatever it is asked; a run cannot be given another."""


class EnvironmentUnsuitableError(TeacherError):
    """The environment is unknown, unsupported, or its episodes cannot serve the run."""

    exit_status = 2


class ReplayMismatchError(TeacherError):
    """A replayed episode differs from the recorded one: the environment is not deterministic here."""


class BehaviorError(TeacherError):
    """A function of the user's that judges failed, or gave no number or answer; the message names it."""


class RenderError(TeacherError):
    """A clip could not be rendered or encoded."""


class StorageError(TeacherError):
    """The media store cannot be read or written."""


class SiteUnreachableError(TeacherError):
    """The labeling site did not answer; trying again later may help."""


class SiteRefusedError(TeacherError):
    """The labeling site answered with an error that trying again does not mend."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class BackgroundError(TeacherError):
    """Asking or learning beside an environment failed; the message says how."""


class DataError(TeacherError):
    """A ledger, checkpoint or segment file is damaged, or belongs to something else."""


class ForgottenError(DataError):
    """The labeling site does not have any more what this run has read from it."""
