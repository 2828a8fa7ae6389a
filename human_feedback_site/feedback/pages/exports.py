"""Downloads of an experiment's comparisons and labels as CSV or Parquet files."""

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.errors import NotInstalledError
from human_feedback_site.feedback.pages.views import managed, message
from human_feedback_site.feedback.tables.columns import TABLES
from human_feedback_site.feedback.tables.downloads import download
from human_feedback_site.feedback.tables.files import FILE_TYPES


@require_safe
@login_required
@never_cache
def export(request: HttpRequest, name: str, table: str, extension: str) -> HttpResponseBase:
    """Return one of an experiment's tables as a file download; the user must manage the experiment."""
    if table not in TABLES or extension not in FILE_TYPES:
        raise Http404
    experiment = managed(request, name)
    try:
        return download(experiment, table, extension)
    except NotInstalledError as error:
        return message(request, 501, _("This site can’t write Parquet files"), str(error))
