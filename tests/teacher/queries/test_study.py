"""A study of kinds of questions: all take turns, and predictors of one are tested on held-out answers."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.judges import ScriptedTeacher
from teacher.queries.kinds import KINDS, preferences_in
from teacher.queries.study import HELD_OUT, Study
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig
from teacher.settings.options import RewardConfig
from teacher.settings.teachers import ErrorModel
from teacher.training.builder import open_run
from teacher.training.loop import train
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


def test_predictors_of_one_kind_are_tested_on_the_same_held_out_questions(ledger: Ledger) -> None:
    answer(ledger, 60)
    points = Study(predictor).points(ledger)
    assert {tag for tag in points if tag != "study/held_out"} == {
        f"study/{kind}/{count}" for kind in KINDS for count in (10, 20, 40)
    }
    questions = by_question(ledger)
    kinds = {each.uuid: each.kind for each in ledger.answered()}
    tested = [own for uuid, own in questions.items() if uuid.int % HELD_OUT == 0 and kinds[uuid] != "rating"]
    strict = [[each for each in own if each.value not in (None, 0.5)] for own in tested]
    assert points["study/held_out"] == sum(map(bool, strict))
    chosen = [uuid for uuid, kind in kinds.items() if kind == "best_worst" and uuid.int % HELD_OUT]
    dataset, alone = PreferenceDataset(), predictor()
    for uuid in chosen[:20]:
        dataset.upsert(questions[uuid])
    alone.fit(dataset)
    shares = []
    for own in filter(None, strict):
        returns = [alone.segment_returns([each.first, each.second]) for each in own]
        better = [(each.value or 0.0) > 0.5 for each in own]
        right = [(one > two) == first for (one, two), first in zip(returns, better, strict=True)]
        shares.append(np.mean(right))
    assert points["study/best_worst/20"] == pytest.approx(np.mean(shares))


def test_more_answers_predict_more(ledger: Ledger) -> None:
    answer(ledger, 60)
    points = Study(predictor).points(ledger)
    few, many = (np.array([points[f"study/{kind}/{count}"] for kind in KINDS]) for count in (10, 40))
    assert many.mean() > few.mean() > 0.6
    assert min(many) > 0.8


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


def test_a_run_asks_all_kinds_in_turn(memory_path: Path) -> None:
    config = TeachConfig(
        env_id="teacher/ShortReacher-v1", predictor="synth", name="x", feedback="study", n_labels=80,
        num_timesteps=3000, no_videos=True, runs_dir=str(memory_path),
    )  # fmt: skip
    with open_run(config, Console(quiet=True)) as run:
        assert train(run)
        assert run.teaching is not None
        kinds = Counter(each.kind for each in run.teaching.ledger.answered())
        study = run.teaching.study
        assert study is not None
        points = study.points(run.teaching.ledger)
    assert kinds == dict.fromkeys(KINDS, 20)
    assert "study/best_worst/10" in points
