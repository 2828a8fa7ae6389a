"""API endpoints for trainers and researchers."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError as DjangoValidationError
from django.http import StreamingHttpResponse
from rest_framework.exceptions import ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from human_feedback_site.feedback.addresses import base_url
from human_feedback_site.feedback.api import serializers as s
from human_feedback_site.feedback.api.examples import COMPARISONS_CSV, LABELS_CSV
from human_feedback_site.feedback.api.schema import download_endpoint, endpoint
from human_feedback_site.feedback.api.views import ResearcherView, by_side, user_of, valid
from human_feedback_site.feedback.kinds import on_screen
from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.models import ApiToken, Experiment, TrainingPoint, validate_name
from human_feedback_site.feedback.selectors.experiments import (
    active_labelers,
    comparisons_with_decisions,
    count_open,
    decisions_after,
    last_seq,
    lease_in,
)
from human_feedback_site.feedback.services import accounts, experiments, invites
from human_feedback_site.feedback.tables.files import download


class TrainerView(ResearcherView):
    """Base class for trainer-only endpoints; every request counts as a heartbeat from the trainer."""

    def experiment(self, name: str) -> Experiment:
        """Return the user's experiment called ``name``, and record a heartbeat from its trainer."""
        experiment = super().experiment(name)
        experiments.hear_from_trainer(experiment)
        return experiment


class ExperimentView(ResearcherView):
    """One of the user's experiments."""

    @endpoint(
        "put_experiment",
        s.ExperimentSerializer,
        example="experiment",
        body=(s.ExperimentRequestSerializer, "experiment"),
        statuses=(200, 201, 409),
    )
    def put(self, request: Request, name: str) -> Response:
        """Create the experiment, or resume it if it already exists with the same `run_id`."""
        try:
            validate_name(name)
        except DjangoValidationError as error:
            raise ValidationError({"name": error.messages}) from None
        body = valid(s.ExperimentRequestSerializer, request.data)
        labeler_name = body.pop("invite")
        experiment, created = experiments.put_experiment(user_of(request), name, body.pop("run_id"), body)
        experiments.hear_from_trainer(experiment)
        if created:
            accounts.invite(experiment, labeler_name)
        else:
            accounts.invite_newcomer(experiment, labeler_name)
        answer = s.ExperimentSerializer(_experiment_json(request, experiment, labeler_name))
        return Response(answer.data, status=201 if created else 200)


class InvitesView(ResearcherView):
    """Invitations for labelers to join an experiment."""

    @endpoint(
        "create_invite",
        s.InviteSerializer,
        example="invite",
        body=(s.InviteRequestSerializer, "invite"),
        statuses=(200, 409),
    )
    def post(self, request: Request, name: str) -> Response:
        """Create an invitation link that signs in one labeler."""
        experiment = self.experiment(name)
        body = valid(s.InviteRequestSerializer, request.data)
        invite = invites.invite_by_name(
            experiment, body["labeler"], body.get("labeler_kind"), body.get("share")
        )
        url = invites.link_of(invite, base_url(request))
        return Response(s.InviteSerializer({"invite_url": url}).data)


def _experiment_json(request: Request, experiment: Experiment, labeler_name: str) -> dict[str, Any]:
    base = base_url(request)
    return {
        "name": experiment.name,
        "run_id": experiment.run_id,
        "state": experiment.state,
        "prompt": experiment.prompt,
        "last_seq": last_seq(experiment),
        "page_url": accounts.page_url(experiment, base),
        "label_url": accounts.label_url(experiment, base),
        "invite_url": accounts.invite_url(experiment, labeler_name, base),
        "watch_url": accounts.owner_url(experiment, labeler_name, request.auth, base)
        if isinstance(request.auth, ApiToken)
        else accounts.page_url(experiment, base),
    }


class ComparisonsView(TrainerView):
    """Comparisons of an experiment."""

    @endpoint(
        "register_comparisons",
        s.RegisteredSerializer,
        example="registered",
        body=(s.ComparisonsRequestSerializer, "comparisons"),
        statuses=(200, 409, 422, 503),
    )
    def post(self, request: Request, name: str) -> Response:
        """Register comparisons atomically (all or none); their clips must already be uploaded.

        The request is idempotent.
        """
        experiment = self.experiment(name)
        body = valid(s.ComparisonsRequestSerializer, request.data)
        new, known = experiments.register_comparisons(
            experiment, [_new_comparison(x) for x in body["comparisons"]]
        )
        return Response(s.RegisteredSerializer({"registered": new, "existing": known}).data)

    @endpoint("list_comparisons", s.ComparisonsSerializer, example="comparisons", paged=True)
    def get(self, request: Request, name: str) -> Response:
        """List comparisons with their clips, true returns and decisions."""
        experiment = self.experiment(name)
        page = valid(s.PageSerializer, request.query_params)
        rows = comparisons_with_decisions(experiment).filter(pk__gt=page["after"]).order_by("pk")
        return Response(
            s.ComparisonsSerializer({"items": [_comparison_json(row) for row in rows[: page["limit"]]]}).data
        )


def _new_comparison(item: dict[str, Any]) -> experiments.NewComparison:
    return experiments.NewComparison(
        **{name: item[name] for name in ("uuid", "kind", "phase", "step", "priority", "gold", "reason")},
        items=[(clip["key"], clip["true_return"]) for clip in item["items"]],
    )


def _comparison_json(row: Any) -> dict[str, Any]:
    """Return a comparison as JSON; ``row`` must be annotated with its decision."""
    media = media_store()
    items = [
        {"url": media.url(key), "true_return": value}
        for key, value in zip(row.keys, row.returns, strict=True)
    ]
    return {
        **{
            name: getattr(row, name)
            for name in (
                *("id", "uuid", "kind", "phase", "step", "priority", "reason", "status", "n_labels", "gold"),
                "settled",
            )
        },
        "items": items,
        **by_side(items, "first", "second"),
        "decision": row.decision,
        "probability": row.probability,
    }


class DecisionsView(TrainerView):
    """Feed of an experiment's decisions."""

    @endpoint("list_decisions", s.DecisionsSerializer, example="decisions", paged=True)
    def get(self, request: Request, name: str) -> Response:
        """List the decisions after a cursor; also return the experiment's state."""
        experiment = self.experiment(name)
        page = valid(s.PageSerializer, request.query_params)
        experiments.note_feed_cursor(experiment, page["after"])
        feed = decisions_after(experiment, page["after"], page["limit"])
        waiting, waiting_in_training = count_open(experiment)
        answer = {
            "state": experiment.state,
            "last_seq": feed.last_seq,
            "items": feed.items,
            "active_labelers": active_labelers(experiment).count(),
            "open": waiting,
            "open_training": waiting_in_training,
        }
        return Response(s.DecisionsSerializer(answer).data)


class CancelView(TrainerView):
    """Cancels comparisons."""

    @endpoint(
        "cancel_comparisons",
        s.CancelledSerializer,
        example="cancelled",
        body=(s.CancelRequestSerializer, "cancel"),
    )
    def post(self, request: Request, name: str) -> Response:
        """Cancel the given comparisons, except any that already have a label."""
        experiment = self.experiment(name)
        body = valid(s.CancelRequestSerializer, request.data)
        cancelled = experiments.cancel_comparisons(experiment, body["comparisons"])
        return Response(s.CancelledSerializer({"cancelled": cancelled}).data)


class PointsView(TrainerView):
    """An experiment's learning curves."""

    @endpoint(
        "store_points", s.StoredSerializer, example="stored", body=(s.PointsRequestSerializer, "points")
    )
    def post(self, request: Request, name: str) -> Response:
        """Store learning-curve points, replacing any with the same step and name."""
        experiment = self.experiment(name)
        body = valid(s.PointsRequestSerializer, request.data)
        points = [
            TrainingPoint(experiment=experiment, step=point["step"], tag=tag, value=value)
            for point in body["points"]
            for tag, value in point["values"].items()
        ]
        stored = experiments.store_points(experiment, points)
        if "waiting_for" in body:
            experiments.set_waiting_for(experiment, body["waiting_for"])
        if predicted := body.get("predicted"):
            films = {each["step"]: each["rewards"] for each in predicted["films"]}
            comparisons = {each["uuid"]: each["items"] for each in predicted["comparisons"]}
            experiments.note_predictions(experiment, predicted["step"], films, comparisons)
        if body["stopped"]:
            experiments.note_stopped(experiment)
        return Response(s.StoredSerializer({"stored": stored}).data)


class EpisodesView(TrainerView):
    """Videos of whole episodes."""

    @endpoint(
        "add_episode",
        s.StoredSerializer,
        example="stored",
        body=(s.EpisodeRequestSerializer, "episode"),
        statuses=(200, 422, 503),
    )
    def post(self, request: Request, name: str) -> Response:
        """Show an uploaded episode video to labelers, replacing any existing one for the same step."""
        body = valid(s.EpisodeRequestSerializer, request.data)
        experiments.add_episode(self.experiment(name), body["step"], body["key"])
        return Response(s.StoredSerializer({"stored": 1}).data)


class LeaseDetailView(ResearcherView):
    """A lease with true returns, for scripted labelers."""

    @endpoint("read_lease", s.LeaseDetailSerializer, example="lease")
    def get(self, request: Request, name: str, uuid: UUID) -> Response:
        """Read the true returns of a leased comparison's clips."""
        lease = lease_in(self.experiment(name), uuid)
        asked = lease.comparison
        items = [{"true_return": value} for value in on_screen(asked.returns, swapped=lease.swapped)]
        answer = {
            "uuid": lease.uuid,
            "comparison": asked.uuid,
            "kind": asked.kind,
            "items": items,
            **by_side(items),
        }
        return Response(s.LeaseDetailSerializer(answer).data)


class _AnyType(BaseContentNegotiation):
    """Content negotiation that ignores ``Accept`` headers: the URL sets the file type; errors are JSON."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer and its media type; they are used only for error responses."""
        first = next(iter(renderers))
        return first, str(first.media_type)


def _export(table: str, extension: str) -> type[ResearcherView]:
    """Return the view that exports a table as CSV or Parquet."""

    def get(self: ResearcherView, request: Request, name: str) -> StreamingHttpResponse:
        return download(self.experiment(name), table, extension)

    get.__doc__ = _EXPORTED[table]
    content_type, samples = _TYPES[extension]
    documented = download_endpoint(f"export_{table}_{extension}", content_type, example=samples.get(table))
    return type(
        "ExportView", (ResearcherView,), {"content_negotiation_class": _AnyType, "get": documented(get)}
    )


_EXPORTED = {
    "comparisons": "Export all comparisons with their decisions, in order of registration.",
    "labels": "Export all labels, including withdrawn ones, in order of arrival.",
}
_TYPES: dict[str, tuple[str, dict[str, str]]] = {
    "csv": ("text/csv", {"comparisons": COMPARISONS_CSV, "labels": LABELS_CSV}),
    "parquet": ("application/vnd.apache.parquet", {}),
}
EXPORTS = {f"{table}.{extension}": _export(table, extension) for table in _EXPORTED for extension in _TYPES}
"""Views by URL."""
