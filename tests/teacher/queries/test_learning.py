"""Test what answers tell of the predictor before it learns from them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from gymnasium.spaces import Box

from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.queries.learning import PreferenceLearning
from teacher.queries.schedules import AllAtOnce
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from tests.teacher.conftest import MakeSegment


@pytest.fixture
def learner(tmp_path: Path, make_segment: MakeSegment) -> Iterator[PreferenceLearning]:
    segment = make_segment(0)
    spaces = (Box(-9, 9, segment.observations.shape[1:]), Box(-9, 9, segment.actions.shape[1:]))
    predictor = RewardPredictor(*spaces, RewardConfig(hidden=8), seed=1)
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    collector: Any = SimpleNamespace(receive=list)
    pool, schedule = SegmentPool(len(segment)), AllAtOnce(1)
    yield PreferenceLearning(ledger, PreferenceDataset(), pool, schedule, predictor, collector=collector)
    ledger.close()


def hear(learner: PreferenceLearning, preferences: Sequence[Preference]) -> None:
    learner.collector.receive = lambda: list(preferences)  # type: ignore[method-assign]
    assert learner.receive()


def test_fresh_labels_are_held_out(learner: PreferenceLearning, make_segment: MakeSegment) -> None:
    def labels(count: int, start: int, value: float | None = 1.0) -> list[Preference]:
        """About pairs of which ``first`` is the better one for the predictor, if it was fitted."""
        found = []
        for seed in range(start, start + count):
            segments = [make_segment(2 * seed), make_segment(2 * seed + 1)]
            worse, better = sorted(
                segments, key=lambda segment: learner.predictor.step_rewards(segment).sum()
            )
            found.append(Preference(uuid4(), better, worse, value))
        return found

    hear(learner, labels(20, start=0))
    assert math.isnan(learner.fresh_accuracy)  # there was no predictor yet
    learner.fit(max_updates=20)
    right = labels(6, start=100, value=0.9)
    hear(learner, [*right, *labels(3, start=200, value=0.0)])
    assert math.isnan(learner.fresh_accuracy)  # nine are few
    hear(learner, [*labels(1, start=300, value=0.3), *labels(1, 400, value=0.5), *labels(1, 500, value=None)])
    assert learner.fresh_accuracy == pytest.approx(6 / 10)
    hear(learner, right)  # of which nothing is new
    assert learner.fresh_accuracy == pytest.approx(6 / 10)
    hear(learner, labels(100, start=600))
    assert learner.fresh_accuracy == 1.0
