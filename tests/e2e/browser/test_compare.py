"""``teach compare`` from its films to the report, with a person in a browser between them."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from django.test import Client
from playwright.sync_api import expect

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.services import accounts
from teacher.cli import compare
from teacher.labeling import people
from teacher.runs import comparing
from tests.e2e.browser.conftest import LabelingPage, Site, faults


def test_a_person_ranks_policies_and_says_why(
    site: Site, labeling: LabelingPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, clip in zip(("red", "blue"), site.clips, strict=True):
        Path(name).mkdir()
        for number in range(2):
            shutil.copyfile(clip, Path(name, f"{number}.mp4"))
    opened = people.Site(site.url, accounts.create_token(site.owner), str(site.media))
    monkeypatch.setattr(comparing, "open_site", lambda *_: opened)
    monkeypatch.setattr(comparing, "POLL_SECONDS", 0.2)
    statuses: list[int] = []
    words = ["red", "blue", "-n", "week", "--reasons", "-l", "6", "--prompt", "Which one is red?"]
    command = threading.Thread(target=lambda: statuses.append(compare.main(words)))
    command.start()
    while not Experiment.objects.filter(name="week", comparisons__isnull=False).exists():
        command.join(0.05)
        assert command.is_alive()
    week = Experiment.objects.get(name="week")
    accounts.invite(week, "mia")
    labeling.open(accounts.invite_url(week, "mia", site.url))
    why = labeling.page.get_by_label("Why?")
    for number in range(1, 7):
        labeling.watch()
        side = labeling.side_of("red")
        if number == 1:
            assert not faults(labeling.page)
            why.fill("the other one is left of blue")  # keys are text here
            why.press("Enter")
        labeling.page.keyboard.press({"left": "ArrowLeft", "right": "ArrowRight"}[side])
        labeling.expect_saved(number)
        if number < 6:
            expect(why).to_have_value("")
    command.join(60)
    assert statuses == [0]
    report = json.loads(Path("comparisons/week/report.json").read_text())
    assert [each["name"] for each in report["policies"]] == ["red", "blue"]
    assert report["wins"][0][1] == report["answers"] >= 6
    [reason] = report["reasons"]
    assert (reason["labeler"], reason["said"]) == ("mia", "red > blue")
    assert reason["text"] == "the other one is left of blue"
    week.refresh_from_db()
    assert week.state == "finished"
    researcher = Client()
    researcher.force_login(site.owner)
    told = week.comparisons.exclude(labels__reason="").get(labels__isnull=False)
    page = researcher.get(f"/experiments/week/comparisons/{told.uuid}").content.decode()
    assert "the other one is left of blue" in page
