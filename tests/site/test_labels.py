"""Answers are never lost, doubled or inverted; undo and revision append answers too."""

from typing import Any
from uuid import uuid4

import pytest

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import Comparison, Experiment, Label, Lease, Undo
from human_feedback_site.feedback.models.querysets import live_leases
from tests.site.conftest import Browser, Invited, Trainer, expire, revise, side_of, stored

pytestmark = pytest.mark.both_databases


def last_decision(trainer: Trainer) -> tuple[object, ...]:
    item = trainer.decisions()["items"][-1]
    return item["decision"], item["probability"], item["n_labels"]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("choice", "unswapped", "when_swapped"),
    [
        ("left", ("first", 1.0, 1), ("second", 0.0, 1)),
        ("right", ("second", 0.0, 1), ("first", 1.0, 1)),
        ("equal", ("equal", 0.5, 1), ("equal", 0.5, 1)),
        ("cant_tell", ("cant_tell", None, 1), ("cant_tell", None, 1)),
    ],
)
def test_the_server_takes_the_screen_out_of_an_answer(
    trainer: Trainer,
    browser: Browser,
    swapped: bool,
    choice: str,
    unswapped: tuple[object, ...],
    when_swapped: tuple[object, ...],
) -> None:
    [uuid] = trainer.register()
    [lease] = browser.lease()
    Lease.objects.update(swapped=swapped)
    assert browser.answer(lease, choice)["status"] == "counted"
    [item] = trainer.decisions()["items"]
    assert item["comparison"] == uuid
    assert last_decision(trainer) == (when_swapped if swapped else unswapped)


@pytest.mark.parametrize("change", [{"choice": "right"}, {"response_ms": 1}, {"lease": None}], ids=str)
def test_answer_uuid_is_used_once(trainer: Trainer, browser: Browser, change: dict[str, object]) -> None:
    trainer.register(2)
    one, other = browser.lease(2)
    body = browser.label(one)
    browser.post("/labels", body)
    changed = {**body, **change}
    changed["lease"] = changed["lease"] or other["uuid"]
    assert browser.send("POST", "/labels", changed).status_code == 409
    assert Label.objects.get().choice == "left"


def test_late_answer_is_surplus(trainer: Trainer, invite: Invited) -> None:
    trainer.register(2)
    late, other = invite("late"), invite("other")
    leases = late.lease(2)
    expire(*leases)
    taken = other.lease(2)
    other.answer(taken[0])
    given = {lease["comparison"]: late.answer(lease)["status"] for lease in leases}
    assert given == {taken[0]["comparison"]: "surplus", taken[1]["comparison"]: "counted"}
    assert Label.objects.count() == 3
    assert [item["n_labels"] for item in trainer.decisions()["items"]] == [1, 1]


def test_answer_under_an_old_lease(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    [old] = browser.lease()
    expire(old)
    [new] = browser.lease()
    assert browser.answer(old)["status"] == "counted"
    assert browser.ask(held=[new["uuid"]])["lost"] == [new["uuid"]]
    assert browser.answer(new)["status"] == "surplus"


@pytest.mark.parametrize("state", ["paused", "finished"])
def test_answers_are_taken_after_a_pause_or_the_end(browser: Browser, lease: Any, state: str) -> None:
    Experiment.objects.update(state=state)
    assert browser.answer(lease)["status"] == "counted"
    assert browser.undo({"uuid": str(Label.objects.get().uuid)})["lease"] is None


def test_the_labelers_own_answers_are_counted(trainer: Trainer, invite: Invited) -> None:
    trainer.register(4)
    one, other = invite("one"), invite("other")
    other.answer(other.lease()[0])
    labels = [one.answer(lease) for lease in one.lease(3)]
    assert [label["answered"] for label in labels] == [1, 2, 3]
    assert one.undo(labels[0])["answered"] == 2
    assert one.ask()["answered"] == 2


def test_undo_withdraws_the_decision_and_restores_the_lease(trainer: Trainer, browser: Browser) -> None:
    [uuid] = trainer.register()
    [lease] = browser.lease()
    label = browser.answer(lease)
    again = browser.undo(label)["lease"]
    assert again["comparison"] == uuid
    assert again["uuid"] != lease["uuid"]
    old, new = (Lease.objects.get(uuid=each["uuid"]) for each in (lease, again))
    assert (old.swapped, new.shown) == (new.swapped, True)
    assert last_decision(trainer) == (None, None, 0)
    assert trainer.decisions()["open"] == 1
    browser.answer(again, "equal")
    assert last_decision(trainer) == ("equal", 0.5, 1)
    assert [item["seq"] for item in trainer.decisions()["items"]] == [1, 2, 3]
    assert Label.objects.count() == 2


def test_an_undone_pair_is_not_given_to_somebody_else_at_once(trainer: Trainer, invite: Invited) -> None:
    trainer.register()
    one, other = invite("one"), invite("other")
    one.undo(one.answer(one.lease()[0]))
    assert other.lease() == []


def test_undone_lease_never_expires(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    again = browser.undo(browser.answer(browser.lease()[0]))["lease"]
    expire(again)
    [lease] = browser.lease()
    assert lease["comparison"] == again["comparison"]


def test_sending_an_undo_again_changes_nothing(trainer: Trainer, browser: Browser, label: Any) -> None:
    path, body = f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())}
    first, again = (browser.send("POST", path, body) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["lease"]["uuid"] == again.json()["lease"]["uuid"]  # type: ignore[attr-defined]
    assert Undo.objects.count() == 1
    assert trainer.decisions()["last_seq"] == 2


def test_repeated_undo_does_not_return_an_answered_lease(browser: Browser, label: Any) -> None:
    path, body = f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())}
    browser.answer(browser.post(path, body)["lease"])
    assert browser.post(path, body)["lease"] is None


def test_an_answer_is_undone_once(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    label, other = (browser.answer(lease) for lease in browser.lease(2))
    browser.undo(label)
    known = str(Undo.objects.get().uuid)
    assert browser.send("POST", f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())}).status_code == 409
    assert browser.send("POST", f"/labels/{other['uuid']}/undo", {"uuid": known}).status_code == 409


def test_undo_of_a_surplus_answer(trainer: Trainer, invite: Invited) -> None:
    trainer.register()
    late, other = invite("late"), invite("other")
    [lease] = late.lease()
    expire(lease)
    other.answer(other.lease()[0])
    surplus = late.answer(lease)
    assert late.undo(surplus)["lease"] is None
    assert trainer.decisions()["last_seq"] == 1
    assert Comparison.objects.get().status == Comparison.Status.ANSWERED


def test_decision_by_overlap(trainer: Trainer, invite: Invited) -> None:
    trainer.overlap(3)
    trainer.register()
    browsers = [invite(name) for name in ("a", "b", "c")]
    labels = []
    for browser, which in zip(browsers, ("first", "second", "second"), strict=True):
        [lease] = browser.lease()
        labels.append(browser.answer(lease, side_of(lease, which)))
    browsers[1].undo(labels[1])
    items = trainer.decisions()["items"]
    assert [item["decision"] for item in items] == ["first", "equal", "second", "equal"]
    assert [item["n_labels"] for item in items] == [1, 2, 3, 2]
    assert items[2]["probability"] == pytest.approx(1 / 3)


def test_the_new_answer_counts_and_the_old_one_stays(trainer: Trainer, browser: Browser) -> None:
    [uuid] = trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    before = trainer.decisions()["items"][-1]["decision"]
    new = revise(label, "right")
    after = trainer.decisions()["items"][-1]
    assert {before, after["decision"]} == {"first", "second"}
    assert after["n_labels"] == 1
    old = Label.objects.get(uuid=label["uuid"])
    assert (old.choice, old.undo.label_id) == ("left", old.pk)
    assert (new.status, new.swapped, new.comparison_id) == ("counted", old.swapped, old.comparison_id)
    assert stored(uuid).status == Comparison.Status.ANSWERED
    assert not Lease.objects.filter(live_leases()).exists()


def test_it_may_be_sent_again(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label, uuid = browser.answer(browser.lease()[0], "left"), uuid4()
    assert revise(label, "equal", uuid) == revise(label, "equal", uuid)
    assert (Label.objects.count(), Undo.objects.count()) == (2, 1)


def test_the_same_answer_again_is_no_change(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    assert str(revise(label, "left").uuid) == label["uuid"]
    assert (Label.objects.count(), Undo.objects.count()) == (1, 0)


def test_undone_or_changed_answer_cannot_be_changed(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    revise(label, "right")
    for choice in ("left", "equal"):
        with pytest.raises(ConflictError):
            revise(label, choice)
    assert Label.objects.count() == 2


def test_a_finished_experiment_takes_a_change(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0], "left")
    Experiment.objects.update(state="finished")
    assert revise(label, "equal").status == "counted"
    assert trainer.decisions()["items"][-1]["decision"] == "equal"
