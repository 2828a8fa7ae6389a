"""Endpoints that give researchers their data as files."""

from collections.abc import Iterable

from django.http import StreamingHttpResponse
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from human_feedback_site.feedback.api.examples import COMPARISONS_CSV, LABELS_CSV
from human_feedback_site.feedback.api.schema import download_endpoint
from human_feedback_site.feedback.api.views import ResearcherView
from human_feedback_site.feedback.tables.downloads import download

_CSV, _PARQUET = "text/csv", "application/vnd.apache.parquet"


class _AnyType(BaseContentNegotiation):
    """The address says which type it is; problems are JSON as everywhere."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Return the renderer of problems, whatever is accepted."""
        first = next(iter(renderers))
        return first, str(first.media_type)


class _ExportView(ResearcherView):
    content_negotiation_class = _AnyType


class ComparisonsCsvView(_ExportView):
    """Comparisons as CSV."""

    @download_endpoint("export_comparisons_csv", _CSV, example=COMPARISONS_CSV)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export all comparisons with their decisions, in the order in which they were registered."""
        return download(self.experiment(name), "comparisons", "csv")


class ComparisonsParquetView(_ExportView):
    """Comparisons as Parquet."""

    @download_endpoint("export_comparisons_parquet", _PARQUET)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export all comparisons with their decisions, in the order in which they were registered."""
        return download(self.experiment(name), "comparisons", "parquet")


class LabelsCsvView(_ExportView):
    """Labels as CSV."""

    @download_endpoint("export_labels_csv", _CSV, example=LABELS_CSV)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export every label ever given, in the order in which they arrived."""
        return download(self.experiment(name), "labels", "csv")


class LabelsParquetView(_ExportView):
    """Labels as Parquet."""

    @download_endpoint("export_labels_parquet", _PARQUET)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export every label ever given, in the order in which they arrived."""
        return download(self.experiment(name), "labels", "parquet")
