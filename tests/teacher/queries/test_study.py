"""A study of kinds of questions: all take turns, and predictors of one are tested on held-out answers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces

from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.judges import ScriptedTeacher
from teacher.queries.kinds import KINDS, preferences_in
from teacher.queries.study import Study
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.settings.teachers import ErrorModel
from tests.teacher.conftest import make_segment

LENGTH = 6
CONFIG = RewardConfig(model="linear", inputs="state,action")


def predictor() -> RewardPredictor:
    box = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    return RewardPredictor(box, spaces.Box(-1.0, 1.0, (2,), np.float32), CONFIG, seed=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with contextlib.closing(Ledger(tmp_path / "ledger.sqlite3")) as ledger:
        yield ledger


def answer(ledger: Ledger, each: int) -> None:
    """Have a scripted teacher answer this many questions of each kind."""
    pool = SegmentPool(LENGTH, capacity=10**6, seed=1)
    pool.add([make_segment(1000 * each + number) for number in range(9 * each)])
    collector = SyntheticTeacher(ledger, 1, ScriptedTeacher(ErrorModel(), 1))
    for kind in KINDS.values():
        collector.submit(kind.select(pool, each, None, None), "training", 0, kind.name)


def by_question(ledger: Ledger) -> dict[UUID, list[Preference]]:
    found: dict[UUID, list[Preference]] = {}
    for each in preferences_in(ledger):
        found.setdefault(each.question or each.uuid, []).append(each)
    return found


def test_fits_are_kept_and_few_answers_give_no_points(ledger: Ledger) -> None:
    made: list[RewardPredictor] = []

    def make() -> RewardPredictor:
        made.append(predictor())
        return made[-1]

    study = Study(make)
    answer(ledger, 4)
    assert (study.points(ledger), made) == ({}, [])
    answer(ledger, 20)
    first = study.points(ledger)
    fits = len(made)
    assert fits == len(first) - 1
    assert study.points(ledger) == first
    assert len(made) == fits
