"""Decisions of Dawid and Skene: at once by what labelers were worth, later by what they turn out to be."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from human_feedback_site.feedback.models import Comparison, Decision, Experiment, Outcome, Participation
from human_feedback_site.feedback.services import aggregate, chores, moderation
from tests.site.conftest import Browser, Trainer

SideOf = Callable[[Any, str], str]
Invite = Callable[[str], Browser]


@pytest.fixture
def judge(trainer: Trainer, invite: Invite, side_of: SideOf) -> Callable[..., None]:
    """Let a labeler of that name answer everything there is by a rule: UUID to outcome."""

    def judge(name: str, rule: Callable[[str], str]) -> None:
        browser = invite(name)
        while leases := browser.lease(5):
            for lease in leases:
                outcome = rule(lease["comparison"])
                side = side_of(lease, outcome) if outcome in {"first", "second"} else outcome
                browser.answer(lease, side)

    return judge


@pytest.fixture
def weighing(trainer: Trainer) -> Experiment:
    """Three labelers judge each pair, and are weighed."""
    trainer.overlap(3)
    Experiment.objects.update(aggregation="automatic")
    assert trainer.experiment.weighs_labelers
    return trainer.experiment


def newest(trainer: Trainer) -> dict[str, Any]:
    items = trainer.decisions()["items"]
    return {item["comparison"]: (item["decision"], item["probability"]) for item in items}


def test_overlap_one_is_decided_by_the_one_label(trainer: Trainer, judge: Callable[..., None]) -> None:
    assert not trainer.experiment.weighs_labelers
    [uuid] = trainer.register()
    judge("ann", lambda _: "second")
    assert newest(trainer) == {uuid: ("second", 0.0)}


def test_unknown_labelers_equal(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    [uuid] = trainer.register()
    for name, outcome in (("ann", "first"), ("bea", "first"), ("cid", "second")):
        judge(name, lambda _, outcome=outcome: outcome)
    probabilities = [item["probability"] for item in trainer.decisions()["items"]]
    assert [round(probability, 3) for probability in probabilities] == [0.75, 0.917, 0.786]
    assert newest(trainer)[uuid][0] == "first"


@pytest.mark.both_databases
def test_chore_revises_decisions(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    uuids = trainer.register(20)
    truth = {uuid: "first" if number % 2 else "second" for number, uuid in enumerate(uuids)}
    opposite = {"first": "second", "second": "first"}
    judge("ann", truth.__getitem__)
    judge("bea", lambda uuid: "equal" if uuid == uuids[3] else truth[uuid])
    judge("liar", lambda uuid: opposite[truth[uuid]])
    before, last = newest(trainer), trainer.decisions()["last_seq"]
    assert max(abs(probability - 0.5) for _, probability in before.values()) < 0.4
    assert chores.weigh_labelers() == f"{len(trainer.decisions(last)['items'])} decisions revised"
    after = newest(trainer)
    assert {uuid: decision for uuid, (decision, _) in after.items()} == truth
    assert min(abs(probability - 0.5) for _, probability in after.values()) > 0.4
    seqs = [item["seq"] for item in trainer.decisions()["items"]]
    assert seqs == list(range(1, len(seqs) + 1))
    matrices: dict[str, Any] = dict(Participation.objects.values_list("labeler__name", "confusion"))
    assert matrices["ann"][0][0] > 0.7
    assert matrices["liar"][0][0] < 0.3
    assert chores.weigh_labelers() == "0 decisions revised"


@pytest.mark.both_databases
def test_a_new_label_is_weighed_at_once_by_what_its_labeler_turned_out_to_be(
    trainer: Trainer, weighing: Experiment, judge: Callable[..., None], invite: Invite, side_of: SideOf
) -> None:
    trainer.register(12)
    for name, outcome in (("ann", "first"), ("bea", "first"), ("liar", "second")):
        judge(name, lambda _, outcome=outcome: outcome)
    aggregate.weigh_labelers(trainer.experiment)
    [uuid] = trainer.register()
    liar = invite("liar")
    [lease] = liar.lease()
    liar.answer(lease, side_of(lease, "second"))
    assert newest(trainer)[uuid][0] == "first"


def test_gold_beats_majority(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    known = trainer.register(10)
    judge("ann", lambda _: "first")
    for name in ("one", "two"):
        judge(name, lambda _: "second")
    moderation.make_gold(Comparison.objects.filter(uuid__in=known), Outcome.FIRST)
    uuids = trainer.register(4)
    judge("ann", lambda _: "first")
    for name in ("one", "two"):
        judge(name, lambda _: "second")
    aggregate.weigh_labelers(trainer.experiment)
    assert {newest(trainer)[uuid][0] for uuid in uuids} == {"first"}


def test_undo_is_weighed(trainer: Trainer, weighing: Experiment, invite: Invite, side_of: SideOf) -> None:
    [uuid] = trainer.register()
    ann, bea = invite("ann"), invite("bea")
    [lease] = ann.lease()
    ann.answer(lease, side_of(lease, "first"))
    alone = newest(trainer)[uuid]
    [lease] = bea.lease()
    label = bea.answer(lease, side_of(lease, "second"))
    assert newest(trainer)[uuid] == ("equal", pytest.approx(0.5))
    bea.undo(label)
    assert newest(trainer)[uuid] == (alone[0], pytest.approx(alone[1]))


def test_new_rule_decides_again(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    uuids = trainer.register(3)
    for name, outcome in (("ann", "first"), ("bea", "first"), ("cid", "second")):
        judge(name, lambda _, outcome=outcome: outcome)
    Experiment.objects.update(aggregation="majority")
    assert aggregate.revise_everything(trainer.experiment) == 3
    assert newest(trainer) == dict.fromkeys(uuids, ("first", pytest.approx(2 / 3)))
    assert Comparison.objects.filter(score_first=2.0, score_second=1.0).count() == 3


@pytest.mark.both_databases
def test_few_statements(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    counts = []
    for _ in range(2):
        trainer.register(15)
        for name, outcome in (("ann", "first"), ("bea", "second"), ("cid", "second")):
            judge(name, lambda _, outcome=outcome: outcome)
        with CaptureQueriesContext(connection) as captured:
            aggregate.weigh_labelers(trainer.experiment)
        counts.append(len(captured))
    assert counts[1] <= counts[0] + 2
    assert Decision.objects.count() == trainer.decisions()["last_seq"]
