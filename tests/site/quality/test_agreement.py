"""Test agreement against published numbers, an independent count and the labels in the database."""

import itertools
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from human_feedback_site.feedback.models import Comparison, Experiment, Label
from human_feedback_site.feedback.quality.agreement import Rate, krippendorff_alpha, wilson_interval
from human_feedback_site.feedback.selectors import crowd
from tests.site.conftest import Browser, Trainer


def alpha_by_pairs(units: Sequence[Sequence[str]]) -> float:
    """Krippendorff's definition, one pair of values after the other: 1 - observed / expected disagreement."""
    pairable = [unit for unit in units if len(unit) > 1]
    values = [value for unit in pairable for value in unit]
    observed = sum(
        sum(a != b for a, b in itertools.permutations(unit, 2)) / (len(unit) - 1) for unit in pairable
    ) / len(values)
    expected = sum(a != b for a, b in itertools.permutations(values, 2)) / (len(values) * (len(values) - 1))
    return 1 - observed / expected


def counted(units: Sequence[Sequence[str]], values: Sequence[str]) -> Counter[Sequence[int]]:
    return Counter(tuple(unit.count(value) for value in values) for unit in map(list, units))


def test_alpha_of_krippendorffs_example() -> None:
    """In *Computing Krippendorff's Alpha-Reliability* (2011), C: four observers, missing data, 0.743."""
    observers = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    units = [[row[unit] for row in observers if row[unit] != "."] for unit in range(12)]
    assert krippendorff_alpha(counted(units, "12345")) == pytest.approx(0.743, abs=5e-4)


@pytest.mark.parametrize("seed", range(5))
def test_alpha_matches_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    units = [
        [rng.choice("aab" if rng.random() < 0.5 else "abc") for _ in range(rng.randrange(5))]
        for _ in range(25)
    ]
    assert krippendorff_alpha(counted(units, "abc")) == pytest.approx(alpha_by_pairs(units))


def test_alpha_needs_two_labels_of_a_comparison() -> None:
    assert krippendorff_alpha({}) is None
    assert krippendorff_alpha({(1, 0, 0): 9}) is None
    assert krippendorff_alpha({(2, 0, 0): 9}) is None
    assert krippendorff_alpha({(2, 0, 0): 9, (0, 2, 0): 4}) == 1.0


@pytest.mark.parametrize(("hits", "total"), [(7, 10), (0, 10), (10, 10), (512, 1000)])
def test_wilsons_interval(hits: int, total: int) -> None:
    from scipy.stats import binomtest  # takes as long to import as all else here

    expected = binomtest(hits, total).proportion_ci(method="wilson")
    assert wilson_interval(hits, total) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.fixture
def labeled(trainer: Trainer, invite: Callable[[str], Browser]) -> Experiment:
    """Four labelers at overlap 3 with gold, repeats, withdrawals and all choices."""
    rng = random.Random(7)
    trainer.overlap(3)
    trainer.register(24)
    trainer.register(4, gold="first")
    Experiment.objects.update(gold_rate=0.2, repeat_rate=0.5, stop_failures=100)
    browsers = [invite(name) for name in ("ann", "bea", "cid", "dan")]
    for _ in range(20):
        for browser in browsers:
            for lease in browser.lease():
                choice = rng.choice(("left", "left", "right", "equal", "cant_tell"))
                label = browser.answer(lease, choice, response_ms=rng.randrange(500, 5000))
                if rng.random() < 0.1:
                    browser.answer(browser.undo(label)["lease"], "equal")
    return trainer.experiment


@pytest.mark.both_databases
def test_sql_counts_match_the_labels(labeled: Experiment) -> None:
    standing = list(Label.objects.filter(undo=None).select_related("comparison", "labeler"))
    opinions = [label for label in standing if label.status == "counted" and label.choice != "cant_tell"]
    units: dict[int, list[Any]] = defaultdict(list)
    for label in opinions:
        units[label.comparison_id].append(label)
    verdicts = [[str(label.answer) for label in unit] for unit in units.values()]
    found_together = crowd.agreement(labeled)
    assert found_together.alpha == pytest.approx(alpha_by_pairs(verdicts))
    found = {each.name: each for each in crowd.labelers(labeled)}
    assert list(found) == ["ann", "bea", "cid", "dan"]
    for name, quality in found.items():
        own = [label for label in standing if label.labeler.name == name]
        assert quality.answers == len(own)
        gold = [label for label in own if label.status == "gold"]
        assert quality.gold == Rate(sum(label.answer == "first" for label in gold), len(gold))
        sides = [label.choice for label in own if label.choice in {"left", "right"}]
        assert quality.left == Rate(sides.count("left"), len(sides))
        times = [label.response_ms for label in own if label.response_ms is not None]
        assert quality.seconds == pytest.approx(statistics.median(times) / 1000)
        assert quality.consensus == leave_one_out(units.values(), name)
        repeats = [label for label in own if label.status == "repeat"]
        before = {label.comparison_id: label.answer for label in own if label.status == "counted"}
        same = sum(before[label.comparison_id] == label.answer for label in repeats)
        assert quality.consistency == Rate(same, len(repeats))
    # Who is shown which of them is drawn, but nearly all are shown some.
    assert {"gold", "repeat"} <= {label.status for label in standing}


def leave_one_out(units: Any, name: str) -> Rate:
    hits = total = 0
    for unit in units:
        for label in unit:
            others = Counter(str(other.answer) for other in unit if other is not label).most_common(2)
            if label.labeler.name != name or not others or (len(others) > 1 and others[0][1] == others[1][1]):
                continue
            total += 1
            hits += others[0][0] == label.answer
    return Rate(hits, total)


def test_number_of_statements_is_constant(labeled: Experiment) -> None:
    with CaptureQueriesContext(connection) as captured:
        crowd.labelers(labeled)
        crowd.agreement(labeled)
    assert len(captured) <= 7


def test_nothing_is_shown_without_labels(trainer: Trainer) -> None:
    assert crowd.agreement(trainer.experiment) == crowd.Agreement(None, 0)
    assert crowd.labelers(trainer.experiment) == []
    assert not Comparison.objects.exists()
