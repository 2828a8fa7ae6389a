"""Metrics of a production site: each of its processes says the same."""

import re
from uuid import uuid4

import requests
from django.contrib.auth.models import User

from human_feedback_site.feedback.models import Experiment, SequenceCounter
from human_feedback_site.feedback.services import accounts, parts
from tests.databases import Using
from tests.site.production.conftest import Production

TOKEN = "only-for-tests-" + "0123456789" * 3


def label(site: Production, using: Using) -> None:
    """Let somebody have given three labels, and withdrawn one."""
    with using(site.environment["DATABASE_URL"]):
        owner = User.objects.create(username="ada", is_staff=True)
        experiment = Experiment.objects.create(
            name="hopper", owner=owner, run_id=uuid4(), fps=20, has_true_reward=False
        )
        SequenceCounter.objects.create(experiment=experiment, last_seq=4)
        labeler = accounts.invite(experiment, "bob")
        parts.add(accounts.participation_of(labeler, experiment).pk, None, answers=3, undone=1)


def scrape(url: str) -> dict[str, str]:
    """Read the counters over a connection of its own, as plain HTTP although people come by https."""
    answer = requests.get(
        f"{url}/metrics",
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=60,
        allow_redirects=False,
    )
    assert answer.status_code == 200
    return dict(re.findall(r'^rl_teacher_(\w+_total){experiment="hopper"} (.+)$', answer.text, re.MULTILINE))


def test_all_processes_report_the_same_counts(site: Production, using: Using) -> None:
    """A count that a process keeps for itself would begin at 0 in each."""
    label(site, using)
    site.start(WEB_CONCURRENCY="2", TEACHER_METRICS_TOKEN=TOKEN)
    url = site.url
    expected = {"labels_total": "3.0", "withdrawn_labels_total": "1.0", "decisions_total": "4.0"}
    assert [scrape(url) for _ in range(8)] == [expected] * 8
    assert requests.get(f"{url}/metrics", timeout=60, allow_redirects=False).status_code == 404
    assert TOKEN not in site.text()
