"""What labelers send and are given."""

from typing import Any

from rest_framework import serializers

from human_feedback_site.feedback.api.serializers.fields import count
from human_feedback_site.feedback.models import Experiment, Label

MAX_LEASES = 10


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
    answered = serializers.IntegerField(
        help_text="Answers of this labeler that stand, of those for its present invitation."
    )
    waiting_for = serializers.IntegerField(allow_null=True, help_text="Answers that training waits for.")
    notice = serializers.ChoiceField(
        ["warned", "stopped", "done"],
        allow_null=True,
        help_text="`warned`: of late too many answers were careless; `stopped`: no more pairs are given; "
        "`done`: all answers that the invitation asks for are given.",
    )


class LabelRequestSerializer(serializers.Serializer[Any]):
    """An answer; sending it again changes nothing."""

    uuid = serializers.UUIDField()
    lease = serializers.UUIDField()
    choice = serializers.ChoiceField(Label.Choice.choices)
    response_ms = count(allow_null=True, default=None, help_text="From both clips playing to the answer.")
    shown_ms = count(
        allow_null=True, default=None, help_text="How long both clips played or stood in sight meanwhile."
    )


class LabelSerializer(serializers.Serializer[Any]):
    """A recorded answer."""

    uuid = serializers.UUIDField()
    status = serializers.ChoiceField(
        [Label.Status.COUNTED.value, Label.Status.SURPLUS.value],
        help_text="`surplus`: kept, but enough others were there; it counts if a place becomes free.",
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


class StartSerializer(serializers.Serializer[Any]):
    """How far it is to the start of training."""

    answered = serializers.IntegerField(help_text="Answers that can be learned from.")
    wanted = serializers.IntegerField(help_text="How many of them training waits for.")


class ProgressSerializer(serializers.Serializer[Any]):
    """How far everybody's labeling is, and videos of what the policy did over time."""

    state = serializers.ChoiceField(Experiment.State.choices)
    answered = serializers.IntegerField(help_text="Pairs of the experiment that have an answer.")
    wanted = serializers.IntegerField(allow_null=True, help_text="Labels wanted in all; null: no limit.")
    start = StartSerializer(
        allow_null=True, help_text="Null once enough are answered, and where none are waited for."
    )
    episode = EpisodeSerializer(allow_null=True, help_text="The newest.")
    episodes = EpisodeSerializer(
        many=True, help_text="Spread over the training, the first and the newest among them; at most 6."
    )
