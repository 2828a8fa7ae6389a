"""The web process needs no Redis: labeling goes on whatever becomes of it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site.conftest import Browser, Trainer

LOADED = """
import sys
from django.test import Client
from human_feedback_site.wsgi import application
assert Client().get("/livez", headers={"Host": "localhost"}).status_code == 200
print(sorted({name.partition(".")[0] for name in sys.modules} & {"celery", "kombu", "redis"}))
"""


def test_no_redis_for_labeling(trainer: Trainer, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as redis:
        redis.settimeout(0.1)
        monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{redis.getsockname()[1]}/0")
        trainer.register(2)
        first, second = browser.lease(2)
        browser.undo(browser.answer(first))
        assert browser.answer(second)["status"] == "counted"
        assert len(trainer.decisions()["items"]) == 3
        with pytest.raises(TimeoutError):
            redis.accept()


def test_the_web_process_loads_neither_celery_nor_redis(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TEACHER_STATE_DIR": str(tmp_path),
        "REDIS_URL": "redis://127.0.0.1:1/0",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
