"""A label that waits counts as soon as a place is free; one lease gives one answer, to whatever it counts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.db.models.functions import Now
from django.utils import timezone

from human_feedback_site.feedback import crowd, labeling, monitoring
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Invite,
    Label,
    Labeler,
    Lease,
    Outcome,
    Participation,
)
from human_feedback_site.feedback.services import chores, experiments, moderation, quality, settling
from human_feedback_site.feedback.services.leases import live

if TYPE_CHECKING:
    from tests.site.conftest import Browser, Trainer

Invited = Callable[[str], "Browser"]
Expire = Callable[..., None]
SideOf = Callable[[Any, str], str]


@pytest.fixture
def wait(invite: Invited, expire: Expire, side_of: SideOf) -> Callable[..., tuple[Browser, Any]]:
    """Let ``late`` answer the only pair while ``other`` holds it; return ``other`` and its lease."""

    def wait(answer: str = "first") -> tuple[Browser, Any]:
        late, other = invite("late"), invite("other")
        [lease] = late.lease()
        expire(lease)
        [taken] = other.lease()
        assert late.answer(lease, side_of(lease, answer))["status"] == "surplus"
        return other, taken

    return wait


def decided(trainer: Trainer) -> list[tuple[str | None, int]]:
    """What the feed says of each comparison now, and by how many labels."""
    newest = {item["comparison"]: item for item in trainer.decisions()["items"]}
    return [(item["decision"], item["n_labels"]) for item in newest.values()]


def labels_of(name: str) -> list[str]:
    return list(Label.objects.filter(labeler__name=name).order_by("pk").values_list("status", flat=True))


def own(name: str) -> Any:
    """The participation of a labeler, as something that may be done to."""
    return Participation.objects.filter(labeler__name=name)


# A label that waits


@pytest.mark.parametrize("looks", ["the trainer", "the labeler", "a chore"])
def test_answers_that_came_late_count_when_the_leases_of_another_expire(
    trainer: Trainer, invite: Invited, expire: Expire, side_of: SideOf, looks: str
) -> None:
    trainer.register(3)
    late, other = invite("late"), invite("other")
    leases = late.lease(3)
    expire(*leases)
    taken = other.lease(3)
    kept = [late.answer(lease, side_of(lease, "second")) for lease in leases]
    assert [(label["status"], label["answered"]) for label in kept] == [("surplus", n) for n in (1, 2, 3)]
    assert (decided(trainer), trainer.decisions()["open"]) == ([], 3)
    expire(*taken)
    if looks == "the labeler":
        assert late.ask(3)["leases"] == []
    elif looks == "a chore":
        assert chores.settle_labels() == "3 counted"
    else:
        trainer.decisions()
    assert labels_of("late") == ["counted"] * 3
    assert set(Comparison.objects.values_list("status", "n_labels")) == {("answered", 1)}
    assert decided(trainer) == [("second", 1)] * 3
    assert trainer.decisions()["open"] == 0
    assert chores.settle_labels() == "0 counted"


def test_a_free_place_is_given_to_nobody_while_a_label_waits_for_it(
    trainer: Trainer, invite: Invited, expire: Expire, wait: Callable[..., Any]
) -> None:
    trainer.register()
    other, taken = wait()
    expire(taken)
    who = invite("newcomer")
    assert other.ask(held=[taken["uuid"]])["lost"] == [taken["uuid"]]
    assert who.lease() == []
    assert decided(trainer) == [("first", 1)]


def test_a_pair_fetched_ahead_is_not_taken_over_while_a_label_waits_for_its_place(
    trainer: Trainer, invite: Invited, expire: Expire
) -> None:
    trainer.register(2)
    late, other = invite("late"), invite("other")
    leases = late.lease(2)
    expire(*leases)
    assert len(other.lease(2)) == 2
    for lease in leases:
        late.answer(lease)
    assert invite("newcomer").lease() == []
    assert Lease.objects.filter(live(), labeler__name="other").count() == 2


def test_of_labels_that_wait_the_oldest_counts_first(
    trainer: Trainer, expire: Expire, side_of: SideOf, wait: Callable[..., Any]
) -> None:
    trainer.register()
    other, taken = wait("first")
    expire(taken)
    assert other.answer(taken, side_of(taken, "second"))["status"] == "surplus"
    assert (labels_of("late"), labels_of("other")) == (["counted"], ["surplus"])
    assert decided(trainer) == [("first", 1)]


def test_a_late_answer_behind_one_that_waits_counts_where_there_are_places_for_both(
    trainer: Trainer, expire: Expire, side_of: SideOf, wait: Callable[..., Any]
) -> None:
    trainer.register()
    other, taken = wait("first")
    expire(taken)
    Comparison.objects.update(wanted=2)
    late_again = other.answer(taken, side_of(taken, "first"))
    assert (late_again["status"], late_again["answered"]) == ("counted", 1)
    assert decided(trainer) == [("first", 2)]


def test_who_holds_the_pair_answers_it_though_another_label_waits(
    trainer: Trainer, side_of: SideOf, wait: Callable[..., Any]
) -> None:
    trainer.register()
    other, taken = wait("first")
    assert other.answer(taken, side_of(taken, "second"))["status"] == "counted"
    assert labels_of("late") == ["surplus"]
    assert decided(trainer) == [("second", 1)]
    other.undo({"uuid": str(Label.objects.get(labeler__name="other").uuid)})
    assert decided(trainer) == [(None, 0)]  # it has the pair again


FREED: dict[str, Callable[[Trainer], object]] = {
    "the lease is ended": lambda trainer: moderation.end_claims(Lease.objects.all()),
    "its holder is stopped": lambda trainer: quality.stop(own("other")),
    "its holder is blocked": lambda trainer: moderation.block(own("other"), trainer.user),
    "more labelers are wanted": lambda trainer: trainer.overlap(2),
    "one label more is wanted": lambda trainer: moderation.request_label(Comparison.objects.all()),
    "it is closed": lambda trainer: moderation.close(Comparison.objects.all()),
}


@pytest.mark.parametrize("freed", FREED)
def test_what_waits_counts_at_once_where_somebody_frees_a_place(
    trainer: Trainer, wait: Callable[..., Any], freed: str
) -> None:
    trainer.register()
    wait()
    FREED[freed](trainer)
    assert labels_of("late") == ["counted"]
    [comparison] = Comparison.objects.all()
    assert comparison.n_labels == 1
    assert comparison.status == ("open" if comparison.wanted > 1 else "answered")
    assert decided(trainer) == [("first", 1)]


def test_an_answer_taken_back_where_no_work_is_given_leaves_its_place_to_one_that_waits(
    trainer: Trainer, expire: Expire, side_of: SideOf, wait: Callable[..., Any]
) -> None:
    trainer.register()
    other, taken = wait("first")
    label = other.answer(taken, side_of(taken, "second"))
    Experiment.objects.update(state="paused")
    assert other.undo(label)["lease"] is None
    assert decided(trainer) == [("first", 1)]


def test_the_labels_of_who_is_blocked_leave_their_places_to_those_that_wait(
    trainer: Trainer, side_of: SideOf, wait: Callable[..., Any]
) -> None:
    trainer.register()
    other, taken = wait("first")
    other.answer(taken, side_of(taken, "second"))
    moderation.block(own("other"), trainer.user)
    assert decided(trainer) == [("first", 1)]
    assert [item["decision"] for item in trainer.decisions()["items"]] == ["second", "first"]
    assert (own("other").get().answered, own("late").get().answered) == (0, 1)


def test_a_pair_with_a_label_that_waits_is_not_cancelled(
    trainer: Trainer, expire: Expire, wait: Callable[..., Any]
) -> None:
    uuids = trainer.register()
    _, taken = wait()
    assert trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})["cancelled"] == 0
    assert experiments.finish(Experiment.objects.all()) == 1
    assert Comparison.objects.get().status == "open"
    expire(taken)
    assert decided(trainer) == [("first", 1)]


def test_what_could_count_counts_before_the_rest_is_cancelled(
    trainer: Trainer, expire: Expire, wait: Callable[..., Any]
) -> None:
    uuids = trainer.register()
    _, taken = wait()
    uuids += trainer.register()
    expire(taken)
    assert trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})["cancelled"] == 1
    assert decided(trainer) == [("first", 1)]


def test_a_label_kept_after_the_end_counts_when_its_pair_is_opened_again(
    trainer: Trainer, browser: Browser, side_of: SideOf
) -> None:
    uuids = trainer.register()
    [lease] = browser.lease()
    trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})
    assert browser.answer(lease, side_of(lease, "second"))["status"] == "surplus"
    assert decided(trainer) == []
    assert moderation.reopen(Comparison.objects.all()) == 1
    assert decided(trainer) == [("second", 1)]


def test_what_a_stopped_labeler_said_before_waits_until_it_is_given_work_again(
    trainer: Trainer, invite: Invited, expire: Expire, wait: Callable[..., Any]
) -> None:
    trainer.register()
    _, taken = wait()
    quality.stop(own("late"))
    expire(taken)
    assert decided(trainer) == []
    quality.readmit(own("late"))
    assert decided(trainer) == [("first", 1)]


def test_while_its_label_cannot_count_the_pair_goes_to_others(
    trainer: Trainer, invite: Invited, expire: Expire, wait: Callable[..., Any]
) -> None:
    trainer.register()
    _, taken = wait()
    quality.stop(own("late"))
    expire(taken)
    newcomer = invite("newcomer")
    [lease] = newcomer.lease()
    assert newcomer.answer(lease)["status"] == "counted"
    quality.readmit(own("late"))
    assert labels_of("late") == ["surplus"]


def test_another_choice_of_an_answer_that_waits_waits_too(
    trainer: Trainer, expire: Expire, side_of: SideOf, wait: Callable[..., Any]
) -> None:
    from tests.site.test_revisions import revise

    trainer.register()
    _, taken = wait("first")
    label = Label.objects.get()
    revise({"uuid": str(label.uuid)}, "right" if label.choice == "left" else "left")
    assert labels_of("late") == ["surplus", "surplus"]
    expire(taken)
    assert decided(trainer) == [("second", 1)]
    assert own("late").get().answered == 1


def test_who_changes_an_answer_after_the_end_keeps_the_place(
    trainer: Trainer, side_of: SideOf, wait: Callable[..., Any]
) -> None:
    from tests.site.test_revisions import revise

    trainer.register()
    other, taken = wait("first")
    label = other.answer(taken, side_of(taken, "first"))
    trainer.put(state="finished")
    assert revise(label, "equal").status == "counted"
    assert decided(trainer) == [("equal", 1)]
    assert labels_of("late") == ["surplus"]
    assert not Lease.objects.filter(live()).exists()


def test_many_labels_that_wait_are_settled_in_batches(
    trainer: Trainer, invite: Invited, expire: Expire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_AT_ONCE", 2)
    trainer.register(5)
    late, other = invite("late"), invite("other")
    leases = late.lease(5)
    expire(*leases)
    taken = other.lease(5)
    for lease in leases:
        late.answer(lease)
    expire(*taken)
    assert settling.settle(trainer.experiment.pk) == 5
    seqs = [item["seq"] for item in trainer.decisions()["items"]]
    assert seqs == [1, 2, 3, 4, 5]


def test_a_chore_without_time_leaves_what_waits_for_the_next(
    trainer: Trainer, expire: Expire, wait: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.register()
    expire(wait()[1])
    monkeypatch.setattr(chores, "WORK_SECONDS", -1.0)
    assert chores.settle_labels() == "0 counted"
    monkeypatch.undo()
    assert chores.settle_labels() == "1 counted"


@pytest.mark.django_db(transaction=True)
def test_late_answers_and_readers_at_once_fill_each_place_once(
    trainer: Trainer, invite: Invited, expire: Expire
) -> None:
    trainer.register(6)
    late = [invite(f"late-{number}") for number in range(3)]
    held: list[list[Any]] = []
    for browser in late:
        held.append(browser.lease(5))
        expire(*held[-1])
    assert {len(leases) for leases in held} == {5}

    def answer(browser: Browser, leases: list[Any]) -> None:
        try:
            for lease in leases:
                browser.answer(lease)
        finally:
            connections.close_all()

    def read(_: int) -> None:
        try:
            for _round in range(8):
                trainer.decisions()
                chores.settle_labels()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(answer, *each) for each in zip(late, held, strict=True)]
        futures += [pool.submit(read, number) for number in range(2)]
        for future in futures:
            future.result()
    trainer.decisions()
    found = Comparison.objects.filter(labels__isnull=False).distinct()
    assert set(found.values_list("status", "n_labels")) == {("answered", 1)}
    for comparison in found:
        assert comparison.labels.filter(status=Label.Status.COUNTED).count() == 1
    assert sorted(item["n_labels"] for item in trainer.decisions()["items"]) == [1] * found.count()


# One lease, one answer


@pytest.mark.parametrize("overlap", [1, 3])
def test_one_lease_gives_one_answer_however_often_it_is_answered(
    trainer: Trainer, browser: Browser, overlap: int
) -> None:
    trainer.overlap(overlap)
    trainer.register(2)
    Experiment.objects.update(min_watch_ms=60_000, stop_failures=5)
    [lease] = browser.lease()
    answers = [browser.answer(lease, choice) for choice in ("left", "left", "right", "equal", "left")]
    assert [answer["status"] for answer in answers] == ["counted"] + ["surplus"] * 4
    assert [answer["answered"] for answer in answers] == [1] * 5
    assert labels_of("you") == ["counted"] + ["void"] * 4
    assert trainer.decisions()["last_seq"] == 1
    participation = own("you").get()
    assert (participation.answers, participation.watch_checks) == (1, "0")
    assert browser.ask()["notice"] is None


def test_a_pair_that_is_judged_in_two_browsers_is_judged_once(
    trainer: Trainer, browser: Browser, expire: Expire
) -> None:
    trainer.overlap(2)
    trainer.register()
    [old] = browser.lease()
    expire(old)
    [new] = browser.lease()
    assert old["uuid"] != new["uuid"]
    assert [browser.answer(lease)["answered"] for lease in (new, old)] == [1, 1]
    assert labels_of("you") == ["counted", "void"]
    assert Comparison.objects.get().n_labels == 1


def test_an_answer_that_waits_is_one_answer_too(
    trainer: Trainer, invite: Invited, wait: Callable[..., Any]
) -> None:
    trainer.register()
    wait()
    again = invite("late").answer({"uuid": str(Label.objects.get().lease.uuid)})
    assert (again["status"], again["answered"]) == ("surplus", 1)
    assert labels_of("late") == ["surplus", "void"]


def test_a_void_answer_is_taken_back_without_a_trace_in_the_counts(
    trainer: Trainer, browser: Browser
) -> None:
    trainer.register()
    [lease] = browser.lease()
    label, void = browser.answer(lease), browser.answer(lease)
    undone = browser.undo(void)
    assert (undone["lease"], undone["answered"]) == (None, 1)
    assert trainer.decisions()["last_seq"] == 1
    undone = browser.undo(label)
    assert (undone["lease"]["comparison"], undone["answered"]) == (lease["comparison"], 0)
    again = browser.answer(undone["lease"])
    assert (again["status"], again["answered"]) == ("counted", 1)


def test_the_code_is_for_as_many_pairs_as_answers_are_wanted(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    day = timezone.now() + timedelta(days=1)
    two = Invite.objects.create(
        experiment=trainer.experiment, answers_wanted=2, completion_code="DONE1", expires_at=day
    )
    browser.ask()
    own("you").update(invite=two)
    [lease] = browser.lease()
    for _ in range(3):
        browser.answer(lease)
    assert browser.ask()["notice"] is None
    assert "DONE1" not in browser.client.get("/experiments/hopper/done").content.decode()
    browser.answer(browser.lease()[0])
    assert browser.ask()["notice"] == "done"
    assert "DONE1" in browser.client.get("/experiments/hopper/done").content.decode()


@pytest.mark.parametrize("trick", ["answers again", "takes back and answers again"])
def test_no_check_is_passed_by_answering_a_pair_again(trainer: Trainer, browser: Browser, trick: str) -> None:
    trainer.register(6)
    gold = trainer.register(3, gold="first")
    Experiment.objects.update(gold_rate=0.25, stop_failures=100)
    seen = []
    for _ in range(8):
        [lease] = browser.lease()
        seen.append(lease["comparison"])
        for _ in range(5):
            label = browser.answer(lease)
            if trick == "takes back and answers again":
                lease = browser.undo(label)["lease"]
        browser.answer(lease)
    assert len(set(seen)) == len(seen)
    for four in (seen[:4], seen[4:]):  # one in four, at a place that only the site knows
        assert len(set(four) & set(gold)) == 1
    assert len(own("you").get().gold_checks) == 2


def test_what_a_stopped_labeler_says_counts_for_nothing(trainer: Trainer, browser: Browser) -> None:
    trainer.register(1)
    Experiment.objects.update(min_watch_ms=60_000, stop_failures=9)
    [lease] = browser.lease()
    quality.stop(own("you"))
    said = browser.answer(lease)
    assert (said["status"], said["answered"]) == ("surplus", 0)
    assert (labels_of("you"), own("you").get().watch_checks) == (["void"], "")
    quality.readmit(own("you"))
    assert trainer.decisions()["items"] == []
    [again] = browser.lease()  # nothing that counts keeps it from judging
    assert browser.answer(again)["status"] == "counted"


def test_who_answered_a_gold_pair_may_judge_it_when_it_is_gold_no_more(
    trainer: Trainer, browser: Browser, side_of: SideOf
) -> None:
    [uuid] = trainer.register()
    quality.make_gold(Comparison.objects.all(), Outcome.FIRST)
    Experiment.objects.update(gold_rate=1.0)
    browser.answer(browser.lease()[0])
    assert labels_of("you") == ["gold"]
    quality.make_ordinary(Comparison.objects.all())
    Experiment.objects.update(gold_rate=0.0)
    [lease] = browser.lease()
    assert lease["comparison"] == uuid
    assert browser.answer(lease, side_of(lease, "second"))["status"] == "counted"
    assert decided(trainer) == [("second", 1)]
    assert own("you").get().answered == 2


def test_a_pair_shown_twice_as_a_check_may_still_be_answered_anew(trainer: Trainer, browser: Browser) -> None:
    trainer.register(1)
    label = browser.answer(browser.lease()[0])
    comparison = Comparison.objects.get()
    repeat = Lease.objects.create(
        comparison=comparison,
        labeler=Labeler.objects.get(name="you"),
        purpose=Lease.Purpose.REPEAT,
        swapped=False,
        expires_at=timezone.now() + timedelta(minutes=1),
    )
    assert [browser.answer({"uuid": str(repeat.uuid)})["status"] for _ in range(2)] == ["counted", "surplus"]
    again = browser.undo(label)["lease"]
    assert browser.answer(again)["status"] == "counted"
    assert labels_of("you") == ["counted", "repeat", "void", "counted"]
    assert own("you").get().answered == 2


def test_a_second_answer_ends_no_lease_that_is_for_something_else(trainer: Trainer, browser: Browser) -> None:
    trainer.register(1)
    [lease] = browser.lease()
    browser.answer(lease)
    repeat = Lease.objects.create(
        comparison=Comparison.objects.get(),
        labeler=Labeler.objects.get(name="you"),
        purpose=Lease.Purpose.REPEAT,
        swapped=False,
        expires_at=timezone.now() + timedelta(minutes=1),
    )
    browser.answer(lease)
    assert labels_of("you") == ["counted", "void"]
    assert browser.ask(held=[str(repeat.uuid)])["renewed"] == [str(repeat.uuid)]


def test_void_answers_are_in_no_measure_of_a_labeler(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    one, two = browser.lease(2)
    browser.answer(one, "left", response_ms=1000)
    for _ in range(4):
        browser.answer(one, "right", response_ms=90_000)
    browser.answer(two, "left", response_ms=2000)
    browser.undo(browser.answer(two))
    experiment = trainer.experiment
    [quality_of_you] = crowd.labelers(experiment)
    assert quality_of_you.answers == 2
    assert (quality_of_you.left.hits, quality_of_you.left.total) == (2, 2)
    assert quality_of_you.seconds == pytest.approx(1.5)
    Experiment.objects.update(created_at=Now() - timedelta(hours=1))
    rate = monitoring.look_at(trainer.experiment).rate
    assert rate == pytest.approx(2 / monitoring.RATE_MINUTES)


def test_void_answers_are_not_among_those_that_a_labeler_may_change(
    trainer: Trainer, browser: Browser
) -> None:
    trainer.register()
    [lease] = browser.lease()
    label = browser.answer(lease)
    browser.answer(lease)
    you = Labeler.objects.get(name="you")
    assert [str(uuid) for uuid in labeling.recent_answers(you, trainer.experiment)] == [label["uuid"]]
    assert labeling.answers_of(you, trainer.experiment).count() == 1


def test_void_labels_are_exported_as_such(trainer: Trainer, browser: Browser) -> None:
    from tests.site.test_imports import export, rows

    trainer.register()
    [lease] = browser.lease()
    browser.answer(lease)
    browser.answer(lease)
    assert [row["status"] for row in rows(export(), "labels")] == ["counted", "void"]


def test_the_researchers_pages_say_what_does_not_count(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    [lease] = browser.lease()
    browser.answer(lease)
    browser.answer(lease)
    browser.client.force_login(trainer.user)
    for page in ("comparisons", f"comparisons/{lease['comparison']}"):
        response = browser.client.get(f"/experiments/hopper/{page}")
        assert response.status_code == 200, page
        assert "does not count" in response.content.decode(), page
