"""The JSON of the API: what each endpoint takes and gives."""

import math
from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers

from human_feedback_site.feedback.models import (
    KNOWN_ANSWERS,
    LABELER_NAME_PATTERN,
    Comparison,
    Experiment,
    Label,
    Outcome,
)

MAX_BATCH = 200
MAX_POINTS = 1000
MAX_LEASES = 5
MAX_PAGE = 1000
_BIGGEST = 2**63 - 1  # of a database's integers
_BIGGEST_SMALL = 2**31 - 1
_TAG = RegexValidator(r"\A[\w/.-]{1,100}\Z", "Use 1 to 100 letters, digits, and _ / . -")


class FiniteFloatField(serializers.FloatField):
    """A float that JSON can hold: ``1e999`` is read as infinity and would not come back."""

    def to_internal_value(self, data: Any) -> float:
        """Return the number; refuses infinity and NaN."""
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("invalid")
        return value


def _count(**options: Any) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, max_value=_BIGGEST_SMALL, **options)


def _labeler_name(**options: Any) -> serializers.RegexField:
    return serializers.RegexField(
        LABELER_NAME_PATTERN, help_text="The name of the labeler that `invite_url` signs in.", **options
    )


def _step() -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=0, max_value=_BIGGEST, help_text="Environment steps made so far."
    )


# Trainers


class ExperimentRequestSerializer(serializers.Serializer[Any]):
    """A run that wants labels."""

    run_id = serializers.UUIDField(help_text="Chosen once by the run: only it can resume the experiment.")
    env_id = serializers.CharField(max_length=200)
    prompt = serializers.CharField(max_length=2000, help_text="The sentence labelers see.")
    n_labels = _count(allow_null=True, default=None, help_text="Labels wanted in all; null: no limit.")
    fps = serializers.IntegerField(min_value=1, max_value=1000)
    has_true_reward = serializers.BooleanField()
    state = serializers.ChoiceField(
        [Experiment.State.RUNNING.value, Experiment.State.FINISHED.value],
        required=False,
        help_text="Absent: unchanged.",
    )
    invite = _labeler_name(default="you")


class ExperimentSerializer(serializers.Serializer[Any]):
    """An experiment, and where to label it."""

    name = serializers.CharField()
    run_id = serializers.UUIDField()
    state = serializers.ChoiceField(Experiment.State.choices)
    prompt = serializers.CharField()
    last_seq = serializers.IntegerField(help_text="Number of the newest decision.")
    label_url = serializers.URLField(help_text="The labeling page, for people who are signed in.")
    invite_url = serializers.URLField(
        help_text="Signs the labeler in and leads to the labeling page. Keep it secret."
    )


class InviteRequestSerializer(serializers.Serializer[Any]):
    """A labeler to invite."""

    labeler = _labeler_name()


class InviteSerializer(serializers.Serializer[Any]):
    """An invitation."""

    invite_url = serializers.URLField(
        help_text="Signs the labeler in and leads to the labeling page. Keep it secret."
    )


class ClipRequestSerializer(serializers.Serializer[Any]):
    """An uploaded clip."""

    key = serializers.CharField(max_length=300, help_text="`<experiment>/<comparison uuid>/first.mp4`")
    true_return = FiniteFloatField(allow_null=True, default=None, help_text="Never shown to labelers.")


class NewComparisonSerializer(serializers.Serializer[Any]):
    """A pair of clips to judge."""

    uuid = serializers.UUIDField()
    phase = serializers.ChoiceField(Comparison.Phase.choices)
    step = _step()
    priority = serializers.IntegerField(min_value=-1000, max_value=1000, help_text="Higher is shown first.")
    first = ClipRequestSerializer()
    second = ClipRequestSerializer()
    gold = serializers.ChoiceField(
        KNOWN_ANSWERS,
        allow_null=True,
        default=None,
        help_text="The answer, where it is known: the pair then finds out who does not look, and is never "
        "in the feed.",
    )


class ComparisonsRequestSerializer(serializers.Serializer[Any]):
    """Comparisons whose clips are uploaded."""

    comparisons = serializers.ListField(child=NewComparisonSerializer(), min_length=1, max_length=MAX_BATCH)

    def validate_comparisons(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Refuse a UUID that comes twice."""
        if len({item["uuid"] for item in value}) < len(value):
            raise serializers.ValidationError("Each comparison needs a uuid of its own.")
        return value


class RegisteredSerializer(serializers.Serializer[Any]):
    """What registering did."""

    registered = serializers.IntegerField()
    existing = serializers.IntegerField()


class PageSerializer(serializers.Serializer[Any]):
    """Query parameters of lists."""

    after = serializers.IntegerField(
        min_value=0, max_value=_BIGGEST, default=0, help_text="The last number you have."
    )
    limit = serializers.IntegerField(min_value=1, max_value=MAX_PAGE, default=MAX_PAGE)


class DecisionSerializer(serializers.Serializer[Any]):
    """A new or revised outcome of a comparison; a later one replaces all earlier ones."""

    seq = serializers.IntegerField()
    comparison = serializers.UUIDField(source="comparison.uuid")
    decision = serializers.ChoiceField(
        Outcome.choices, allow_null=True, help_text="null: nothing stands any more."
    )
    probability = serializers.FloatField(
        allow_null=True, help_text="That the first is preferred; null for `cant_tell` and null."
    )
    n_labels = serializers.IntegerField()


class DecisionsSerializer(serializers.Serializer[Any]):
    """Decisions after a cursor. The next cursor is the last item's `seq`; below `last_seq` there is more."""

    state = serializers.ChoiceField(Experiment.State.choices)
    last_seq = serializers.IntegerField(help_text="Number of the newest decision there is.")
    items = DecisionSerializer(many=True)
    active_labelers = serializers.IntegerField(
        help_text="Who holds a lease or answered in the last two minutes."
    )
    open = serializers.IntegerField(help_text="Comparisons without enough labels.")
    open_training = serializers.IntegerField(help_text="Those of them from the policy in training.")


class CancelRequestSerializer(serializers.Serializer[Any]):
    """Comparisons that need no label any more."""

    comparisons = serializers.ListField(child=serializers.UUIDField(), max_length=MAX_PAGE)


class CancelledSerializer(serializers.Serializer[Any]):
    """What cancelling did; a comparison that has a label stays."""

    cancelled = serializers.IntegerField()


class PointSerializer(serializers.Serializer[Any]):
    """Values of learning curves at one step."""

    step = _step()
    values = serializers.DictField(child=FiniteFloatField(), allow_empty=False)

    def validate_values(self, value: dict[str, float]) -> dict[str, float]:
        """Refuse tags that are too long or odd."""
        for tag in value:
            _TAG(tag)
        return value


class PointsRequestSerializer(serializers.Serializer[Any]):
    """Points of learning curves, and whether training waits."""

    points = serializers.ListField(child=PointSerializer(), max_length=MAX_POINTS)
    waiting_for = _count(
        allow_null=True,
        required=False,
        help_text="Answers training waits for; null: it goes on; absent: unchanged.",
    )


class StoredSerializer(serializers.Serializer[Any]):
    """How many values were stored."""

    stored = serializers.IntegerField()


class ClipSerializer(serializers.Serializer[Any]):
    """A clip as a researcher sees it."""

    url = serializers.CharField()
    true_return = serializers.FloatField(allow_null=True)


class ComparisonSerializer(serializers.Serializer[Any]):
    """A comparison as a researcher sees it."""

    id = serializers.IntegerField(help_text="The cursor of this list.")
    uuid = serializers.UUIDField()
    phase = serializers.ChoiceField(Comparison.Phase.choices)
    step = serializers.IntegerField()
    priority = serializers.IntegerField()
    status = serializers.ChoiceField(Comparison.Status.choices)
    first = ClipSerializer()
    second = ClipSerializer()
    gold = serializers.ChoiceField(KNOWN_ANSWERS, allow_null=True, help_text="The answer, where it is known.")
    decision = serializers.ChoiceField(Outcome.choices, allow_null=True)
    probability = serializers.FloatField(allow_null=True)
    n_labels = serializers.IntegerField()


class ComparisonsSerializer(serializers.Serializer[Any]):
    """Comparisons in the order in which they were registered."""

    items = ComparisonSerializer(many=True)


class SideReturnSerializer(serializers.Serializer[Any]):
    """What a researcher may know of one side of the screen."""

    true_return = serializers.FloatField(allow_null=True)


class LeaseDetailSerializer(serializers.Serializer[Any]):
    """A lease as a researcher sees it: scripted labelers answer by screen side with it."""

    uuid = serializers.UUIDField()
    comparison = serializers.UUIDField()
    left = SideReturnSerializer()
    right = SideReturnSerializer()


class EpisodeRequestSerializer(serializers.Serializer[Any]):
    """An uploaded film of a whole episode."""

    step = _step()
    key = serializers.CharField(max_length=300, help_text="`<experiment>/episodes/<step>.mp4`")


# Labelers


class LeasesRequestSerializer(serializers.Serializer[Any]):
    """What the labeling page holds and wants."""

    count = serializers.IntegerField(min_value=1, max_value=MAX_LEASES, help_text="Pairs to hold in all.")
    held = serializers.ListField(
        child=serializers.UUIDField(),
        max_length=50,
        default=list,
        help_text="Leases on screen or fetched ahead.",
    )
    shown = serializers.UUIDField(allow_null=True, default=None, help_text="The lease on screen.")


class SideSerializer(serializers.Serializer[Any]):
    """A clip on one side of the screen."""

    url = serializers.CharField(
        help_text="Expires; relative to the site where the site serves the clips itself."
    )


class LeaseSerializer(serializers.Serializer[Any]):
    """A pair to judge."""

    uuid = serializers.UUIDField()
    comparison = serializers.UUIDField()
    left = SideSerializer()
    right = SideSerializer()
    expires_in = serializers.IntegerField(help_text="Seconds.")


class LeasesSerializer(serializers.Serializer[Any]):
    """What the labeling page may show."""

    leases = LeaseSerializer(many=True, help_text="New ones only.")
    renewed = serializers.ListField(child=serializers.UUIDField())
    lost = serializers.ListField(
        child=serializers.UUIDField(), help_text="Somebody else has them, or they are not needed."
    )
    state = serializers.ChoiceField(Experiment.State.choices)
    prompt = serializers.CharField()
    fps = serializers.IntegerField()
    answered = serializers.IntegerField(help_text="Standing answers of this labeler in this experiment.")
    waiting_for = serializers.IntegerField(allow_null=True, help_text="Answers that training waits for.")
    notice = serializers.ChoiceField(
        ["warned", "stopped"],
        allow_null=True,
        help_text="`warned`: of late too many answers were careless; `stopped`: no more pairs are given.",
    )


class LabelRequestSerializer(serializers.Serializer[Any]):
    """An answer; sending it again changes nothing."""

    uuid = serializers.UUIDField()
    lease = serializers.UUIDField()
    choice = serializers.ChoiceField(Label.Choice.choices)
    response_ms = _count(allow_null=True, default=None, help_text="From both clips playing to the answer.")
    shown_ms = _count(
        allow_null=True, default=None, help_text="How long both clips played or stood in sight meanwhile."
    )


class LabelSerializer(serializers.Serializer[Any]):
    """A recorded answer."""

    uuid = serializers.UUIDField()
    status = serializers.ChoiceField(
        [Label.Status.COUNTED.value, Label.Status.SURPLUS.value],
        help_text="`surplus`: kept, but enough others were there.",
    )
    answered = serializers.IntegerField()


class UndoRequestSerializer(serializers.Serializer[Any]):
    """The withdrawal of an answer; sending it again changes nothing."""

    uuid = serializers.UUIDField()


class UndoSerializer(serializers.Serializer[Any]):
    """A recorded withdrawal, and the pair to judge again."""

    uuid = serializers.UUIDField()
    lease = LeaseSerializer(allow_null=True)
    answered = serializers.IntegerField()


class ExampleSerializer(serializers.Serializer[Any]):
    """A pair with its answer."""

    left = SideSerializer()
    right = SideSerializer()
    better = serializers.ChoiceField(Label.Choice.choices, help_text="The answer.")
    explanation = serializers.CharField(help_text="Why; may be empty.")
    practice = serializers.BooleanField(help_text="To be asked before the first real pair.")


class ExamplesSerializer(serializers.Serializer[Any]):
    """What explains the instruction."""

    items = ExampleSerializer(many=True)


class EpisodeSerializer(serializers.Serializer[Any]):
    """A film of a whole episode."""

    step = serializers.IntegerField()
    url = serializers.CharField()


class ProgressSerializer(serializers.Serializer[Any]):
    """How far everybody's labeling is, and the newest film of the policy."""

    answered = serializers.IntegerField(help_text="Pairs of the experiment that have an answer.")
    wanted = serializers.IntegerField(allow_null=True, help_text="Labels wanted in all; null: no limit.")
    episode = EpisodeSerializer(allow_null=True)


class ProblemErrorSerializer(serializers.Serializer[Any]):
    """One thing that is wrong."""

    pointer = serializers.CharField(help_text="JSON pointer into the request.")
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """An error (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = serializers.ListField(child=ProblemErrorSerializer(), required=False)  # type: ignore[assignment]
