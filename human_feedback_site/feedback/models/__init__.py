"""Database models of the site.

A comparison is a question of some kind (see ``kinds``) about up to four clips. *Left* and *right* exist only
on a labeler's screen; a lease's ``swapped`` records the clips' order there. Labels, undos and decisions are
append-only: an answer is never edited or removed, although a label's ``status`` may change when a slot
becomes free.
"""

from human_feedback_site.feedback.models.comparisons import Comparison, Example, PredictedRewards
from human_feedback_site.feedback.models.experiments import (
    MAX_PROMPT,
    MAX_RATING_WORDS,
    NAME_PATTERN,
    Episode,
    Experiment,
    PromptVersion,
    SequenceCounter,
    TrainingPoint,
    validate_name,
)
from human_feedback_site.feedback.models.labels import MAX_REASON, Decision, Label, Lease, Undo
from human_feedback_site.feedback.models.names import MAX_LABELER_NAME, validate_labeler_name
from human_feedback_site.feedback.models.people import (
    PLATFORM_ID_PATTERN,
    ApiToken,
    Arrival,
    Attempts,
    ConsentAnswer,
    ConsentText,
    Identity,
    Invite,
    InvitePart,
    Labeler,
    Participation,
)
from human_feedback_site.feedback.models.webhooks import WebhookDelivery, WebhookEndpoint

__all__ = [
    "MAX_LABELER_NAME",
    "MAX_PROMPT",
    "MAX_RATING_WORDS",
    "MAX_REASON",
    "NAME_PATTERN",
    "PLATFORM_ID_PATTERN",
    "ApiToken",
    "Arrival",
    "Attempts",
    "Comparison",
    "ConsentAnswer",
    "ConsentText",
    "Decision",
    "Episode",
    "Example",
    "Experiment",
    "Identity",
    "Invite",
    "InvitePart",
    "Label",
    "Labeler",
    "Lease",
    "Participation",
    "PredictedRewards",
    "PromptVersion",
    "SequenceCounter",
    "TrainingPoint",
    "Undo",
    "WebhookDelivery",
    "WebhookEndpoint",
    "validate_labeler_name",
    "validate_name",
]
