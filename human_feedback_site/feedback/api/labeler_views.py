"""API endpoints for labelers; they never reveal true rewards.

Responses don't say where the first segment is shown, but the clip URLs reveal it, because they contain the
object keys. The order is random to balance out labelers' bias toward a place, not to hide anything.
"""

from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from human_feedback_site.feedback.api import serializers as s
from human_feedback_site.feedback.api.schema import endpoint
from human_feedback_site.feedback.api.views import LabelerView, by_side, user_of, valid
from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.kinds import KINDS, on_screen
from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.models import Experiment, Labeler, Lease, Participation
from human_feedback_site.feedback.queue.leases import LeaseRequest, lease_comparisons
from human_feedback_site.feedback.queue.participants import (
    AnsweredLease,
    Participant,
    answered_lease,
    answered_lease_in_session,
    participant_in_session,
    participant_of,
)
from human_feedback_site.feedback.selectors import labeling
from human_feedback_site.feedback.selectors.experiments import answers_given
from human_feedback_site.feedback.services import accounts, answers


def _lease_json(lease: Lease) -> dict[str, Any]:
    media, asked = media_store(), lease.comparison
    items = [{"url": media.url(key)} for key in on_screen(asked.keys, swapped=lease.swapped)]
    return {
        "uuid": lease.uuid,
        "comparison": asked.uuid,
        "kind": asked.kind,
        "items": items,
        **by_side(items),
        "expires_in": settings.LEASE_SECONDS,
    }


Notice = Participation.Notice
_STATE = ("state", "prompt", "fps", "answered", "wanted", "waiting_for", "notice")


class LeasesView(LabelerView):
    """Grants leases to the signed-in labeler."""

    def recognize(self, request: Request) -> tuple[User, Participant] | None:
        """Return the session's user and their :class:`Participant`, or None if either can't be found."""
        session_key = request._request.session.session_key
        return participant_in_session(session_key, self.kwargs["name"]) if session_key else None

    @endpoint(
        "lease_comparisons",
        s.LeasesSerializer,
        example="leases",
        body=(s.LeasesRequestSerializer, "leases"),
        statuses=(200, 409),
    )
    def post(self, request: Request, name: str) -> Response:
        """Renew the leases in `held`, and grant more until the page has `count` leases."""
        who = cast(Participant | None, request.auth)
        if who is None:
            who = participant_of(accounts.participation_in(user_of(request), name))
        body = valid(s.LeasesRequestSerializer, request.data)
        if body.pop("labeler_kind") == Labeler.Kind.MODEL and who.share is None:
            raise ConflictError(
                "This invitation is for a person; make one for a model with "
                "teach site invite EXPERIMENT NAME --model."
            )
        grant = lease_comparisons(who, LeaseRequest(**body))
        return Response(
            {
                "leases": [_lease_json(lease) for lease in grant.new],
                "renewed": grant.renewed,
                "lost": grant.lost,
                **{name: getattr(who, name) for name in _STATE},
            }
        )


class LabelsView(LabelerView):
    """Records labels by the signed-in labeler."""

    def recognize(self, request: Request) -> tuple[User, AnsweredLease] | None:
        """Return the session's user and the lease in the body, or None if it isn't the user's."""
        session_key = request._request.session.session_key
        try:
            lease = UUID(cast(dict[str, Any], request.data)["lease"])
        except (APIException, KeyError, TypeError, ValueError, AttributeError):
            return None  # authenticate before reporting errors in the body
        return answered_lease_in_session(session_key, lease) if session_key else None

    @endpoint(
        "create_label",
        s.LabelSerializer,
        example="label",
        body=(s.LabelRequestSerializer, "label"),
        statuses=(200, 201, 409),
    )
    def post(self, request: Request) -> Response:
        """Record the labeler's answer to a lease, even if the lease has expired."""
        body = valid(s.LabelRequestSerializer, request.data)
        lease = cast(AnsweredLease | None, request.auth)
        if lease is None:
            lease = answered_lease(accounts.labeler_of(user_of(request)), body["lease"])
        choices = KINDS[lease.kind].choices
        if body["choice"] not in choices:
            expected = f"Expected one of {', '.join(choices)} for the kind {lease.kind}."
            raise ValidationError({"choice": [expected]})
        recorded = answers.record_answer(lease, answers.Answer(**body))
        answer = {"uuid": recorded.uuid, "status": recorded.status, "answered": recorded.answered}
        return Response(answer, status=201 if recorded.created else 200)


class UndoView(LabelerView):
    """Lets the signed-in labeler undo a label."""

    @endpoint(
        "undo_label",
        s.UndoSerializer,
        example="undo",
        body=(s.UndoRequestSerializer, "undo"),
        statuses=(200, 201, 409),
    )
    def post(self, request: Request, uuid: UUID) -> Response:
        """Withdraw an answer and, if possible, lease its comparison to the labeler again."""
        body = valid(s.UndoRequestSerializer, request.data)
        labeler = accounts.labeler_of(user_of(request))
        undo, lease, created = answers.record_undo(labeler, uuid, body["uuid"])
        answer = {
            "uuid": undo.uuid,
            "lease": None if lease is None else _lease_json(lease),
            "answered": answers_given(labeler, undo.label.comparison.experiment),
        }
        return Response(s.UndoSerializer(answer).data, status=201 if created else 200)


class ExamplesView(LabelerView):
    """Example and practice comparisons of an experiment."""

    @endpoint("list_examples", s.ExamplesSerializer, example="examples")
    def get(self, request: Request, name: str) -> Response:
        """List the example and practice comparisons, with their answers."""
        _, experiment = accounts.labeler_in(user_of(request), name)
        items = [vars(example) | by_side(example.items) for example in labeling.examples(experiment)]
        return Response(s.ExamplesSerializer({"items": items}).data)


class ProgressView(LabelerView):
    """Labeling progress of an experiment."""

    @endpoint("read_progress", s.ProgressSerializer, example="progress")
    def get(self, request: Request, name: str) -> Response:
        """Get all labelers' combined progress and the videos of the policy recorded during training."""
        participation = accounts.participation_in(user_of(request), name)
        experiment, notice = participation.experiment, participant_of(participation).notice
        judges = experiment.state == Experiment.State.RUNNING and notice in {None, Notice.WARNED}
        counts, needed = labeling.count_answered(experiment), experiment.pretrain_labels or 0
        waits = counts.before_training < needed and not counts.training
        shown = labeling.episodes(experiment) if experiment.show_episodes else []
        links = [
            {"step": each.step, "answered": each.answered, "url": media_store().url(each.key)}
            for each in shown
        ]
        answer = {
            "state": experiment.state,
            "answered": counts.answered,
            "wanted": experiment.n_labels,
            "waiting": labeling.count_waiting(participation.labeler, experiment) if judges else 0,
            "start": {"answered": counts.before_training, "wanted": needed} if waits else None,
            "episode": links[-1] if links else None,
            "episodes": links,
        }
        return Response(s.ProgressSerializer(answer).data)
