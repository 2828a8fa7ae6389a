"""What the services refuse; the API turns each into a problem response."""

from collections.abc import Mapping, Sequence


class FeedbackError(Exception):
    """Base of the refusals: one line that says what is wrong."""


class NotFoundError(FeedbackError):
    """The object does not exist, or belongs to somebody else."""


class ConflictError(FeedbackError):
    """The request contradicts what is already recorded."""


class WithdrawnError(FeedbackError):
    """The invitation was withdrawn."""


class ExpiredError(FeedbackError):
    """The invitation's time is over."""


class UsedUpError(FeedbackError):
    """The invitation has let in as many as it may."""


class ClosedError(FeedbackError):
    """The experiment is finished."""


class TrainerAtWorkError(FeedbackError):
    """The experiment's trainer was heard from a moment ago."""


class NoConsentError(FeedbackError):
    """The labeler has not agreed to the experiment's consent text."""


class UnknownParticipantError(FeedbackError):
    """The platform's numbers are missing or malformed."""


class OtherStudyError(FeedbackError):
    """The participant comes from another study than the invitation is for."""


class TooManyAttemptsError(FeedbackError):
    """Too many passwords or tokens were tried; after ``wait`` seconds there may be more."""

    def __init__(self, wait: int) -> None:
        self.wait = wait
        self.minutes = -(-wait // 60)
        super().__init__(f"Too many attempts; try again in {self.minutes} min.")


class UnreadableClipsError(FeedbackError):
    """Clips are not under the experiment's prefix, or the site cannot read them."""

    def __init__(self, clips: Mapping[str, str]) -> None:
        """``clips`` says what is wrong, by JSON pointer into the request."""
        super().__init__(f"{len(clips)} clip(s) cannot be read; nothing was registered.")
        self.clips = clips


class MediaStoreError(FeedbackError):
    """The media store cannot be reached, or refuses; trying again later may help."""


class ClipsElsewhereError(MediaStoreError):
    """The media store holds none of an experiment's clips: they are in another one, or gone."""


class NotInstalledError(FeedbackError):
    """The site was installed without what this needs."""


class BadFileError(FeedbackError):
    """Files cannot be imported: nothing was."""

    def __init__(self, problems: Sequence[str]) -> None:
        """``problems`` say what is wrong, each with file and line."""
        super().__init__("\n".join(problems))
        self.problems = problems


class BackupError(FeedbackError):
    """A backup cannot be made or restored; nothing that looks whole is left of it."""
