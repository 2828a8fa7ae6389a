"""Models as labelers: what they get, what counts, and how their answers are marked."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client

from human_feedback_site.feedback.models import Comparison, Experiment, Labeler, Lease
from tests.site.conftest import Browser, Trainer

Model = Callable[..., Browser]
ALL_KINDS = ["pair", "graded", "rating", "best_worst"]


@pytest.fixture
def model(trainer: Trainer) -> Model:
    """Invite a model that may decide a share of the questions alone, and sign it in."""

    def invite(share: float = 0.0, name: str = "qwen") -> Browser:
        body = {"labeler": name, "labeler_kind": "model", "share": share}
        link = trainer.post(f"{trainer.path}/invites", body)["invite_url"]
        return Browser(link, trainer.name)

    return invite


def asked(model: Browser, count: int = 1) -> list[Any]:
    return list(model.lease(count, labeler_kind="model", kinds=ALL_KINDS))


@pytest.mark.both_databases
def test_a_model_gets_its_share_and_what_people_have_answered(
    trainer: Trainer, browser: Browser, model: Model
) -> None:
    trainer.overlap(4)
    trainer.register(10)
    assert asked(model()) == []
    lease = browser.lease()[0]
    browser.answer(lease)
    assert [each["comparison"] for each in asked(model(), 9)] == [lease["comparison"]]
    found = {each["comparison"] for each in asked(model(0.5, "half"), 10)}
    allowed = {str(each.uuid) for each in Comparison.objects.all() if each.is_left_to_models(0.5)}
    assert found == allowed | {lease["comparison"]}
    assert 3 <= len(allowed) <= 7
    assert len(asked(model(1.0, "all"), 10)) == 10


@pytest.mark.both_databases
def test_people_get_what_is_not_left_to_a_model_at_work(
    trainer: Trainer, browser: Browser, model: Model
) -> None:
    trainer.register(10)
    left = {str(each.uuid) for each in Comparison.objects.all() if each.is_left_to_models(0.5)}
    at_work = model(0.5)
    first, second, *_ = asked(at_work, 10)
    at_work.answer(first, "cant_tell")  # unsure
    at_work.answer(second)
    others = {each["comparison"] for each in browser.lease(10)}
    assert others == {str(each.uuid) for each in Comparison.objects.all()} - left | {first["comparison"]}
    Experiment.objects.update(models_seen_at=Now() - timedelta(minutes=6))  # the model is gone
    Lease.objects.update(expires_at=Now())
    assert {each["comparison"] for each in browser.lease(10)} | {second["comparison"]} == left | others


@pytest.mark.parametrize(
    ("reason", "alone"),
    [
        ("disagreement:5:5", False),
        ("disagreement:1:2", True),
        ("disagreement:4:1:1:0", True),
        ("disagreement:2:2:1:1", False),
        ("disagreement", True),
        ("random", True),
        ("", True),
    ],
)
def test_people_come_first_if_the_members_of_the_predictor_disagree(
    trainer: Trainer, model: Model, reason: str, alone: bool
) -> None:
    trainer.register(reason=reason)
    Comparison.objects.update(id=1009)  # the first whatever the share
    assert len(asked(model(0.5))) == alone
    assert len(asked(model(1.0))) == 1  # it decides all


def test_an_unsure_model_leaves_the_question_to_people(
    trainer: Trainer, browser: Browser, model: Model
) -> None:
    trainer.register()
    Comparison.objects.update(id=1009)
    unsure = model(0.9)
    assert unsure.answer(asked(unsure)[0], "cant_tell")["status"] == "surplus"
    assert trainer.decisions()["items"] == []
    assert asked(unsure) == []
    browser.answer(browser.lease()[0], "left")
    [decided] = trainer.decisions()["items"]
    assert decided["decision"] in {"first", "second"}
    assert decided["n_labels"] == 1


def test_a_model_that_decides_everything_may_be_unsure(trainer: Trainer, model: Model) -> None:
    trainer.register()
    alone = model(1.0)
    assert alone.answer(asked(alone)[0], "cant_tell")["status"] == "counted"
    assert trainer.decisions()["items"][0]["decision"] == "cant_tell"


def test_a_lease_decides_nothing_after_the_share_was_lowered(trainer: Trainer, model: Model) -> None:
    trainer.register()
    before = model(1.0)
    [lease] = asked(before)
    model(0.0)
    assert before.answer(lease)["status"] == "surplus"
    assert trainer.decisions()["items"] == []


def test_a_model_answers_for_comparison_what_people_decided(
    trainer: Trainer, browser: Browser, model: Model
) -> None:
    trainer.register(2)
    label = browser.answer(browser.lease()[0])
    watched = model()
    [lease] = asked(watched)
    assert watched.answer(lease)["status"] == "surplus"
    assert asked(watched) == []
    assert len(trainer.decisions()["items"]) == 1
    browser.undo(label)  # the model does not take the place
    assert trainer.decisions()["items"][-1]["decision"] is None


def test_a_model_takes_no_prefetched_question_from_a_person(
    trainer: Trainer, browser: Browser, model: Model
) -> None:
    trainer.register(4)
    browser.lease(4)
    assert asked(model(1.0)) == []


def test_a_model_needs_an_invitation_for_a_model(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    request = {"count": 1, "labeler_kind": "model"}
    refused = browser.send("POST", f"{trainer.path}/leases", request)
    assert refused.status_code == 409
    assert "teach site invite EXPERIMENT NAME --model" in refused.content.decode()
    browser.answer(browser.lease()[0])
    taken = trainer.send("POST", f"{trainer.path}/invites", {"labeler": "you", "labeler_kind": "model"})
    assert taken.status_code == 409
    assert "'you' has answered as a person" in taken.content.decode()


def test_the_command_invites_a_model(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"site_url": "http://x.test"}
    call_command("create_invite", trainer.name, "qwen", model=True, share=0.25, **options)
    assert capsys.readouterr().out.startswith("http://x.test/j/")
    labeler = Labeler.objects.get(name="qwen")
    assert (labeler.kind, labeler.participations.get().share) == ("model", 0.25)
    for values in ({"model": True, "share": 1.5}, {"share": 0.5}):
        with pytest.raises(CommandError, match="--share is for --model, and from 0 to 1"):
            call_command("create_invite", trainer.name, "b", **options, **values)


def test_answers_of_machines_are_marked_and_exported(
    trainer: Trainer, researcher_browser: Client, model: Model
) -> None:
    trainer.register()
    alone = model(1.0)
    alone.answer(asked(alone)[0])
    home = f"/experiments/{trainer.name}"
    for path in ("/", "/comparisons", f"/comparisons/{Comparison.objects.get().uuid}"):
        page = researcher_browser.get(
            f"{home}{path}", follow=True, headers={"Accept-Language": "en"}
        ).content.decode()
        assert re.search(r'>qwen(</\w+>)? <span class="badge">model</span>', page), path
    exported = researcher_browser.get(f"/api/v1{trainer.path}/labels.csv").getvalue().decode()
    heading, row = exported.splitlines()
    assert dict(zip(heading.split(","), row.split(","), strict=True))["labeler_kind"] == "model"
