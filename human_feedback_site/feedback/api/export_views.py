"""Endpoints that export an experiment's data as CSV and Parquet files."""

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
    """Content negotiation that ignores ``Accept`` headers: the URL sets the file type; errors are JSON."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer and its media type; they are used only for error responses."""
        first = next(iter(renderers))
        return first, str(first.media_type)


class _ExportView(ResearcherView):
    content_negotiation_class = _AnyType


class ComparisonsCsvView(_ExportView):
    """Export of an experiment's comparisons as CSV."""

    @download_endpoint("export_comparisons_csv", _CSV, example=COMPARISONS_CSV)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export all comparisons with their decisions, in order of registration."""
        return download(self.experiment(name), "comparisons", "csv")


class ComparisonsParquetView(_ExportView):
    """Export of an experiment's comparisons as Parquet."""

    @download_endpoint("export_comparisons_parquet", _PARQUET)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export all comparisons with their decisions, in order of registration."""
        return download(self.experiment(name), "comparisons", "parquet")


class LabelsCsvView(_ExportView):
    """Export of an experiment's labels as CSV."""

    @download_endpoint("export_labels_csv", _CSV, example=LABELS_CSV)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export all labels, including withdrawn ones, in order of arrival."""
        return download(self.experiment(name), "labels", "csv")


class LabelsParquetView(_ExportView):
    """Export of an experiment's labels as Parquet."""

    @download_endpoint("export_labels_parquet", _PARQUET)
    def get(self, request: Request, name: str) -> StreamingHttpResponse:
        """Export all labels, including withdrawn ones, in order of arrival."""
        return download(self.experiment(name), "labels", "parquet")
