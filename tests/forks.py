"""Run short Python programs in processes that are forked from one which has loaded their libraries.

Loading them takes most of the time of a command such as ``manage.py backup``. Everything that depends on
variables, such as Django's settings, is loaded by each program for itself.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARIES = (
    *("django.contrib.admin.sites", "django.contrib.auth.hashers", "django.contrib.postgres.fields"),
    *("django.core.management", "django.core.serializers.json", "django.db.backends.postgresql.base"),
    *("django.db.backends.sqlite3.base", "django.db.models", "django.template.loader", "django.test"),
    *("botocore.client", "botocore.session", "celery.app", "dj_database_url", "jinja2", "psycopg"),
    *("requests", "rest_framework.serializers", "uritemplate", "whitenoise.middleware", "yaml"),
)


def run_python(*words: str, environment: Mapping[str, str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run ``python WORDS``, a script or ``-c CODE``, with these variables alone."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "errors")]
        request = {"words": words, "environment": dict(environment), "cwd": str(cwd)}
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({**request, "files": [str(path) for path in files]}) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        said = [path.read_text() for path in files]
    return subprocess.CompletedProcess(list(words), status, *said)


@functools.cache
def _server() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.forks"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # it ends with its input
    return server


def _serve() -> None:
    """Fork a process for each request, and answer with its status; returns in such a process alone."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return _become(json.loads(line))
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def _become(request: Mapping[str, object]) -> None:
    """Take on the words, variables, folder and output of a program."""
    words, environment = request["words"], request["environment"]
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["cwd"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    files = request["files"]
    assert isinstance(files, Sequence)
    for descriptor, path in enumerate(files, 1):
        os.dup2(os.open(str(path), os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = words


if __name__ == "__main__":
    gc.disable()
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    gc.enable()
    _serve()
    if sys.argv[0] == "-c":
        exec(sys.argv.pop(1), {"__name__": "__main__"})  # noqa: S102 - a test's own
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
