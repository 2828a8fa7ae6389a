"""Endpoints of labelers. They never say what the environment's reward was.

Nor do they say which side is first, but the links of the clips hold their keys, which does: the sides are
swapped against habits of the eye, not to keep a secret.
"""

from typing import Any
from uuid import UUID

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from human_feedback_site.feedback import labeling, selectors
from human_feedback_site.feedback.api import serializers as s
from human_feedback_site.feedback.api.schema import endpoint
from human_feedback_site.feedback.api.views import LabelerView, user_of, valid
from human_feedback_site.feedback.media import media_store
from human_feedback_site.feedback.models import Lease
from human_feedback_site.feedback.services import accounts, answers, leases


def _lease(lease: Lease) -> dict[str, Any]:
    media = media_store()
    keys = [lease.comparison.first_key, lease.comparison.second_key]
    left, right = reversed(keys) if lease.swapped else keys
    return {
        "uuid": lease.uuid,
        "comparison": lease.comparison.uuid,
        "left": {"url": media.url(left)},
        "right": {"url": media.url(right)},
        "expires_in": settings.LEASE_SECONDS,
    }


class LeasesView(LabelerView):
    """Work for a labeler."""

    @endpoint(
        "lease_comparisons", s.LeasesSerializer, example="leases", body=(s.LeasesRequestSerializer, "leases")
    )
    def post(self, request: Request, name: str) -> Response:
        """Renew the pairs held and claim more, until `count` are held."""
        labeler, experiment = accounts.labeler_in(user_of(request), name)
        body = valid(s.LeasesRequestSerializer, request.data)
        grant = leases.lease_comparisons(experiment, labeler, leases.LeaseRequest(**body))
        answer = {
            "leases": [_lease(lease) for lease in grant.new],
            "renewed": grant.renewed,
            "lost": grant.lost,
            "state": experiment.state,
            "prompt": experiment.prompt,
            "fps": experiment.fps,
            "answered": selectors.answers_given(labeler, experiment),
            "waiting_for": experiment.waiting_for,
        }
        return Response(s.LeasesSerializer(answer).data)


class LabelsView(LabelerView):
    """Answers."""

    @endpoint(
        "create_label",
        s.LabelSerializer,
        example="label",
        body=(s.LabelRequestSerializer, "label"),
        statuses=(200, 201, 409),
    )
    def post(self, request: Request) -> Response:
        """Answer a lease, by screen side; a late answer is kept too."""
        body = valid(s.LabelRequestSerializer, request.data)
        labeler = accounts.labeler_of(user_of(request))
        label, created = answers.record_answer(labeler, answers.Answer(**body))
        answered = selectors.answers_given(labeler, label.comparison.experiment)
        answer = {"uuid": label.uuid, "status": label.status, "answered": answered}
        return Response(s.LabelSerializer(answer).data, status=201 if created else 200)


class UndoView(LabelerView):
    """Withdrawals."""

    @endpoint(
        "undo_label",
        s.UndoSerializer,
        example="undo",
        body=(s.UndoRequestSerializer, "undo"),
        statuses=(200, 201, 409),
    )
    def post(self, request: Request, uuid: UUID) -> Response:
        """Withdraw an answer; the pair comes back to its labeler."""
        body = valid(s.UndoRequestSerializer, request.data)
        labeler = accounts.labeler_of(user_of(request))
        undo, lease, created = answers.record_undo(labeler, uuid, body["uuid"])
        answer = {
            "uuid": undo.uuid,
            "lease": None if lease is None else _lease(lease),
            "answered": selectors.answers_given(labeler, undo.label.comparison.experiment),
        }
        return Response(s.UndoSerializer(answer).data, status=201 if created else 200)


class ExamplesView(LabelerView):
    """Pairs with known answers."""

    @endpoint("list_examples", s.ExamplesSerializer, example="examples")
    def get(self, request: Request, name: str) -> Response:
        """Read the pairs that explain the instruction, and those to practise on."""
        _, experiment = accounts.labeler_in(user_of(request), name)
        items = [vars(example) for example in labeling.examples(experiment)]
        return Response(s.ExamplesSerializer({"items": items}).data)


class ProgressView(LabelerView):
    """How far it is."""

    @endpoint("read_progress", s.ProgressSerializer, example="progress")
    def get(self, request: Request, name: str) -> Response:
        """Read how far everybody's labeling is, and the newest film of the policy."""
        _, experiment = accounts.labeler_in(user_of(request), name)
        answer = {
            "answered": labeling.answered_by_all(experiment),
            "wanted": experiment.n_labels,
            "episode": labeling.latest_episode(experiment),
        }
        return Response(s.ProgressSerializer(answer).data)
