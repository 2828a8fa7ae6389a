"""A study of kinds of questions: blocks in a balanced order, and a report that finds known differences."""

import itertools
from collections import Counter

import pytest
from django.contrib.auth.models import User

from human_feedback_site.feedback.kinds import KINDS
from human_feedback_site.feedback.models import Comparison, Experiment
from human_feedback_site.feedback.pages.live import live_view_of
from human_feedback_site.feedback.queue.study import BLOCK, balanced_orders, kind_at
from human_feedback_site.feedback.selectors.experiments import learning_curves
from human_feedback_site.feedback.selectors.monitoring import forget_crowd
from human_feedback_site.feedback.selectors.study import StudyReport, study_of
from human_feedback_site.feedback.services.experiments import trainer_away_since
from tests.site.conftest import Invited, Trainer
from tests.site.test_kinds_of_questions import ask, choice_for, lease_of

SECONDS = {"pair": 2.0, "graded": 3.0, "rating": 1.0, "best_worst": 6.0}


@pytest.fixture
def study(trainer: Trainer) -> Trainer:
    trainer.put(compares_kinds=True)
    Experiment.objects.update(repeat_rate=0.1)
    return trainer


def test_a_study_asks_some_questions_twice(researcher: User) -> None:
    for name, settings, rate in (("study", {"compares_kinds": True}, 0.1), ("pairs", {}, 0.0)):
        run = Trainer(researcher, name)
        run.put(**settings)
        assert run.experiment.repeat_rate == rate


def report_of(trainer: Trainer) -> StudyReport:
    found = study_of(trainer.experiment, learning_curves(trainer.experiment, 100))
    assert found is not None
    return found


@pytest.mark.parametrize("count", range(2, 7))
def test_orders_are_balanced(count: int) -> None:
    orders = balanced_orders(count)
    times = 1 + count % 2
    assert len(orders) == count * times
    assert all(sorted(order) == [*range(count)] for order in orders)
    assert all(set(Counter(place).values()) == {times} for place in zip(*orders, strict=True))
    followed = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert followed == dict.fromkeys(itertools.permutations(range(count), 2), times)


def test_orders_of_four_kinds_stay() -> None:
    assert balanced_orders(4) == [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
    around, shown = BLOCK * len(KINDS), {kind_at(1, place) for place in range(BLOCK)}
    assert shown == {kind_at(1, around)} == {[*KINDS][balanced_orders(len(KINDS))[1][0]]}


@pytest.mark.both_databases
def test_each_labeler_gets_blocks_of_one_kind(study: Trainer, invite: Invited) -> None:
    for kind in KINDS.values():
        ask(study, kind, 2 * BLOCK + 5)
    shown = {}
    for name in ("mia", "leo"):
        browser, shown[name] = invite(name), list[str]()
        for _ in range(2 * BLOCK):
            [lease] = lease_of(browser)
            shown[name].append(lease["kind"])
            browser.answer(lease, "cant_tell")
        ahead = [lease["kind"] for lease in lease_of(browser, 10)]
        assert ahead == [ahead[0]] * 10 != [shown[name][-1]] * 10
        blocks = [shown[name][at : at + BLOCK] for at in (0, BLOCK)]
        assert [len(set(block)) for block in blocks] == [1, 1]
    assert shown["mia"][::BLOCK] != shown["leo"][::BLOCK]


def test_another_kind_is_asked_where_there_is_no_question_of_the_turn(
    study: Trainer, invite: Invited
) -> None:
    ask(study, KINDS["graded"], 3)
    for name in ("mia", "leo", "zoe"):
        assert [lease["kind"] for lease in lease_of(invite(name))] == ["graded"]


def test_the_report_finds_known_differences(study: Trainer, invite: Invited) -> None:
    Experiment.objects.update(overlap=2)
    for kind in KINDS.values():
        ask(study, kind, 8)
    for name, careless in (("mia", False), ("leo", True)):
        browser = invite(name)
        while leases := lease_of(browser, 8):
            for lease in leases:
                kind = KINDS[lease["kind"]]
                wrong = careless and kind.name == "graded"
                time = round(1000 * SECONDS[kind.name]) + len(Comparison.objects.filter(n_labels=0))
                chosen = choice_for(lease, kind.classes[-1 if wrong else 0])
                if kind.name == "best_worst" and careless:
                    chosen = "cant_tell"
                browser.answer(lease, chosen, response_ms=time)
    curves = {
        f"study/{kind}/{answers}": min(0.95, 0.5 + 0.1 * worth * place)
        for kind, worth in (("pair", 1), ("graded", 1), ("rating", 0.5), ("best_worst", 2))
        for place, answers in enumerate((10, 20, 40), 1)
    }
    values = {**curves, "study/held_out": 100.0}
    study.post(f"{study.path}/points", {"points": [{"step": 9, "values": values}]})
    found = report_of(study)
    kinds = {each.kind.name: each for each in found.kinds}
    assert found.minutes == pytest.approx(40 * 1.0 / 60, rel=0.05)  # ratings are the fastest
    for name, each in kinds.items():
        assert each.answers == 16
        assert each.seconds == pytest.approx(SECONDS[name], abs=0.05)
        assert each.seconds is not None
        assert each.seconds_interval is not None
        assert each.seconds_interval[0] <= each.seconds <= each.seconds_interval[1]
        assert each.cant_tell.value == (0.5 if name == "best_worst" else 0)
        if name != "best_worst":  # where one labeler of two can't tell, nobody agrees
            assert each.consensus.value == (0 if name == "graded" else 1)
    assert kinds["rating"].accuracy is not None
    assert kinds["rating"].accuracy.value == pytest.approx(0.65)  # after 40 answers
    assert kinds["pair"].accuracy is not None
    assert kinds["pair"].accuracy.value == pytest.approx(0.7, abs=0.01)  # after 20
    assert kinds["pair"].accuracy.low < 0.7 < kinds["pair"].accuracy.high
    assert kinds["best_worst"].accuracy is None  # not known with so few answers
    forget_crowd(study.experiment)
    experiments = Experiment.objects.annotate(away_since=trainer_away_since())
    page = live_view_of(experiments.get(), experiments, "")
    assert [row.answers for row in page["study"].rows] == [16] * 4


def test_no_table_where_kinds_are_not_compared(trainer: Trainer) -> None:
    assert study_of(trainer.experiment, {}) is None
    forget_crowd(trainer.experiment)
    experiments = Experiment.objects.annotate(away_since=trainer_away_since())
    page = live_view_of(experiments.get(), experiments, "")
    assert page["study"] is None
