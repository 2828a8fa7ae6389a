"""What trainers and researchers send and are given."""

from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers

from human_feedback_site.feedback.api.serializers.fields import (
    BIGGEST,
    FiniteFloatField,
    count,
    labeler_name,
    steps,
)
from human_feedback_site.feedback.models import KNOWN_ANSWERS, MAX_PROMPT, Comparison, Experiment, Outcome

MAX_BATCH = 200
MAX_POINTS = 1000
MAX_PAGE = 1000
_TAG = RegexValidator(r"\A[\w/.-]{1,100}\Z", "Use 1 to 100 letters, digits, and _ / . -")


class ExperimentRequestSerializer(serializers.Serializer[Any]):
    """A run that wants labels."""

    run_id = serializers.UUIDField(help_text="Chosen once by the run: only it can resume the experiment.")
    env_id = serializers.CharField(max_length=200)
    prompt = serializers.CharField(
        max_length=MAX_PROMPT,
        help_text="The sentence labelers see. One that was edited on the site stays, until the run has "
        "another than before.",
    )
    n_labels = count(allow_null=True, default=None, help_text="Labels wanted in all; null: no limit.")
    pretrain_labels = count(
        allow_null=True,
        default=None,
        help_text="Answers that are needed before training starts; null: it does not wait for any.",
    )
    fps = serializers.IntegerField(min_value=1, max_value=1000)
    has_true_reward = serializers.BooleanField()
    gold_rate = FiniteFloatField(
        min_value=0.0,
        max_value=1.0,
        required=False,
        help_text="Share of what labelers see whose answer is known. Taken from a new run; later it is "
        "changed on the site.",
    )
    state = serializers.ChoiceField(
        [Experiment.State.RUNNING.value, Experiment.State.FINISHED.value],
        required=False,
        help_text="Absent: unchanged.",
    )
    invite = labeler_name(default="you")


class ExperimentSerializer(serializers.Serializer[Any]):
    """An experiment, and where to label it."""

    name = serializers.CharField()
    run_id = serializers.UUIDField()
    state = serializers.ChoiceField(Experiment.State.choices)
    prompt = serializers.CharField(help_text="The sentence labelers see now.")
    last_seq = serializers.IntegerField(help_text="Number of the newest decision.")
    page_url = serializers.URLField(help_text="The experiment's page, for researchers who are signed in.")
    label_url = serializers.URLField(help_text="The labeling page, for people who are signed in.")
    invite_url = serializers.URLField(
        help_text="Signs the labeler in and leads to the labeling page. Keep it secret."
    )


class InviteRequestSerializer(serializers.Serializer[Any]):
    """A labeler to invite."""

    labeler = labeler_name()


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
    step = steps()
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
        min_value=0, max_value=BIGGEST, default=0, help_text="The last number you have."
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
    prompt_version = serializers.IntegerField(
        allow_null=True, help_text="The newest version of the prompt among the labels that count."
    )


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

    step = steps()
    values = serializers.DictField(child=FiniteFloatField(), allow_empty=False)

    def validate_values(self, value: dict[str, float]) -> dict[str, float]:
        """Refuse tags that are too long or odd."""
        for tag in value:
            _TAG(tag)
        return value


class PointsRequestSerializer(serializers.Serializer[Any]):
    """Points of learning curves, and whether training waits."""

    points = serializers.ListField(child=PointSerializer(), max_length=MAX_POINTS)
    waiting_for = count(
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

    step = steps()
    key = serializers.CharField(max_length=300, help_text="`<experiment>/episodes/<step>.mp4`")
