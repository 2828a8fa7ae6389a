"""An answer counts while its pair wants labels, whoever holds it, and one lease gives one answer."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models.functions import Now
from django.utils import timezone

from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Labeler,
    Lease,
    Participation,
)
from human_feedback_site.feedback.models.querysets import eligible_labels, live_leases
from human_feedback_site.feedback.selectors import crowd, labeling, monitoring
from human_feedback_site.feedback.services import experiments, moderation
from human_feedback_site.feedback.services.decisions import complete_labels
from tests.site.conftest import Browser, Invited, Trainer, expire, new_invite, race, revise, side_of

pytestmark = pytest.mark.both_databases

BothAnswer = Callable[..., tuple[Any, Any]]


@pytest.fixture
def both_answer(invite: Invited) -> BothAnswer:
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
    trainer: Trainer, both_answer: BothAnswer, invite: Invited
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
    trainer: Trainer, both_answer: BothAnswer, invite: Invited
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
    assert revise(label, "equal").status == "counted"
    assert decided(trainer) == [("equal", 1)]
    assert labels_of("other") == ["surplus"]
    assert not Lease.objects.filter(live_leases()).exists()


def test_a_change_by_who_was_stopped_leaves_its_place(trainer: Trainer, both_answer: BothAnswer) -> None:
    trainer.register()
    label, _ = both_answer()
    moderation.stop(own("late"))
    assert revise(label, "equal").status == "void"
    assert labels_of("other") == ["counted"]
    assert decided(trainer) == [("second", 1)]


def test_another_choice_of_a_surplus_answer_is_surplus_too(trainer: Trainer, both_answer: BothAnswer) -> None:
    trainer.register()
    _, label = both_answer()
    revise(label, "equal")
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


def test_late_label_counts_when_reopened(trainer: Trainer, browser: Browser) -> None:
    uuids = trainer.register()
    [lease] = browser.lease()
    trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})
    assert browser.answer(lease, side_of(lease, "second"))["status"] == "surplus"
    assert decided(trainer) == []
    assert moderation.reopen(Comparison.objects.all()) == 1
    assert decided(trainer) == [("second", 1)]


def test_answered_pairs_are_not_cancelled(trainer: Trainer, invite: Invited) -> None:
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
def test_late_answers_at_once_fill_each_place_once(trainer: Trainer, invite: Invited) -> None:
    trainer.register(6)
    late = [invite(f"late-{number}") for number in range(3)]
    held: list[list[Any]] = []
    for browser in late:
        held.append(browser.lease(5))
        expire(*held[-1])
    assert {len(leases) for leases in held} == {5}

    race(*(partial(list, map(browser.answer, leases)) for browser, leases in zip(late, held, strict=True)))
    found = Comparison.objects.filter(labels__isnull=False).distinct()
    assert set(found.values_list("status", "n_labels")) == {("answered", 1)}
    for comparison in found:
        assert comparison.labels.filter(status=Label.Status.COUNTED).count() == 1
    assert sorted(item["n_labels"] for item in trainer.decisions()["items"]) == [1] * found.count()


@pytest.mark.parametrize("overlap", [1, 3])
def test_one_lease_gives_one_answer(trainer: Trainer, browser: Browser, overlap: int) -> None:
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


def test_one_label_from_two_browsers(trainer: Trainer, browser: Browser) -> None:
    trainer.overlap(2)
    trainer.register()
    [old] = browser.lease()
    expire(old)
    [new] = browser.lease()
    assert old["uuid"] != new["uuid"]
    assert [browser.answer(lease)["answered"] for lease in (new, old)] == [1, 1]
    assert labels_of("you") == ["counted", "void"]
    assert Comparison.objects.get().n_labels == 1


def test_undo_of_a_void_answer_leaves_counts_unchanged(
    trainer: Trainer, browser: Browser, lease: Any
) -> None:
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
    two = new_invite(trainer.experiment, answers_wanted=2, completion_code="DONE1")
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


def test_stopped_labelers_answers_are_void(trainer: Trainer, browser: Browser) -> None:
    trainer.register(1)
    Experiment.objects.update(min_watch_ms=60_000, stop_failures=9)
    [lease] = browser.lease()
    moderation.stop(own("you"))
    said = browser.answer(lease)
    assert (said["status"], said["answered"]) == ("surplus", 0)
    assert (labels_of("you"), own("you").get().watch_checks) == (["void"], "")
    moderation.readmit(own("you"))
    assert trainer.decisions()["items"] == []
    [again] = browser.lease()  # nothing that counts keeps it from judging
    assert browser.answer(again)["status"] == "counted"


def test_former_gold_may_be_judged(trainer: Trainer, browser: Browser) -> None:
    [uuid] = trainer.register()
    moderation.make_gold(Comparison.objects.all(), "first")
    Experiment.objects.update(gold_rate=1.0)
    browser.answer(browser.lease()[0])
    assert labels_of("you") == ["gold"]
    moderation.make_ordinary(Comparison.objects.all())
    Experiment.objects.update(gold_rate=0.0)
    [lease] = browser.lease()
    assert lease["comparison"] == uuid
    assert browser.answer(lease, side_of(lease, "second"))["status"] == "counted"
    assert decided(trainer) == [("second", 1)]
    assert own("you").get().answered == 2


def repeated() -> Lease:
    """Give the only labeler the only comparison once more."""
    return Lease.objects.create(
        comparison=Comparison.objects.get(),
        labeler=Labeler.objects.get(name="you"),
        purpose=Lease.Purpose.REPEAT,
        swapped=False,
        expires_at=timezone.now() + timedelta(minutes=1),
    )


def test_repeated_comparison_may_be_answered_again(trainer: Trainer, browser: Browser) -> None:
    trainer.register(1)
    label = browser.answer(browser.lease()[0])
    repeat = repeated()
    assert [browser.answer({"uuid": str(repeat.uuid)})["status"] for _ in range(2)] == ["counted", "surplus"]
    again = browser.undo(label)["lease"]
    assert browser.answer(again)["status"] == "counted"
    assert labels_of("you") == ["counted", "repeat", "void", "counted"]
    assert own("you").get().answered == 2


def test_a_second_answer_ends_no_lease_that_is_for_something_else(trainer: Trainer, browser: Browser) -> None:
    trainer.register(1)
    [lease] = browser.lease()
    browser.answer(lease)
    repeat = repeated()
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
    assert (quality_of_you.side.hits, quality_of_you.side.total) == (2, 2)
    assert quality_of_you.seconds == pytest.approx(1.5)
    Experiment.objects.update(created_at=Now() - timedelta(hours=1))
    rate = monitoring.status_now(trainer.experiment).rate
    assert rate == pytest.approx(2 / monitoring.RATE_MINUTES)


def test_void_answers_cannot_be_revised(trainer: Trainer, browser: Browser, lease: Any) -> None:
    label = browser.answer(lease)
    browser.answer(lease)
    you = Labeler.objects.get(name="you")
    assert [str(uuid) for uuid in labeling.recent_answers(you, trainer.experiment)] == [label["uuid"]]
    assert labeling.answers_of(you, trainer.experiment).count() == 1


def test_history_is_in_the_order_of_the_answers(trainer: Trainer, browser: Browser) -> None:
    """Pairs are shown as their clips arrive, so it need not be the order of the leases."""
    trainer.register(3)
    first, second, third = browser.lease(3)
    labels = [browser.answer(lease) for lease in (third, first, second)]
    form = {"uuid": str(uuid.uuid4()), "choice": "right"}
    browser.client.post(f"/experiments/hopper/history/{labels[0]['uuid']}", form)
    you = Labeler.objects.get(name="you")
    answers = labeling.answers_of(you, trainer.experiment)
    assert [str(label.lease.uuid) for label in answers] == [second["uuid"], first["uuid"], third["uuid"]]
    assert answers.latest("pk").choice == "right"


def test_void_labels_are_exported_as_such(trainer: Trainer, browser: Browser) -> None:
    from tests.site.test_imports import export, rows

    trainer.register()
    [lease] = browser.lease()
    browser.answer(lease)
    browser.answer(lease)
    assert [row["status"] for row in rows(export(), "labels")] == ["counted", "void"]


def test_the_researchers_pages_say_what_does_not_count(
    trainer: Trainer, browser: Browser, lease: Any
) -> None:
    browser.answer(lease)
    browser.answer(lease)
    browser.client.force_login(trainer.user)
    for page in ("comparisons", f"comparisons/{lease['comparison']}"):
        response = browser.client.get(f"/experiments/hopper/{page}")
        assert response.status_code == 200, page
        assert "not counted" in response.content.decode(), page
