"""The upgrade of a site that was filled by an earlier version, by the commands of the page about deployment."""

import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests

from tests.containers.composed import ROOT, Stack
from tests.containers.conftest import IMAGES

LATER = "human_feedback_site/feedback/migrations/0020_webhooks.py"
"""What the earlier version does not have yet."""

SIDES = ("first", "second")


class Labeler:
    """A labeler's browser and the trainer that asks, on a site of any version."""

    def __init__(self, stack: Stack) -> None:
        self._api = f"{stack.url}/api/v1"
        self._trainer = {"Authorization": f"Bearer {stack.secrets['TEACHER_TOKEN']}"}
        self._browser = requests.Session()
        self.labels: dict[uuid.UUID, str] = {}
        experiment = {"run_id": str(uuid.uuid4()), "env_id": "x", "prompt": "Which one?", "fps": 20}
        experiment |= {"has_true_reward": False, "invite": "you"}
        store = boto3.client("s3", **stack.store())
        for side in SIDES:
            store.put_object(Bucket="clips", Key=f"older/{side}.mp4", Body=b"a clip")
        created = self._ask("PUT", "/experiments/older", experiment)
        self._browser.get(created["invite_url"], timeout=60).raise_for_status()

    def label(self, choice: str) -> None:
        """Ask about one more pair, and answer."""
        pair = {side: {"key": f"older/{side}.mp4"} for side in SIDES}
        comparison = {"uuid": str(uuid.uuid4()), "phase": "training", "step": 1, "priority": 1, **pair}
        self._ask("POST", "/experiments/older/comparisons", {"comparisons": [comparison]})
        (lease,) = self._answer("/experiments/older/leases", {"count": 1})["leases"]
        label = uuid.uuid4()
        self._answer(
            "/labels", {"uuid": str(label), "lease": lease["uuid"], "choice": choice, "response_ms": 900}
        )
        self.labels[label] = choice

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> Any:
        return self._json(
            requests.request(method, self._api + path, json=body, headers=self._trainer, timeout=60)
        )

    def _answer(self, path: str, body: dict[str, Any]) -> Any:
        (token,) = [cookie.value for cookie in self._browser.cookies if cookie.name.startswith("csrftoken")]
        headers = {"X-CSRFToken": token or ""}
        return self._json(self._browser.post(self._api + path, json=body, headers=headers, timeout=60))

    @staticmethod
    def _json(response: requests.Response) -> Any:
        assert response.ok, response.text
        return response.json()


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The files of the last version without the migration."""
    git = ["git", "-C", str(ROOT)]
    log = [*git, "log", "--format=%H", "--diff-filter=A", "--", LATER]
    found = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
    archive = subprocess.run([*git, "archive", f"{found[-1]}^"], capture_output=True, check=False) if found else None
    if archive is None or archive.returncode:
        pytest.skip("the project's history is not here; clone it with git, with all commits")
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive.stdout, check=True)
    return tmp_path


def test_an_upgrade_migrates_a_filled_database_and_keeps_every_label(
    earlier: Path,
    images: str,
    build: Callable[[Path, str, str], None],
    make_stack: Callable[[str], Stack],
) -> None:
    build(earlier, "site", f"{IMAGES}-earlier-site")
    stack = make_stack("rl-teacher-test-upgrade")
    stack.write(earlier, f"{IMAGES}-earlier")
    stack.up("web", "beat")
    stack.sign_up()
    labeler = Labeler(stack)
    for choice in ("left", "right", "equal", "cant_tell") * 5:
        labeler.label(choice)
    assert ("0020_webhooks",) not in stack.query("SELECT name FROM django_migrations")

    stack.write(ROOT, images)
    stack.documented("run --rm --no-deps setup")
    assert ("0020_webhooks",) in stack.query("SELECT name FROM django_migrations")
    labeler.label("left")  # with the old web, which is still there
    stack.up()
    labeler.label("right")

    kept = stack.query("SELECT uuid, choice FROM feedback_label WHERE status = 'counted'")
    assert dict(kept) == labeler.labels
