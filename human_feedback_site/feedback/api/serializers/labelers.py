"""Serializers for labelers' requests and responses."""

from typing import Any

from rest_framework import serializers

from human_feedback_site.feedback.api.serializers.fields import count
from human_feedback_site.feedback.models import Experiment, Label

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


class SideSerializer(serializers.Serializer[Any]):
    """A clip on one side of the screen."""

    url = serializers.CharField(
        help_text="URL of the clip, which expires; relative if the site serves clips itself."
    )


class LeaseSerializer(serializers.Serializer[Any]):
    """A comparison leased to the labeler, with the clip on each side of the screen."""

    uuid = serializers.UUIDField()
    comparison = serializers.UUIDField()
    left = SideSerializer()
    right = SideSerializer()
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
    choice = serializers.ChoiceField(Label.Choice.choices)
    response_ms = count(
        allow_null=True,
        default=None,
        help_text="Milliseconds from when both clips started playing until the answer.",
    )
    shown_ms = count(
        allow_null=True,
        default=None,
        help_text="Milliseconds of `response_ms` during which both clips were visible.",
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

    left = SideSerializer()
    right = SideSerializer()
    better = serializers.ChoiceField(Label.Choice.choices, help_text="The known answer.")
    explanation = serializers.CharField(help_text="Reason for the answer; may be empty.")
    practice = serializers.BooleanField(
        help_text="True: labelers answer this pair as practice; false: they see it with its answer."
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
