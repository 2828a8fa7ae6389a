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
    """Serve an application below a path, whether or not the proxy in front leaves it in the address.

    What comes without it is served as well: probes and trainers beside the site know nothing of the path.
    """

    def served(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        asked = environ.get("PATH_INFO", "")
        if asked == path or asked.startswith(f"{path}/"):
            environ["PATH_INFO"] = asked.removeprefix(path)
        environ["SCRIPT_NAME"] = path
        return application(environ, start_response)

    return served


application: "WSGIApplication" = get_wsgi_application()
if settings.FORCE_SCRIPT_NAME:
    application = below(settings.FORCE_SCRIPT_NAME, application)
