"""Upgrade from an earlier version with the documented commands."""

import subprocess
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests

from tests.containers.composed import ROOT, Stack
from tests.containers.conftest import IMAGES, Build, MakeStack

MIGRATION = "0002_0_2_0"
"""First migration that the earlier version lacks."""
MIGRATIONS = "SELECT name FROM django_migrations"
SIDES = ("first", "second")


class Labeler:
    """A trainer that submits pairs, and a labeler's browser; both work with any version of the site.

    Attributes:
        labels: the choices that the site acknowledged, by the label's UUID.
    """

    def __init__(self, stack: Stack) -> None:
        self._api = f"{stack.url}/api/v1"
        self._trainer = {"Authorization": f"Bearer {stack.variables['TEACHER_TOKEN']}"}
        self._browser = requests.Session()
        self.labels: dict[uuid.UUID, str] = {}
        store = boto3.client(
            "s3",
            endpoint_url=stack.store_url,
            region_name="us-east-1",
            aws_access_key_id=stack.variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=stack.variables["AWS_SECRET_ACCESS_KEY"],
        )
        for side in SIDES:
            store.put_object(Bucket="clips", Key=f"older/{side}.mp4", Body=b"a clip")
        experiment = {"run_id": str(uuid.uuid4()), "env_id": "x", "prompt": "Which one?", "fps": 20}
        experiment |= {"has_true_reward": False, "invite": "you"}
        created = self._submit("PUT", "/experiments/older", experiment)
        self._browser.get(created["invite_url"], timeout=60).raise_for_status()

    def label(self, choice: str) -> None:
        """Submit a pair and label it."""
        pair = {side: {"key": f"older/{side}.mp4"} for side in SIDES}
        comparison = {"uuid": str(uuid.uuid4()), "phase": "training", "step": 1, "priority": 1, **pair}
        self._submit("POST", "/experiments/older/comparisons", {"comparisons": [comparison]})
        (lease,) = self._answer("/experiments/older/leases", {"count": 1})["leases"]
        label = uuid.uuid4()
        answer = {"uuid": str(label), "lease": lease["uuid"], "choice": choice, "response_ms": 900}
        self._answer("/labels", answer)
        self.labels[label] = choice

    def _submit(self, method: str, path: str, body: dict[str, Any]) -> Any:
        url = self._api + path
        return _json(requests.request(method, url, json=body, headers=self._trainer, timeout=60))

    def _answer(self, path: str, body: dict[str, Any]) -> Any:
        (token,) = [cookie.value for cookie in self._browser.cookies if cookie.name.startswith("csrftoken")]
        headers = {"X-CSRFToken": token or ""}
        return _json(self._browser.post(self._api + path, json=body, headers=headers, timeout=60))


def _json(response: requests.Response) -> Any:
    assert response.ok, response.text
    return response.json()


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Extract the last version without the migration; skip the test if Git doesn't have it."""
    git = ["git", "-C", str(ROOT)]
    path = f"human_feedback_site/feedback/migrations/{MIGRATION}.py"
    log = [*git, "log", "--format=%H", "--diff-filter=A", "--", path]
    commits = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
    archive = [*git, "archive", f"{commits[-1] if commits else 'none'}^"]
    packed = subprocess.run(archive, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip("needs a Git clone with its whole history")
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=packed.stdout, check=True)
    return tmp_path


def test_upgrade_keeps_every_label(earlier: Path, images: str, build: Build, make_stack: MakeStack) -> None:
    build(earlier, "site", f"{IMAGES}-earlier-site")
    stack = make_stack("rl-teacher-test-upgrade")
    stack.write(earlier, f"{IMAGES}-earlier")
    stack.up("web", "beat")
    stack.sign_up()
    labeler = Labeler(stack)
    for choice in ("left", "right", "equal", "cant_tell") * 5:
        labeler.label(choice)
    assert (MIGRATION,) not in stack.query(MIGRATIONS)

    stack.write(ROOT, images)
    stack.documented("run --rm --no-deps setup")
    assert (MIGRATION,) in stack.query(MIGRATIONS)
    labeler.label("left")  # the earlier version still serves
    stack.up()
    labeler.label("right")

    kept = stack.query("SELECT uuid, choice FROM feedback_label WHERE status = 'counted'")
    assert dict(kept) == labeler.labels
