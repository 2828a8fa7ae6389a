"""Serializers for the JSON bodies of API requests and responses, and the parser of requests."""

import json
import math
from collections.abc import Mapping
from typing import IO, Any

from django.core.validators import RegexValidator
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from human_feedback_site.feedback.kinds import ITEMS, KINDS, PAIR, answers_of_all, choices_of_all
from human_feedback_site.feedback.models import (
    MAX_PROMPT,
    MAX_RATING_WORDS,
    MAX_REASON,
    Comparison,
    Experiment,
    Label,
    Labeler,
    validate_labeler_name,
)
from human_feedback_site.feedback.models.comparisons import REASON

BIGGEST = 2**63 - 1  # maximum of a database's BIGINT
_BIGGEST_SMALL = 2**31 - 1


class FiniteFloatField(serializers.FloatField):
    """Float field that rejects infinity and NaN, which JSON can't represent.

    Requests can still produce either one: Python parses the JSON number ``1e999`` as infinity, and DRF
    accepts the string ``"NaN"`` as a number.
    """

    def to_internal_value(self, data: Any) -> float:
        """Return the number; raises DRF's ``ValidationError`` for infinity and NaN."""
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("invalid")
        return value


def count(**options: Any) -> serializers.IntegerField:
    """Return a field for a count or a duration in milliseconds: an integer from 0 to 2**31 - 1."""
    return serializers.IntegerField(min_value=0, max_value=_BIGGEST_SMALL, **options)


def labeler_name(**options: Any) -> serializers.CharField:
    """Return a field for a labeler's name."""
    return serializers.CharField(
        validators=[validate_labeler_name],
        help_text="Name of the labeler whom `invite_url` signs in: 1 to 50 letters, digits, and _ - .",
        **options,
    )


def steps() -> serializers.IntegerField:
    """Return a field for a number of environment steps."""
    return serializers.IntegerField(
        min_value=0, max_value=BIGGEST, help_text="Number of environment steps the run had taken by then."
    )


class ProblemErrorSerializer(serializers.Serializer[Any]):
    """An error in one field of the request."""

    pointer = serializers.CharField(help_text="JSON pointer to the field in the request.")
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """An error response (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = serializers.ListField(child=ProblemErrorSerializer(), required=False)  # type: ignore[assignment]


MAX_LEASES = 10


class LeasesRequestSerializer(serializers.Serializer[Any]):
    """The labeling page's request for leases."""

    count = serializers.IntegerField(
        min_value=1, max_value=MAX_LEASES, help_text="Total number of leases the page wants."
    )
    held = serializers.ListField(
        child=serializers.UUIDField(),
        max_length=50,
        default=list,
        help_text="UUIDs of the leases on screen or prefetched.",
    )
    shown = serializers.UUIDField(allow_null=True, default=None, help_text="UUID of the lease on screen.")
    kinds = serializers.ListField(
        child=serializers.CharField(max_length=20),
        max_length=50,
        default=[PAIR.name],
        help_text="Kinds of questions that the page can show; the labeler gets no leases of others.",
    )
    labeler_kind = serializers.ChoiceField(
        Labeler.Kind.choices,
        default=Labeler.Kind.HUMAN,
        help_text="Kind of labeler that asks. A model needs an invitation for a model.",
    )


class SideSerializer(serializers.Serializer[Any]):
    """A clip on one side of the screen."""

    url = serializers.CharField(
        help_text="URL of the clip, which expires; relative if the site serves clips itself."
    )


class LeaseSerializer(serializers.Serializer[Any]):
    """A comparison leased to the labeler, with the clip in each place on the screen."""

    uuid = serializers.UUIDField()
    comparison = serializers.UUIDField()
    kind = serializers.ChoiceField(list(KINDS))
    items = SideSerializer(many=True, help_text="The clips in the order of the screen, row by row.")
    left = SideSerializer(allow_null=True, help_text="The first of two clips; null if there are not two.")
    right = SideSerializer(allow_null=True, help_text="The second of two clips; null if there are not two.")
    expires_in = serializers.IntegerField(help_text="Seconds until the lease expires.")


class LeasesSerializer(serializers.Serializer[Any]):
    """Leases for the labeling page, and the state of the experiment."""

    leases = LeaseSerializer(many=True, help_text="Leases that were not in `held`.")
    renewed = serializers.ListField(child=serializers.UUIDField())
    lost = serializers.ListField(
        child=serializers.UUIDField(),
        help_text="UUIDs of leases in `held` that have ended, for example because the comparison was leased "
        "to another labeler or needs no more labels.",
    )
    state = serializers.ChoiceField(Experiment.State.choices)
    prompt = serializers.CharField()
    fps = serializers.IntegerField()
    answered = serializers.IntegerField(
        help_text="Number of answers the labeler gave for the current invitation, excluding withdrawn ones."
    )
    wanted = serializers.IntegerField(
        allow_null=True, help_text="Number of answers the invitation asks for; null: no limit."
    )
    waiting_for = serializers.IntegerField(
        allow_null=True, help_text="Number of answers training is waiting for; null if it is not waiting."
    )
    notice = serializers.ChoiceField(
        ["warned", "stopped", "done"],
        allow_null=True,
        help_text="`warned`: the labeler failed too many recent attention checks; `stopped`: the labeler "
        "gets no more comparisons; `done`: the labeler has given all answers the invitation asks for.",
    )


class LabelRequestSerializer(serializers.Serializer[Any]):
    """An answer to a leased comparison; submitting it is idempotent."""

    uuid = serializers.UUIDField()
    lease = serializers.UUIDField()
    choice = serializers.ChoiceField(
        choices_of_all(),
        help_text="A choice that the comparison's kind has. Numbers are ratings, or places on the screen.",
    )
    response_ms = count(
        allow_null=True,
        default=None,
        help_text="Milliseconds from when all clips started playing until the answer.",
    )
    shown_ms = count(
        allow_null=True,
        default=None,
        help_text="Milliseconds of `response_ms` during which all clips were visible.",
    )
    reason = serializers.CharField(
        max_length=MAX_REASON,
        allow_blank=True,
        default="",
        help_text="Why the labeler chose this answer, in the labeler's words.",
    )


class LabelSerializer(serializers.Serializer[Any]):
    """A recorded answer."""

    uuid = serializers.UUIDField()
    status = serializers.ChoiceField(
        [Label.Status.COUNTED.value, Label.Status.SURPLUS.value],
        help_text="`surplus`: the comparison already has all its labels; the answer counts if it wants "
        "labels again.",
    )
    answered = serializers.IntegerField()


class UndoRequestSerializer(serializers.Serializer[Any]):
    """Request to withdraw an answer; submitting it is idempotent."""

    uuid = serializers.UUIDField()


class UndoSerializer(serializers.Serializer[Any]):
    """A recorded withdrawal, and the new lease on the comparison (null if none was granted)."""

    uuid = serializers.UUIDField()
    lease = LeaseSerializer(allow_null=True)
    answered = serializers.IntegerField()


class ExampleSerializer(serializers.Serializer[Any]):
    """An example or practice comparison with its answer."""

    kind = serializers.ChoiceField(list(KINDS))
    items = SideSerializer(many=True, help_text="The clips in the order of the screen, row by row.")
    left = SideSerializer(allow_null=True, help_text="The first of two clips; null if there are not two.")
    right = SideSerializer(allow_null=True, help_text="The second of two clips; null if there are not two.")
    better = serializers.ChoiceField(choices_of_all(), help_text="The choice that is known to be right.")
    explanation = serializers.CharField(help_text="Reason for the answer; may be empty.")
    practice = serializers.BooleanField(
        help_text="True: labelers answer this as practice; false: they see it with its answer."
    )


class ExamplesSerializer(serializers.Serializer[Any]):
    """Example and practice comparisons."""

    items = ExampleSerializer(many=True)


class EpisodeSerializer(serializers.Serializer[Any]):
    """Video of a whole episode."""

    step = serializers.IntegerField()
    answered = serializers.IntegerField(
        allow_null=True,
        help_text="Number of comparisons that had an answer when the video was registered; null: unknown.",
    )
    url = serializers.CharField()


class StartSerializer(serializers.Serializer[Any]):
    """Progress toward the number of answers needed to start training."""

    answered = serializers.IntegerField(help_text="Number of answers usable for training.")
    wanted = serializers.IntegerField(help_text="Number of usable answers needed to start training.")


class ProgressSerializer(serializers.Serializer[Any]):
    """All labelers' combined progress, and videos of the policy during training."""

    state = serializers.ChoiceField(Experiment.State.choices)
    answered = serializers.IntegerField(help_text="Number of comparisons that have an answer.")
    wanted = serializers.IntegerField(
        allow_null=True, help_text="Total number of labels the run asks for; null: no limit."
    )
    waiting = serializers.IntegerField(
        help_text="Number of comparisons that wait for an answer by this labeler; 99: that many or more."
    )
    start = StartSerializer(
        allow_null=True,
        help_text="Progress toward the start of training; null once training has started, or if it does not "
        "wait for answers.",
    )
    episode = EpisodeSerializer(
        allow_null=True,
        help_text="The newest video; null if there is none, or if the experiment hides videos from labelers.",
    )
    episodes = EpisodeSerializer(
        many=True,
        help_text="Up to 6 videos spread over training, including the first and the newest; empty if the "
        "experiment hides videos from labelers.",
    )


MAX_BATCH = 200
MAX_POINTS = 1000
MAX_CURVE = 100  # points
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
    compares_kinds = serializers.BooleanField(
        required=False,
        help_text="True: a study of kinds of questions. Each labeler gets blocks of ten questions of one "
        "kind, and the experiment's page compares the kinds.",
    )
    asks_reasons = serializers.BooleanField(
        required=False, help_text="True: labelers may write why they chose an answer."
    )
    lowest_rating = serializers.CharField(
        max_length=MAX_RATING_WORDS,
        required=False,
        allow_blank=True,
        help_text="What labelers read beside rating 1; empty: “worst” in their language.",
    )
    highest_rating = serializers.CharField(
        max_length=MAX_RATING_WORDS,
        required=False,
        allow_blank=True,
        help_text="What labelers read beside rating 5; empty: “best” in their language.",
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
        help_text="Link whose holder labels, watches and manages the experiment, as long as the API token "
        "works. Keep it secret."
    )


class InviteRequestSerializer(serializers.Serializer[Any]):
    """Request to invite a labeler."""

    labeler = labeler_name()
    labeler_kind = serializers.ChoiceField(
        Labeler.Kind.choices,
        required=False,
        help_text="Kind of labeler. Default: as before.",
    )
    share = serializers.FloatField(
        required=False,
        min_value=0,
        max_value=1,
        help_text="Share of the questions that a model may decide without people. Default: as before.",
    )


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
    kind = serializers.ChoiceField(list(KINDS), default=PAIR.name)
    first = ClipRequestSerializer(required=False, help_text="The first of two clips.")
    second = ClipRequestSerializer(required=False, help_text="The second of two clips.")
    items = serializers.ListField(
        child=ClipRequestSerializer(),
        required=False,
        help_text="The clips, instead of `first` and `second`, if the kind doesn't have two of them.",
    )
    gold = serializers.ChoiceField(
        answers_of_all(),
        allow_null=True,
        default=None,
        help_text="The known answer, which makes the comparison an attention check and keeps it out of the "
        "decision feed; null for an ordinary comparison.",
    )
    reason = serializers.RegexField(
        REASON,
        allow_blank=True,
        default="",
        help_text="Why the question is asked: `random`, `attention_check`, or `disagreement:5:5` with the "
        "number of reward models that prefer each clip. Never shown to labelers.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Reject what the kind doesn't have; return the clips in ``items``."""
        kind = KINDS[attrs["kind"]]
        expected = ("first", "second") if kind.size == 2 else ("items",)
        wrong = {name: ["This field is required."] for name in expected if name not in attrs} | {
            name: [f"A comparison of the kind {kind.name} doesn't have this field."]
            for name in {"first", "second", "items"} - {*expected}
            if name in attrs
        }
        if not wrong:
            attrs["items"] = [attrs.pop("first"), attrs.pop("second")] if kind.size == 2 else attrs["items"]
            if len(attrs["items"]) != kind.size:
                found = len(attrs["items"])
                wrong["items"] = [f"A comparison of the kind {kind.name} has {kind.size} clips, not {found}."]
        if attrs["gold"] is not None and attrs["gold"] not in kind.classes:
            wrong["gold"] = [f"Expected one of {', '.join(kind.classes)} for the kind {kind.name}."]
        if wrong:
            raise serializers.ValidationError(wrong)
        return attrs


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


class PersonalAnswerSerializer(serializers.Serializer[Any]):
    """A counted label, with its labeler."""

    labeler = serializers.IntegerField(help_text="Number of the labeler on this site.")
    answer = serializers.ChoiceField(answers_of_all())


class DecisionSerializer(serializers.Serializer[Any]):
    """A new or revised decision on a comparison; it replaces any earlier one."""

    seq = serializers.IntegerField()
    comparison = serializers.UUIDField(source="comparison.uuid")
    decision = serializers.ChoiceField(
        answers_of_all(), allow_null=True, help_text="null: the earlier decision was withdrawn."
    )
    probability = serializers.FloatField(
        allow_null=True,
        help_text="Probability that the first of two clips is preferred; null if `decision` is `cant_tell` "
        "or null, or if there are not two clips.",
    )
    n_labels = serializers.IntegerField()
    answers = PersonalAnswerSerializer(
        many=True,
        allow_null=True,
        help_text="The counted labels, if labels of this kind can only be compared with the same labeler's; "
        "else null.",
    )
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


def _curve() -> serializers.ListField:
    return serializers.ListField(child=FiniteFloatField(), min_length=1, max_length=MAX_CURVE)


class PredictedEpisodeSerializer(serializers.Serializer[Any]):
    """Rewards predicted for a video of a whole episode."""

    step = steps()
    rewards = _curve()


class PredictedComparisonSerializer(serializers.Serializer[Any]):
    """Rewards predicted for a comparison's clips."""

    uuid = serializers.UUIDField()
    items = serializers.ListField(child=_curve(), min_length=1, max_length=len(ITEMS))


class PredictedSerializer(serializers.Serializer[Any]):
    """Rewards predicted by a run's newest reward predictor, as curves for researchers."""

    step = steps()
    films = serializers.ListField(
        child=PredictedEpisodeSerializer(),
        max_length=MAX_BATCH,
        help_text="Videos registered by their steps; those left out lose their earlier curves.",
    )
    comparisons = serializers.ListField(child=PredictedComparisonSerializer(), max_length=MAX_BATCH)


class PointsRequestSerializer(serializers.Serializer[Any]):
    """Learning-curve points, and the number of answers that training is waiting for."""

    points = serializers.ListField(child=PointSerializer(), max_length=MAX_POINTS)
    waiting_for = count(
        allow_null=True,
        required=False,
        help_text="Number of answers training is waiting for; null: it is not waiting; absent: unchanged.",
    )
    predicted = PredictedSerializer(required=False)
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
    kind = serializers.ChoiceField(list(KINDS))
    items = ClipSerializer(many=True)
    first = ClipSerializer(allow_null=True, help_text="The first of two clips; null if there are not two.")
    second = ClipSerializer(allow_null=True, help_text="The second of two clips; null if there are not two.")
    gold = serializers.ChoiceField(
        answers_of_all(),
        allow_null=True,
        help_text="The known answer if this is an attention check, else null.",
    )
    reason = serializers.CharField(help_text="Why the trainer asked, as it said; empty if not known.")
    settled = serializers.ChoiceField(
        answers_of_all(), allow_null=True, help_text="The answer of a researcher who settled it, else null."
    )
    decision = serializers.ChoiceField(answers_of_all(), allow_null=True)
    probability = serializers.FloatField(allow_null=True)
    n_labels = serializers.IntegerField()


class ComparisonsSerializer(serializers.Serializer[Any]):
    """Comparisons in order of registration."""

    items = ComparisonSerializer(many=True)


class SideReturnSerializer(serializers.Serializer[Any]):
    """True return of the clip on one side of the screen."""

    true_return = serializers.FloatField(allow_null=True)


class LeaseDetailSerializer(serializers.Serializer[Any]):
    """A lease with the true returns of its clips, for scripted labelers."""

    uuid = serializers.UUIDField()
    comparison = serializers.UUIDField()
    kind = serializers.ChoiceField(list(KINDS))
    items = SideReturnSerializer(many=True, help_text="The clips in the order of the screen, row by row.")
    left = SideReturnSerializer(allow_null=True, help_text="The first of two clips, else null.")
    right = SideReturnSerializer(allow_null=True, help_text="The second of two clips, else null.")


class EpisodeRequestSerializer(serializers.Serializer[Any]):
    """A whole-episode video that has been uploaded to the media store."""

    step = steps()
    key = serializers.CharField(max_length=300, help_text="`<experiment>/episodes/<step>.mp4`")


class StrictJSONParser(JSONParser):
    """JSON parser that rejects unpaired surrogates and documents nested beyond Python's recursion limit."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Parse the request body and return the data. Raises DRF's ``ParseError`` if the body is invalid."""
        try:
            data = super().parse(stream, media_type, parser_context)
            json.dumps(data, ensure_ascii=False).encode()
        except RecursionError:
            raise ParseError("The JSON is nested too deeply.") from None
        except UnicodeEncodeError:  # "\\ud800" is valid JSON, but not valid Unicode
            raise ParseError("The JSON contains an unpaired surrogate.") from None
        return data
