"""Exceptions for errors that the user can fix, all derived from :class:`TeacherError`.

Each message is one line that says what is wrong and what to do about it. The command line prints the message
without a traceback and exits with :attr:`TeacherError.exit_status`.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LONGEST_REPR = 100


def one_line(value: object) -> str:
    """Return ``str(value)`` on one line, with each run of whitespace replaced by a single space."""
    return " ".join(str(value).split())


def short_repr(value: object) -> str:
    """Return ``repr(value)`` on one line, cut to at most 100 characters."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= _LONGEST_REPR else f"{text[: _LONGEST_REPR - 3]}..."


def describe_exception(error: BaseException) -> str:
    """Return an exception's type and message on one line, such as ``ValueError: bad shape``."""
    name, text = type(error).__name__, one_line(error)
    return f"{name}: {text}" if text else name


def pluralize(number: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 preference`` or ``2,000 preferences``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class Topics(set[str]):
    """Topics of the warnings given so far, so that each is given once."""

    def is_new(self, about: str) -> bool:
        """Add a topic; return True if no warning on it was given before."""
        is_new = about not in self
        self.add(about)
        return is_new


class TeacherError(Exception):
    """Base class of the errors that the command line reports on one line, without a traceback.

    Attributes:
        exit_status: exit status of a command that fails with this error.
        remedy: names and values of settings that fix the error; empty if no setting does.
        command: a ``teach`` command that works, at the end of the message; None if there is none, or if it
            contains placeholders.
    """

    exit_status = 1
    command: str | None = None

    def __init__(self, message: str, remedy: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.remedy: Mapping[str, Any] = remedy or {}


class ConfigError(TeacherError):
    """Raised when a setting is missing or invalid, before anything is started.

    Attributes:
        refused: error messages, keyed by setting name; empty if the error isn't about individual settings.
    """

    exit_status = 2

    def __init__(
        self, message: str, remedy: Mapping[str, Any] | None = None, refused: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, remedy)
        self.refused: Mapping[str, str] = refused or {}


def join_errors(errors: Sequence[TeacherError]) -> TeacherError:
    """Combine errors into one with each message once and all remedies; a single error is returned as is."""
    if len(errors) == 1:
        return errors[0]
    remedy = {name: value for error in errors for name, value in error.remedy.items()}
    said = "; ".join(dict.fromkeys(map(str, errors)))
    is_of_environment = all(isinstance(error, EnvironmentUnsuitableError) for error in errors)
    return (EnvironmentUnsuitableError if is_of_environment else ConfigError)(said, remedy)


@contextlib.contextmanager
def collecting(problems: list[TeacherError]) -> Iterator[None]:
    """Catch a :class:`TeacherError` raised in the ``with`` block and append it to ``problems``."""
    try:
        yield
    except TeacherError as error:
        problems.append(error)


class UndecidedError(ConfigError):
    """Raised when a scripted teacher skips so many pairs in a row that training can't continue."""


class EnvironmentUnsuitableError(TeacherError):
    """Raised when an environment is unknown or unsupported, or its episodes can't be used for the run."""

    exit_status = 2


class ReplayMismatchError(TeacherError):
    """Raised when a replayed episode differs from the recorded one.

    Either the environment isn't deterministic, or the episode was recorded with different library versions
    or on a different machine.
    """


class BehaviorError(TeacherError):
    """Raised when a user's goal function or judge fails or returns an invalid value."""


class RenderError(TeacherError):
    """Raised when a clip can't be rendered or encoded."""


class StorageError(TeacherError):
    """Raised when the clip store or an output file can't be read or written."""


class SiteUnreachableError(TeacherError):
    """Raised when the labeling site doesn't respond or is temporarily unavailable; a retry may help."""


class SiteRefusedError(TeacherError):
    """Raised when the labeling site refuses a request, and a retry won't help.

    Attributes:
        by_site: False if the response isn't in the site's format. A proxy may send such a response while the
            site is away.
    """

    def __init__(self, message: str, status: int, *, by_site: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.by_site = by_site


class BackgroundError(TeacherError):
    """Raised after the background thread that collects labels and fits the predictor has failed."""


class DataError(TeacherError):
    """Raised when a data file is missing, is damaged, or doesn't belong to the run or environment."""


class ForgottenError(DataError):
    """Raised when the labeling site has lost decisions that the run already read from it."""
