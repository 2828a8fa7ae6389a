"""Tables as downloads: sent while they are read, however long they are."""

from django.http import StreamingHttpResponse

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.tables.columns import TABLES
from human_feedback_site.feedback.tables.files import FILE_TYPES


def download(experiment: Experiment, table: str, extension: str) -> StreamingHttpResponse:
    """Return a table of an experiment as a file of that type.

    Raises :class:`NotInstalledError` for Parquet where pyarrow is missing.
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
