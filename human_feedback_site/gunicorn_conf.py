"""Gunicorn in production, as ``human_feedback_site.serve`` starts it.

Each worker loads the site for itself, so that nothing opened before a fork is shared. Workers are not
replaced after a number of requests, because none is known to grow.
"""

import os
from pathlib import Path
from typing import Any

from django.conf import settings

from human_feedback_site.environment import WEB_PROCESSES, read_count
from human_feedback_site.feedback.system_checks import sign_in_obstacle

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")

# A thread waits for the database or the media store most of its time: more of them than processors.
worker_class = "gthread"
threads = 8
workers = read_count("WEB_CONCURRENCY", WEB_PROCESSES, least=1)

# SIGTERM lets no new request in and gives those in progress this long; then the workers end anyway.
graceful_timeout = 30
# For a worker whose main loop shows no sign of life; how long a request takes does not count.
timeout = 60
# Longer than proxies keep their side of a connection open (60 s in most): they must be the ones who close it.
keepalive = 75
# The sign of life is a file's time; on a disk that is slow to write it could come late.
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (it gets a name that is new)

# No peer's word is taken for another address or scheme. Django alone reads X-Forwarded-Proto, and only where
# an https TEACHER_PUBLIC_URL says that a proxy stands in front.
forwarded_allow_ips = ""

control_socket_disable = True  # signals do
accesslog = None  # the site writes a line for each request, without the secrets that addresses hold
# Settings that cannot work end the server here, with one line, and not each worker.
logconfig_dict = settings.LOGGING


def on_starting(server: Any) -> None:
    """Warn once, in the master, where nobody could sign in."""
    obstacle = sign_in_obstacle()
    if obstacle is not None:
        server.log.warning("%s", obstacle)
