"""Serializers for trainers' and researchers' requests and responses."""

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
    """Request to register a training run as an experiment, or to resume that experiment."""

    run_id = serializers.UUIDField(
        help_text="Chosen by the run; only a request with the same ID can resume the experiment."
    )
    env_id = serializers.CharField(max_length=200)
    prompt = serializers.CharField(
        max_length=MAX_PROMPT,
        help_text="The instruction labelers see. A prompt edited on the site is kept until the run changes "
        "the prompt it sends.",
    )
    n_labels = count(
        allow_null=True, default=None, help_text="Total number of labels the run asks for; null: no limit."
    )
    pretrain_labels = count(
        allow_null=True,
        default=None,
        help_text="Number of answers needed before training starts; null: training does not wait.",
    )
    fps = serializers.IntegerField(min_value=1, max_value=1000)
    has_true_reward = serializers.BooleanField()
    gold_rate = FiniteFloatField(
        min_value=0.0,
        max_value=1.0,
        required=False,
        help_text="Fraction of comparisons shown to labelers that are attention checks with a known answer. "
        "Used only when the experiment is created; afterwards, change it on the site.",
    )
    state = serializers.ChoiceField(
        [Experiment.State.RUNNING.value, Experiment.State.FINISHED.value],
        required=False,
        help_text="If absent, the state is unchanged.",
    )
    invite = labeler_name(default="you")


class ExperimentSerializer(serializers.Serializer[Any]):
    """An experiment, with links to its pages."""

    name = serializers.CharField()
    run_id = serializers.UUIDField()
    state = serializers.ChoiceField(Experiment.State.choices)
    prompt = serializers.CharField(help_text="The instruction labelers currently see.")
    last_seq = serializers.IntegerField(help_text="`seq` of the newest decision; 0 if there is none.")
    page_url = serializers.URLField(help_text="The experiment's page, for signed-in researchers.")
    label_url = serializers.URLField(help_text="The labeling page, for signed-in labelers.")
    invite_url = serializers.URLField(
        help_text="Link that signs the labeler in and opens the labeling page. Keep it secret."
    )
    watch_url = serializers.URLField(
        help_text="Link that lets any browser watch, pause and finish the experiment, as long as the API "
        "token works. Keep it secret."
    )


class InviteRequestSerializer(serializers.Serializer[Any]):
    """Request to invite a labeler."""

    labeler = labeler_name()


class InviteSerializer(serializers.Serializer[Any]):
    """An invitation link."""

    invite_url = serializers.URLField(
        help_text="Link that signs the labeler in and opens the labeling page. Keep it secret."
    )


class ClipRequestSerializer(serializers.Serializer[Any]):
    """A clip that has been uploaded to the media store."""

    key = serializers.CharField(max_length=300, help_text="`<experiment>/<comparison uuid>/first.mp4`")
    true_return = FiniteFloatField(
        allow_null=True,
        default=None,
        help_text="Return of the segment under the environment's own reward; never shown to labelers.",
    )


class NewComparisonSerializer(serializers.Serializer[Any]):
    """A comparison to register."""

    uuid = serializers.UUIDField()
    phase = serializers.ChoiceField(Comparison.Phase.choices)
    step = steps()
    priority = serializers.IntegerField(
        min_value=-1000, max_value=1000, help_text="Comparisons with a higher priority are shown first."
    )
    first = ClipRequestSerializer()
    second = ClipRequestSerializer()
    gold = serializers.ChoiceField(
        KNOWN_ANSWERS,
        allow_null=True,
        default=None,
        help_text="The known answer, which makes the comparison an attention check and keeps it out of the "
        "decision feed; null for an ordinary comparison.",
    )


class ComparisonsRequestSerializer(serializers.Serializer[Any]):
    """Comparisons to register; their clips must already be uploaded."""

    comparisons = serializers.ListField(child=NewComparisonSerializer(), min_length=1, max_length=MAX_BATCH)

    def validate_comparisons(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Reject duplicate UUIDs."""
        if len({item["uuid"] for item in value}) < len(value):
            raise serializers.ValidationError("Each comparison must have a different uuid.")
        return value


class RegisteredSerializer(serializers.Serializer[Any]):
    """Counts of newly and previously registered comparisons."""

    registered = serializers.IntegerField()
    existing = serializers.IntegerField()


class PageSerializer(serializers.Serializer[Any]):
    """Query parameters for paging through a list."""

    after = serializers.IntegerField(
        min_value=0,
        max_value=BIGGEST,
        default=0,
        help_text="Cursor: the last `seq` or `id` you received; 0 for the start.",
    )
    limit = serializers.IntegerField(min_value=1, max_value=MAX_PAGE, default=MAX_PAGE)


class DecisionSerializer(serializers.Serializer[Any]):
    """A new or revised decision on a comparison; it replaces any earlier one."""

    seq = serializers.IntegerField()
    comparison = serializers.UUIDField(source="comparison.uuid")
    decision = serializers.ChoiceField(
        Outcome.choices, allow_null=True, help_text="null: the earlier decision was withdrawn."
    )
    probability = serializers.FloatField(
        allow_null=True,
        help_text="Probability that the first clip is preferred; null if `decision` is `cant_tell` or null.",
    )
    n_labels = serializers.IntegerField()
    prompt_version = serializers.IntegerField(
        allow_null=True, help_text="Newest prompt version among the counted labels."
    )


class DecisionsSerializer(serializers.Serializer[Any]):
    """Decisions after a cursor.

    The next cursor is the `seq` of the last item. If it is below `last_seq`, there are more items.
    """

    state = serializers.ChoiceField(Experiment.State.choices)
    last_seq = serializers.IntegerField(help_text="`seq` of the newest decision.")
    items = DecisionSerializer(many=True)
    active_labelers = serializers.IntegerField(
        help_text="Number of labelers who hold a lease or answered in the last two minutes."
    )
    open = serializers.IntegerField(help_text="Number of comparisons that need more labels.")
    open_training = serializers.IntegerField(
        help_text="Number of `open` comparisons requested during training, not pretraining."
    )


class CancelRequestSerializer(serializers.Serializer[Any]):
    """Comparisons to cancel, by UUID."""

    comparisons = serializers.ListField(child=serializers.UUIDField(), max_length=MAX_PAGE)


class CancelledSerializer(serializers.Serializer[Any]):
    """Number of comparisons that were canceled; comparisons that already had a label were not."""

    cancelled = serializers.IntegerField()


class PointSerializer(serializers.Serializer[Any]):
    """Learning-curve values at one step."""

    step = steps()
    values = serializers.DictField(child=FiniteFloatField(), allow_empty=False)

    def validate_values(self, value: dict[str, float]) -> dict[str, float]:
        """Reject names that are too long or contain characters that ``_TAG`` doesn't allow."""
        for tag in value:
            _TAG(tag)
        return value


class PointsRequestSerializer(serializers.Serializer[Any]):
    """Learning-curve points, and the number of answers that training is waiting for."""

    points = serializers.ListField(child=PointSerializer(), max_length=MAX_POINTS)
    waiting_for = count(
        allow_null=True,
        required=False,
        help_text="Number of answers training is waiting for; null: it is not waiting; absent: unchanged.",
    )
    stopped = serializers.BooleanField(
        default=False,
        help_text="True: the run is saved and its trainer ends, until its next request. Labeling continues.",
    )


class StoredSerializer(serializers.Serializer[Any]):
    """Number of values that were stored."""

    stored = serializers.IntegerField()


class ClipSerializer(serializers.Serializer[Any]):
    """A clip with its true return, for researchers."""

    url = serializers.CharField()
    true_return = serializers.FloatField(allow_null=True)


class ComparisonSerializer(serializers.Serializer[Any]):
    """A comparison with true returns and its decision, for researchers."""

    id = serializers.IntegerField(help_text="Cursor, for use as the `after` parameter.")
    uuid = serializers.UUIDField()
    phase = serializers.ChoiceField(Comparison.Phase.choices)
    step = serializers.IntegerField()
    priority = serializers.IntegerField()
    status = serializers.ChoiceField(Comparison.Status.choices)
    first = ClipSerializer()
    second = ClipSerializer()
    gold = serializers.ChoiceField(
        KNOWN_ANSWERS, allow_null=True, help_text="The known answer if this is an attention check, else null."
    )
    decision = serializers.ChoiceField(Outcome.choices, allow_null=True)
    probability = serializers.FloatField(allow_null=True)
    n_labels = serializers.IntegerField()


class ComparisonsSerializer(serializers.Serializer[Any]):
    """Comparisons in order of registration."""

    items = ComparisonSerializer(many=True)


class SideReturnSerializer(serializers.Serializer[Any]):
    """True return of the clip on one side of the screen."""

    true_return = serializers.FloatField(allow_null=True)


class LeaseDetailSerializer(serializers.Serializer[Any]):
    """A lease with the true returns of its left and right clips, for scripted labelers."""

    uuid = serializers.UUIDField()
    comparison = serializers.UUIDField()
    left = SideReturnSerializer()
    right = SideReturnSerializer()


class EpisodeRequestSerializer(serializers.Serializer[Any]):
    """A whole-episode video that has been uploaded to the media store."""

    step = steps()
    key = serializers.CharField(max_length=300, help_text="`<experiment>/episodes/<step>.mp4`")
