"""URL patterns below ``/api/``."""

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from human_feedback_site.feedback.api import labeler_views, researcher_views

_experiment = [
    path("invites", researcher_views.InvitesView.as_view()),
    path("comparisons", researcher_views.ComparisonsView.as_view()),
    path("decisions", researcher_views.DecisionsView.as_view()),
    path("cancel", researcher_views.CancelView.as_view()),
    path("points", researcher_views.PointsView.as_view()),
    path("episodes", researcher_views.EpisodesView.as_view()),
    *(path(name, view.as_view()) for name, view in researcher_views.EXPORTS.items()),
    path("examples", labeler_views.ExamplesView.as_view(), name="api-examples"),
    path("progress", labeler_views.ProgressView.as_view(), name="api-progress"),
    path("leases", labeler_views.LeasesView.as_view(), name="api-leases"),
    path("leases/<uuid:uuid>", researcher_views.LeaseDetailView.as_view()),
]
urlpatterns = [
    path("v1/experiments/<str:name>", researcher_views.ExperimentView.as_view()),
    path("v1/experiments/<slug:name>/", include(_experiment)),
    path("v1/labels", labeler_views.LabelsView.as_view(), name="api-labels"),
    path("v1/labels/<uuid:uuid>/undo", labeler_views.UndoView.as_view()),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path(
        "docs/",
        SpectacularSwaggerSplitView.as_view(template_name="feedback/api_docs.html", url_name="schema"),
        name="docs",
    ),
]
