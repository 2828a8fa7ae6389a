"""The benchmark of the crowd, short: one seed, few pairs, through HTTP."""

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from benchmarks.crowd import ADVERSARY, RULES, measure, report, site_at
from human_feedback_site.feedback.services.accounts import create_token


@pytest.mark.django_db(transaction=True)
def test_a_crew_of_bots_is_weighed_and_its_adversary_stopped(
    live_server: LiveServer, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "stop_failures", 3)  # there are not pairs enough for more
    settings.TEACHER_STORAGE = str(tmp_path)
    token = create_token(User.objects.create(username="ada", is_staff=True))
    measured = measure(site_at(live_server.url, token, tmp_path), seed=3, comparisons=40, gold=20)
    assert measured.adversary_stopped
    assert ADVERSARY in measured.stopped
    assert measured.adversary_answers <= 30
    assert measured.weighed >= measured.single
    assert "points more often than single labels" in report([measured])
