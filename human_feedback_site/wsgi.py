"""WSGI entry point: ``gunicorn human_feedback_site.wsgi``."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")

application = get_wsgi_application()
