"""A part is complete, and shows its code, for as long as the answers stand that it asked for."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.core.exceptions import ValidationError
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.models import (
    Invite,
    Labeler,
    Participation,
)
from human_feedback_site.feedback.services import moderation, parts
from human_feedback_site.feedback.services.answers import Revision, revise_answer
from tests.site.coming_by_links import (
    answer,
    arrive,
    ask,
    part_counts,
    shown,
    somebody,
    two_links_by_name,
    two_studies,
    undo,
    work,
)
from tests.site.conftest import Trainer

pytestmark = pytest.mark.both_databases


@pytest.fixture
def links(trainer: Trainer) -> dict[str, Invite]:
    return two_studies(trainer.experiment)


@pytest.fixture
def named(trainer: Trainer) -> dict[str, Invite]:
    return two_links_by_name(trainer.experiment)


def test_undo_requires_earning_the_code_again(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(4)
    api = somebody()
    arrive(api.client, named["first"])
    *_, last = work(api, 2)
    assert shown(api) == (2, "DONE123")
    lease = undo(api, last)["lease"]
    assert shown(api) == (1, "")
    reply = ask(api, held=[lease["uuid"]])
    assert (reply["notice"], reply["renewed"]) == (None, [lease["uuid"]])
    answer(api, lease)
    assert shown(api) == (2, "DONE123")


def test_an_answer_beyond_the_part_may_be_taken_back(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(4)
    api = somebody()
    arrive(api.client, named["second"])
    held = ask(api, 3)["leases"]
    Invite.objects.update(answers_wanted=2)
    labels = [answer(api, lease) for lease in held]
    assert shown(api) == (3, "OTHER77")
    undo(api, labels[0])
    assert shown(api) == (2, "OTHER77")
    undo(api, labels[1])
    assert shown(api) == (1, "")


@pytest.mark.parametrize("end", ["waited", "finished"])
def test_undo_reconsiders_completion(trainer: Trainer, named: dict[str, Invite], end: str) -> None:
    trainer.register(2)
    api = somebody()
    arrive(api.client, named["second"])
    labels = work(api, 2)
    if end == "finished":
        trainer.put(state="finished")
    else:
        ask(api)
        long_ago = Now() - parts.EMPTY_FOR - timedelta(seconds=1)
        Participation.objects.exclude(empty_since=None).update(empty_since=long_ago)
    assert shown(api) == (2, "OTHER77")
    undo(api, labels[0])
    if end == "finished":
        assert shown(api) == (1, "OTHER77")  # it still is
        undo(api, labels[1])
    assert shown(api)[1] == ""


def test_changed_answers_keep_the_count(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(2)
    api = somebody()
    arrive(api.client, named["second"])
    labels = work(api, 2)
    ask(api)
    long_ago = Now() - parts.EMPTY_FOR - timedelta(seconds=1)
    Participation.objects.exclude(empty_since=None).update(empty_since=long_ago)
    assert shown(api) == (2, "OTHER77")
    trainer.register(1)  # it would not be earned by waiting now
    revise_answer(Labeler.objects.get(name="mia"), Revision(uuid4(), UUID(labels[0]["uuid"]), "right"))
    assert shown(api) == (2, "OTHER77")
    assert part_counts() == {named["second"].pk: 2}


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ("", "A researcher has ended your work on this experiment."),
        ("0" * 10, "Too many of your answers"),
    ],
)
def test_no_more_pairs_says_why(trainer: Trainer, named: dict[str, Invite], checks: str, said: str) -> None:
    api = somebody()
    arrive(api.client, named["first"])
    Participation.objects.update(gold_checks=checks)
    moderation.stop(Participation.objects.all())
    assert said in api.client.get("/experiments/hopper/done").content.decode()
    assert "Too many" not in api.client.get("/experiments/hopper/label").content.decode()


# Codes


CODES = {"platform": "prolific", "answers_wanted": "2", "days": "9", "limit": "5", "kind": "anonymous"}


@pytest.mark.parametrize(
    ("code", "other", "refused"), [("A1", "A1", True), ("A1", "a1", True), ("A1", "A2", False)]
)
def test_one_code_for_both_ends_is_refused(trainer: Trainer, code: str, other: str, refused: bool) -> None:
    client = Client()
    client.force_login(trainer.user)
    sent = {**CODES, "completion_code": code, "screen_out_code": other}
    response = client.post("/experiments/hopper/invites", sent)
    assert response.status_code == (400 if refused else 302)
    assert ("Use a different code for stopped labelers" in response.content.decode()) is refused
    assert Invite.objects.count() == (0 if refused else 1)


def test_an_invitation_knows_that_its_codes_differ(trainer: Trainer) -> None:
    day = timezone.now() + timedelta(days=1)
    invite = Invite(experiment=trainer.experiment, kind="anonymous", expires_at=day)
    invite.full_clean()
    invite.completion_code = invite.screen_out_code = "X1"
    with pytest.raises(ValidationError, match="Use a different code for stopped labelers"):
        invite.full_clean()
