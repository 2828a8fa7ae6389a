"""Streaming downloads of tables, which therefore never have to fit in memory."""

from django.http import StreamingHttpResponse

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.tables.columns import TABLES
from human_feedback_site.feedback.tables.files import FILE_TYPES


def download(experiment: Experiment, table: str, extension: str) -> StreamingHttpResponse:
    """Return a streaming response with an experiment's table as a file.

    Args:
        experiment: the experiment.
        table: ``comparisons`` or ``labels``.
        extension: ``csv`` or ``parquet``.

    Raises:
        NotInstalledError: ``extension`` is ``parquet`` and pyarrow is not installed.
    """
    file_type, columns = FILE_TYPES[extension], TABLES[table].columns
    return StreamingHttpResponse(
        file_type.write(columns, TABLES[table].rows(experiment)),
        content_type=file_type.content_type,
        headers={
            "Content-Disposition": f'attachment; filename="{experiment.name}-{table}.{extension}"',
            "Cache-Control": "no-store",
        },
    )
