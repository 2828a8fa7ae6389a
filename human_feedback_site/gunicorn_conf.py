"""Gunicorn configuration for production, used by ``human_feedback_site.serve``.

Each worker loads the site after the fork, so workers share no connections or open files. Workers are not
restarted after a fixed number of requests, because no memory leak is known.
"""

import os
from pathlib import Path
from typing import Any

from django.conf import settings

from human_feedback_site.environment import WEB_PROCESSES, read_count, require_all_variables
from human_feedback_site.feedback.system_checks import sign_in_obstacle

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")

worker_class = "human_feedback_site.worker.BufferedWorker"
# Threads mostly wait for the database or the clip store, so there are more of them than CPU cores.
threads = 8
workers = read_count("WEB_CONCURRENCY", WEB_PROCESSES, least=1)

# After SIGTERM, requests in progress get this many seconds to finish.
graceful_timeout = 30
# A worker is killed if its main loop sends no heartbeat for this many seconds. Slow requests don't count.
timeout = 60
# Longer than proxies keep idle connections open (mostly 60 s), so that the proxy closes them first.
keepalive = 75
# The heartbeat is a file's modification time, which a slow disk could delay.
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (the file gets a unique name)

# Gunicorn trusts no proxy headers. Only Django reads X-Forwarded-Proto, and only if TEACHER_PUBLIC_URL is an
# https URL, which implies a proxy in front of the site.
forwarded_allow_ips = ""

control_socket_disable = True  # signals are enough to control the server
accesslog = None  # the site logs each request itself, without the secrets in URLs
# Reading the settings here makes invalid settings end the server with one line, instead of each worker.
logconfig_dict = settings.LOGGING
require_all_variables(settings)


def on_starting(server: Any) -> None:
    """Log a warning in the master process if the settings would prevent everyone from signing in."""
    obstacle = sign_in_obstacle()
    if obstacle is not None:
        server.log.warning("%s", obstacle)
