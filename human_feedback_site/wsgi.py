"""WSGI entry point: ``gunicorn human_feedback_site.wsgi``."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.wsgi import get_wsgi_application

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")


def below(path: str, application: "WSGIApplication") -> "WSGIApplication":
    """Wrap a WSGI application so that it's served under the URL prefix ``path``.

    The prefix is stripped from request paths unless the reverse proxy has already done so. Requests without
    the prefix are also served, because local health probes and trainers don't use it.
    """

    def served(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        requested = environ.get("PATH_INFO", "")
        if requested == path or requested.startswith(f"{path}/"):
            environ["PATH_INFO"] = requested.removeprefix(path)
        environ["SCRIPT_NAME"] = path
        return application(environ, start_response)

    return served


application: "WSGIApplication" = get_wsgi_application()
if settings.FORCE_SCRIPT_NAME:
    application = below(settings.FORCE_SCRIPT_NAME, application)
