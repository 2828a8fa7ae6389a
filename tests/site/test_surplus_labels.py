"""An answer counts while its pair wants labels, whoever holds it; a later one is surplus until wanted."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connections

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Lease, Participation
from human_feedback_site.feedback.models.querysets import eligible_labels, live_leases
from human_feedback_site.feedback.services import experiments, moderation
from human_feedback_site.feedback.services.answers import Revision, revise_answer
from human_feedback_site.feedback.services.decisions import complete_labels
from tests.site.conftest import Browser, Trainer

pytestmark = pytest.mark.both_databases

Invited = Callable[[str], Browser]
Expire = Callable[..., None]
SideOf = Callable[[Any, str], str]
BothAnswer = Callable[..., tuple[Any, Any]]


@pytest.fixture
def both_answer(invite: Invited, expire: Expire, side_of: SideOf) -> BothAnswer:
    """Let ``late`` answer the only pair while ``other`` holds it, then ``other``; return both replies."""

    def both_answer(late_says: str = "first", other_says: str = "second") -> tuple[Any, Any]:
        late, other = invite("late"), invite("other")
        [lease] = late.lease()
        expire(lease)
        [taken] = other.lease()
        return late.answer(lease, side_of(lease, late_says)), other.answer(taken, side_of(taken, other_says))

    return both_answer


def decided(trainer: Trainer) -> list[tuple[str | None, int]]:
    """Return the newest decision of each comparison in the feed, and its number of labels."""
    newest = {item["comparison"]: item for item in trainer.decisions()["items"]}
    return [(item["decision"], item["n_labels"]) for item in newest.values()]


def labels_of(name: str) -> list[str]:
    return list(Label.objects.filter(labeler__name=name).order_by("pk").values_list("status", flat=True))


def own(name: str) -> Any:
    """Return the participation of a labeler, as a queryset."""
    return Participation.objects.filter(labeler__name=name)


def test_first_answer_counts(trainer: Trainer, both_answer: BothAnswer, invite: Invited) -> None:
    trainer.register()
    late, other = both_answer("first", "second")
    assert [(label["status"], label["answered"]) for label in (late, other)] == [
        ("counted", 1),
        ("surplus", 1),
    ]
    assert decided(trainer) == [("first", 1)]
    assert trainer.decisions()["open"] == 0
    assert invite("newcomer").lease() == []


def test_two_labels_count_with_overlap_two(
    trainer: Trainer, both_answer: BothAnswer, invite: Invited, side_of: SideOf
) -> None:
    trainer.overlap(2)
    trainer.register()
    [held] = invite("third").lease()
    late, other = both_answer("first", "first")
    assert [label["status"] for label in (late, other)] == ["counted", "counted"]
    assert invite("newcomer").lease() == []
    assert invite("third").answer(held, side_of(held, "second"))["status"] == "surplus"
    assert decided(trainer) == [("first", 2)]


WANTED_AGAIN: dict[str, tuple[Callable[[Trainer], object], list[tuple[str, int]]]] = {
    "the label that counted is blocked": (
        lambda trainer: moderation.block(own("late"), trainer.user),
        [("second", 1)],
    ),
    "more labelers are wanted": (lambda trainer: trainer.overlap(2), [("equal", 2)]),
    "one label more is wanted": (
        lambda trainer: moderation.request_label(Comparison.objects.all()),
        [("equal", 2)],
    ),
}


@pytest.mark.parametrize("what", WANTED_AGAIN)
def test_surplus_counts_when_wanted_again(trainer: Trainer, both_answer: BothAnswer, what: str) -> None:
    trainer.register()
    both_answer()
    change, expected = WANTED_AGAIN[what]
    change(trainer)
    assert labels_of("other") == ["counted"]
    [comparison] = Comparison.objects.all()
    assert (comparison.status, comparison.n_labels) == ("answered", comparison.wanted)
    assert decided(trainer) == expected
    assert (own("other").get().answered, own("late").get().answered) == (1, 0 if "blocked" in what else 1)


def test_an_undo_gives_the_pair_back_and_its_place_to_a_surplus_label(
    trainer: Trainer, both_answer: BothAnswer, invite: Invited, side_of: SideOf
) -> None:
    trainer.register()
    label, _ = both_answer()
    undone = invite("late").undo(label)
    assert undone["lease"]["comparison"] == str(Comparison.objects.get().uuid)
    assert labels_of("other") == ["counted"]
    assert [item["decision"] for item in trainer.decisions()["items"]] == ["first", "second"]
    again = invite("late").answer(undone["lease"], side_of(undone["lease"], "equal"))
    assert (again["status"], again["answered"]) == ("surplus", 1)
    assert decided(trainer) == [("second", 1)]


def test_revised_answer_keeps_its_slot(trainer: Trainer, both_answer: BothAnswer) -> None:
    trainer.register()
    label, _ = both_answer()
    trainer.put(state="finished")
    old = Label.objects.get(uuid=label["uuid"])
    assert revise_answer(old.labeler, Revision(uuid4(), old.uuid, "equal")).status == "counted"
    assert decided(trainer) == [("equal", 1)]
    assert labels_of("other") == ["surplus"]
    assert not Lease.objects.filter(live_leases()).exists()


def test_a_change_by_who_was_stopped_leaves_its_place(trainer: Trainer, both_answer: BothAnswer) -> None:
    trainer.register()
    label, _ = both_answer()
    moderation.stop(own("late"))
    old = Label.objects.get(uuid=label["uuid"])
    assert revise_answer(old.labeler, Revision(uuid4(), old.uuid, "equal")).status == "void"
    assert labels_of("other") == ["counted"]
    assert decided(trainer) == [("second", 1)]


def test_another_choice_of_a_surplus_answer_is_surplus_too(trainer: Trainer, both_answer: BothAnswer) -> None:
    trainer.register()
    _, label = both_answer()
    old = Label.objects.get(uuid=label["uuid"])
    revise_answer(old.labeler, Revision(uuid4(), old.uuid, "equal"))
    assert labels_of("other") == ["surplus", "surplus"]
    assert own("other").get().answered == 1
    moderation.request_label(Comparison.objects.all())
    assert labels_of("other") == ["surplus", "counted"], "the old one was undone"


def test_readmitted_surplus_counts(trainer: Trainer, both_answer: BothAnswer, invite: Invited) -> None:
    trainer.register()
    both_answer()
    moderation.stop(own("other"))
    moderation.request_label(Comparison.objects.all())
    assert labels_of("other") == ["surplus"]
    [lease] = invite("newcomer").lease()
    assert moderation.readmit(own("other")) == 1
    assert labels_of("other") == ["counted"]
    assert decided(trainer) == [("equal", 2)]
    assert invite("newcomer").answer(lease)["status"] == "surplus"


def test_late_label_counts_when_reopened(trainer: Trainer, browser: Browser, side_of: SideOf) -> None:
    uuids = trainer.register()
    [lease] = browser.lease()
    trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})
    assert browser.answer(lease, side_of(lease, "second"))["status"] == "surplus"
    assert decided(trainer) == []
    assert moderation.reopen(Comparison.objects.all()) == 1
    assert decided(trainer) == [("second", 1)]


def test_answered_pairs_are_not_cancelled(trainer: Trainer, invite: Invited, expire: Expire) -> None:
    uuids = trainer.register(2)
    late, other = invite("late"), invite("other")
    leases = late.lease(2)
    expire(*leases)
    assert len(other.lease(2)) == 2
    late.answer(leases[0])
    assert trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})["cancelled"] == 1
    assert experiments.finish(Experiment.objects.all()) == 1
    assert sorted(Comparison.objects.values_list("status", "n_labels")) == [("answered", 1), ("cancelled", 0)]


def test_surplus_is_one_answer(trainer: Trainer, both_answer: BothAnswer, invite: Invited) -> None:
    trainer.register()
    both_answer()
    lease = Label.objects.get(labeler__name="other").lease
    again = invite("other").answer({"uuid": str(lease.uuid)})
    assert (again["status"], again["answered"]) == ("surplus", 1)
    assert labels_of("other") == ["surplus", "void"]


def test_an_upgrade_completes_what_0_1_0_wrote(trainer: Trainer, both_answer: BothAnswer) -> None:
    """There a label also waited while somebody else held the pair, and its meaning was not stored."""
    trainer.register()
    both_answer()
    Comparison.objects.update(wanted=2, status="open")
    Label.objects.update(answer="")
    assert eligible_labels().count() == 1
    assert [label.answer for label in Label.objects.order_by("pk")] == ["first", "second"]
    call_command("migrate", verbosity=0)
    assert list(Label.objects.order_by("pk").values_list("answer", flat=True)) == ["first", "second"]
    assert labels_of("other") == ["counted"]
    assert decided(trainer) == [("equal", 2)]
    assert complete_labels() == "0 labels completed"


@pytest.mark.django_db(transaction=True)
def test_late_answers_at_once_fill_each_place_once(trainer: Trainer, invite: Invited, expire: Expire) -> None:
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

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(answer, *each) for each in zip(late, held, strict=True)]:
            future.result()
    found = Comparison.objects.filter(labels__isnull=False).distinct()
    assert set(found.values_list("status", "n_labels")) == {("answered", 1)}
    for comparison in found:
        assert comparison.labels.filter(status=Label.Status.COUNTED).count() == 1
    assert sorted(item["n_labels"] for item in trainer.decisions()["items"]) == [1] * found.count()
