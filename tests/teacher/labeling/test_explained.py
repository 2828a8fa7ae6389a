"""Test which films are scored again after each fit, and with which predicted rewards."""

from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from gymnasium import spaces

from teacher.data.ledger import Question
from teacher.data.segments import slice_of
from teacher.envs.trajectory import Trajectory
from teacher.labeling import explained
from teacher.labeling.explained import Explainer, Predictions
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig


def episode(steps: int = 500) -> Trajectory:
    rng = np.random.default_rng(steps)
    return Trajectory.from_arrays(
        rng.normal(size=(steps + 1, 3)), rng.normal(size=(steps, 2)), np.zeros(steps)
    )


@pytest.fixture(scope="module")
def predictor() -> RewardPredictor:
    observations, actions = (spaces.Box(-np.inf, np.inf, (size,)) for size in (3, 2))
    return RewardPredictor(observations, actions, RewardConfig(), seed=1)


def found(explainer: Explainer, predictor: RewardPredictor, fits: int = 1) -> Predictions:
    predictions = explainer.explain(predictor, fits, 700)
    assert predictions is not None
    return predictions


def test_films_and_questions_are_scored_again_after_each_fit(
    tmp_path: Path, predictor: RewardPredictor
) -> None:
    explainer, film, clip = Explainer(tmp_path / "films"), episode(), slice_of(episode(30), 0, 30)
    explainer.add(100, film)
    question = Question(uuid4(), (clip, clip, clip, clip), "training", 0, "best_worst")
    explainer.ask([question])
    predictions = found(explainer, predictor)
    steps = np.linspace(0, 499, 240).round().astype(int)
    expected = predictor.step_rewards(film)[steps].reshape(40, 6).mean(axis=1)
    np.testing.assert_allclose(predictions.films[100], expected, rtol=5e-3)
    assert len(predictions.questions[question.uuid]) == 4
    np.testing.assert_allclose(
        predictions.questions[question.uuid][3], predictor.step_rewards(clip), rtol=5e-3
    )
    assert explainer.explain(predictor, 1, 800) is None  # nothing changed
    assert predictions.body == {
        "step": 700,
        "films": [{"step": 100, "rewards": predictions.films[100]}],
        "comparisons": [{"uuid": str(question.uuid), "items": predictions.questions[question.uuid]}],
    }
    resumed = found(Explainer(tmp_path / "films"), predictor, fits=2)
    assert resumed.films == predictions.films


def test_films_stay_spread_over_the_run_and_damaged_ones_are_left_out(
    tmp_path: Path, predictor: RewardPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explained, "FILMS", 4)
    explainer = Explainer(tmp_path)
    for step in (0, 10, 20, 30, 40, 50, 60):
        explainer.add(step, episode(20))
    kept = [0, 20, 40, 60]
    assert list(found(explainer, predictor).films) == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:09d}.npz" for step in kept]
    (tmp_path / "step-000000020.npz").write_bytes(b"PK")
    assert list(found(Explainer(tmp_path), predictor).films) == [0, 40, 60]


def test_few_steps_are_kept_of_images(tmp_path: Path) -> None:
    images = np.zeros((101, 84, 84, 4), np.uint8)
    episode = Trajectory.from_arrays(images, np.zeros((100, 1)), np.zeros(100))
    assert len(explained._sampled(episode).actions) == 8
