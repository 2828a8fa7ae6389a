"""A label that found no place waits, and counts as soon as one is free."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Lease,
    Participation,
)
from human_feedback_site.feedback.models.querysets import live_leases
from human_feedback_site.feedback.services import answers, chores, experiments, moderation, settling

if TYPE_CHECKING:
    from tests.site.conftest import Browser, Trainer

pytestmark = pytest.mark.both_databases

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
    """Return the newest decision of each comparison in the feed, and its number of labels."""
    newest = {item["comparison"]: item for item in trainer.decisions()["items"]}
    return [(item["decision"], item["n_labels"]) for item in newest.values()]


def labels_of(name: str) -> list[str]:
    return list(Label.objects.filter(labeler__name=name).order_by("pk").values_list("status", flat=True))


def own(name: str) -> Any:
    """Return the participation of a labeler, as a queryset."""
    return Participation.objects.filter(labeler__name=name)


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
    assert Lease.objects.filter(live_leases(), labeler__name="other").count() == 2


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
    "its holder is stopped": lambda trainer: moderation.stop(own("other")),
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


def test_an_answer_that_begins_to_count_while_it_is_taken_back_leaves_its_place(
    trainer: Trainer,
    invite: Invited,
    expire: Expire,
    wait: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer.register()
    _, taken = wait("first")
    expire(taken)
    lock = answers._lock

    def overtaken(comparison: int) -> Comparison:
        settling.settle(trainer.experiment.pk)
        return lock(comparison)

    monkeypatch.setattr(answers, "_lock", overtaken)
    undone = invite("late").undo({"uuid": str(Label.objects.get().uuid)})
    assert undone["lease"]["comparison"] == str(Comparison.objects.get().uuid)
    assert decided(trainer) == [(None, 0)]
    assert set(Comparison.objects.values_list("status", "n_labels")) == {("open", 0)}


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
    moderation.stop(own("late"))
    expire(taken)
    assert decided(trainer) == []
    moderation.readmit(own("late"))
    assert decided(trainer) == [("first", 1)]


def test_while_its_label_cannot_count_the_pair_goes_to_others(
    trainer: Trainer, invite: Invited, expire: Expire, wait: Callable[..., Any]
) -> None:
    trainer.register()
    _, taken = wait()
    moderation.stop(own("late"))
    expire(taken)
    newcomer = invite("newcomer")
    [lease] = newcomer.lease()
    assert newcomer.answer(lease)["status"] == "counted"
    moderation.readmit(own("late"))
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
    assert not Lease.objects.filter(live_leases()).exists()


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


def test_an_answer_that_waits_is_one_answer_too(
    trainer: Trainer, invite: Invited, wait: Callable[..., Any]
) -> None:
    trainer.register()
    wait()
    again = invite("late").answer({"uuid": str(Label.objects.get().lease.uuid)})
    assert (again["status"], again["answered"]) == ("surplus", 1)
    assert labels_of("late") == ["surplus", "void"]
