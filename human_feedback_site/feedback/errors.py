"""Exceptions raised by the services; the API turns each into a problem response (RFC 9457)."""

from collections.abc import Mapping, Sequence


class FeedbackError(Exception):
    """Base class of all errors raised by the services; the message is meant for the user."""


class NotFoundError(FeedbackError):
    """The object does not exist or belongs to someone else."""


class ConflictError(FeedbackError):
    """The request conflicts with data that is already stored."""


class WithdrawnError(FeedbackError):
    """The invitation was revoked, or its labeler may no longer label the experiment."""


class ExpiredError(FeedbackError):
    """The invitation has expired."""


class LinkEndedError(FeedbackError):
    """The link that a run or ``teach site`` printed no longer works, or was forged."""


class UsedUpError(FeedbackError):
    """The invitation has reached its usage limit."""


class ClosedError(FeedbackError):
    """The experiment is finished."""


class TrainerAtWorkError(FeedbackError):
    """The experiment's trainer is still running, or was running a moment ago."""


class NoConsentError(FeedbackError):
    """The labeler has not agreed to the experiment's consent text."""


class UnknownParticipantError(FeedbackError):
    """Some IDs that the recruitment platform should send are missing or malformed: ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        super().__init__(f"Missing or malformed: {', '.join(names)}.")


class OtherStudyError(FeedbackError):
    """The participant came from a different study than the one the invitation is for."""


class TooManyAttemptsError(FeedbackError):
    """Too many sign-in attempts or wrong tokens; the next attempt is allowed after ``wait`` seconds."""

    def __init__(self, wait: int) -> None:
        self.wait = wait
        self.minutes = -(-wait // 60)
        super().__init__(f"Too many attempts; try again in {self.minutes} min.")


class UnreadableClipsError(FeedbackError):
    """The site can't read some clips, or their keys are not under the experiment's prefix."""

    def __init__(self, clips: Mapping[str, str]) -> None:
        """Store ``clips``, which maps each clip's JSON pointer in the request to an error message."""
        super().__init__(f"{len(clips)} clip(s) cannot be read; nothing was registered.")
        self.clips = clips


class MediaStoreError(FeedbackError):
    """The media store can't be reached or rejects a request; a retry may succeed later."""


class ClipsElsewhereError(MediaStoreError):
    """The media store has none of the experiment's clips: they are in a different store or were deleted."""


class ProviderError(FeedbackError):
    """The identity provider can't be reached, or its response is invalid."""


class NotInstalledError(FeedbackError):
    """An optional package that the operation needs is not installed."""


class BadFileError(FeedbackError):
    """The files to import have errors, so nothing was imported."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Store ``problems``, a list of error messages that each name the file and line."""
        super().__init__("\n".join(problems))
        self.problems = problems


class BackupError(FeedbackError):
    """A backup can't be made or restored."""


class DeliveryError(FeedbackError):
    """A webhook's URL is invalid or not allowed, or its server did not accept the event."""
