"""Which features are settled on, by which fit, and that this is kept."""

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.preferences import PreferenceDataset
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.errors import DataError
from teacher.reward.building import Architecture
from teacher.reward.choice import message
from teacher.reward.learner import EnsembleLearner
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.settings.options import RewardConfig
from teacher.teach import main
from tests.teacher.reward.conftest import Ask, Goal

SPACES = spaces.Box(-np.inf, np.inf, (8,)), spaces.Box(-1, 1, (2,), np.float32)
EVEN = message(Architecture("network", "even"), was_linear=False)
UPDATES = 5_000  # more than any of these fits takes


def distance(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(-np.linalg.norm(states[..., :2], axis=-1))


def sum_of(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(states.sum(axis=-1))


def predictor(features: Any = "auto", **settings: Any) -> RewardPredictor:
    """Small, and left at its best soon, so that a fit to convergence is short."""
    settings = {"inputs": "state", "members": 2, "hidden": 16, "patience": 20, **settings}
    return RewardPredictor(*SPACES, RewardConfig(features=features, **settings), seed=1)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_fit_says_how_many_labels_contradict_it(ask: Ask, wrong: bool) -> None:
    labels = ask(sum_of, range(300), {number for number in range(300) if wrong and number % 10 < 3})
    report = predictor("plain").fit(labels, max_updates=UPDATES)
    assert report.contradictions is not None
    assert report.scalars["predictor/contradictions"] == report.contradictions.share
    assert report.contradictions.share == pytest.approx(0.3 if wrong else 0.0, abs=0.06)
    said = report.problems("").get("contradictions", "")
    assert ("of the labels contradict predictions from the others: they are wrong, or" in said) == wrong


def test_mistakes_that_go_with_a_feature_do_not_contradict_the_models_that_learn_them(ask: Ask) -> None:
    def wanted(states: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(states[..., 0])

    def labeled(states: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(0.61 * states[..., 0] + 0.79 * states[..., 1])

    labels, right = ask(labeled, range(300)), ask(wanted, range(300))
    report = RewardPredictor(*SPACES, RewardConfig(inputs="state", model="linear"), seed=1).fit(labels)
    assert np.mean(labels.values != right.values) == pytest.approx(0.29, abs=0.05)
    assert report.contradictions is not None
    assert report.contradictions.share < 0.05, "so it must not be called the share of wrong labels"
    assert {tag for tag in report.scalars if "error" in tag or "wrong" in tag} == set()


@pytest.mark.parametrize(("goal", "expected"), [(distance, "even"), (sum_of, "plain")])
def test_first_fit_chooses_by_held_out_order(ask: Ask, goal: Goal, expected: str) -> None:
    answers, more = ask(goal, range(80)), ask(goal, range(160))
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    chosen, given = predictor(), predictor(expected)
    settled = [chosen.features]
    reports = chosen.fit(answers, max_updates=UPDATES), given.fit(answers, max_updates=UPDATES)
    settled.append(chosen.features)
    assert settled == ["auto", expected]
    assert reports[0] == replace(reports[1], choice=EVEN if expected == "even" else "")
    for _ in range(2):  # from then on it is as if that had been asked for
        np.testing.assert_array_equal(chosen.rewards(states, actions), given.rewards(states, actions))
        chosen.fit(more, max_epochs=2)
        given.fit(more, max_epochs=2)
    assert np.corrcoef(chosen.rewards(states, actions), goal(states))[0, 1] > 0.8


def test_it_is_settled_once(ask: Ask) -> None:
    model = predictor()
    model.fit(ask(sum_of, range(80)), max_updates=UPDATES)
    model.fit(ask(distance, range(80, 200)), max_epochs=2)
    assert model.features == "plain"


def test_settled_choice_is_saved(ask: Ask, tmp_path: Path) -> None:
    model, answers = predictor(), ask(distance, range(80))
    model.fit(answers, max_updates=UPDATES)
    save_predictor(tmp_path / "a.npz", model, *SPACES)
    again = load_predictor(tmp_path / "a.npz")
    assert again.features == model.features == "even"
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    for _ in range(2):
        np.testing.assert_array_equal(again.rewards(states, actions), model.rewards(states, actions))
        again.fit(answers, max_epochs=2)
        model.fit(answers, max_epochs=2)
    with pytest.raises(DataError, match="does not match these --reward settings"):
        predictor("plain").load_state_dict(model.state_dict())


def test_a_state_brings_along_what_was_settled(ask: Ask) -> None:
    model, other, fresh = predictor(), predictor(), predictor()
    model.fit(ask(distance, range(80)), max_updates=UPDATES)
    other.fit(ask(sum_of, range(80)), max_updates=UPDATES)
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    for source in (model, fresh):
        other.load_state_dict(source.state_dict())
        assert other.features == source.features
        np.testing.assert_array_equal(other.rewards(states, actions), source.rewards(states, actions))


@pytest.mark.parametrize("damaged", ["odd", None, np.array([1, 2])])
def test_a_damaged_choice_is_refused(ask: Ask, damaged: Any) -> None:
    with pytest.raises(DataError, match="does not match these --reward settings"):
        predictor().load_state_dict(predictor().state_dict() | {"features": damaged})


@pytest.mark.parametrize(("count", "expected"), [(39, "plain"), (40, "even")])
def test_few_answers_settle_nothing_but_what_is_plain(ask: Ask, count: int, expected: str) -> None:
    model = predictor(members=3)
    model.fit(ask(distance, range(count)), max_updates=UPDATES)
    assert model.features == expected


@pytest.mark.parametrize(("goal", "expected"), [(distance, "even"), (sum_of, "plain")])
@pytest.mark.parametrize("limits", [{"max_epochs": 2}, {"max_updates": 20}, {}], ids=str)
def test_short_fit_chooses_alike(ask: Ask, goal: Goal, expected: str, limits: dict[str, Any]) -> None:
    answers = ask(goal, range(80))
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    chosen, given = predictor(), predictor(expected)
    reports = chosen.fit(answers, **limits), given.fit(answers, **limits)
    assert chosen.features == expected
    assert reports[0] == replace(reports[1], choice=EVEN if expected == "even" else "")
    np.testing.assert_array_equal(chosen.rewards(states, actions), given.rewards(states, actions))


def test_very_many_answers_are_not_all_tried(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, sizes = ask(distance, range(100)), list[int]()
    fit = EnsembleLearner.fit

    def recorded(self: EnsembleLearner, some: PreferenceDataset, *limits: Any) -> FitReport:
        sizes.append(len(some))
        return fit(self, some, *limits)

    monkeypatch.setattr("teacher.reward.choice.TRIED_ON", 80)
    monkeypatch.setattr(EnsembleLearner, "fit", recorded)
    chosen, given = predictor(members=3), predictor("even", members=3)
    chosen.fit(answers, max_updates=UPDATES)
    given.fit(answers, max_updates=UPDATES)
    assert sizes == [80, 80, 100, 100]  # both, then what was settled, and what it is compared with
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    np.testing.assert_array_equal(chosen.rewards(states, actions), given.rewards(states, actions))


@pytest.mark.parametrize(
    ("gain", "diverged", "expected"),
    [
        (0.07, "neither", "even"),
        (0.05, "neither", "plain"),
        (nan, "plain", "even"),
        (nan, "even", "plain"),
        (nan, "both", "plain"),
    ],
)
def test_a_fit_that_diverged_is_not_chosen(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, gain: float, diverged: str, expected: str
) -> None:
    reports = iter(
        FitReport(order_loss=loss, diverged=diverged in (one, "both"))
        for one, loss in (("plain", 0.5), ("even", 0.5 - gain))
    )
    monkeypatch.setattr(EnsembleLearner, "fit", lambda *_: next(reports))
    model = predictor()
    report = model.fit(ask(distance, range(40)), max_updates=UPDATES)
    assert (model.features, report.choice) == (expected, EVEN if expected == "even" else "")


def test_progress_goes_on_counting(ask: Ask) -> None:
    counts: list[int] = []
    predictor().fit(ask(distance, range(40)), max_epochs=5, progress=counts.append)
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(("features", "strength"), [("plain", 3.0), ("even", 10.0)])
def test_squares_and_logarithms_are_held_back_more(ask: Ask, features: str, strength: float) -> None:
    answers = ask(distance, range(20))
    models = predictor(features), predictor(features, strength=strength), predictor(features, strength=7.0)
    for model in models:
        model.fit(answers)
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    unsaid, said, other = (model.rewards(states, actions) for model in models)
    np.testing.assert_array_equal(unsaid, said)
    assert np.abs(said - other).max() > 1e-4


@pytest.mark.parametrize(("goal", "expected"), [(distance, True), (sum_of, False)])
def test_fit_says_what_it_settled_on(
    ask: Ask, goal: Goal, expected: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_preferences(tmp_path / "labels.npz", ask(goal, range(80)), *SPACES)
    line = ["fit", str(tmp_path / "labels.npz"), str(tmp_path / "reward.npz"), "--max_updates", str(UPDATES)]
    small = ["--reward.hidden", "16", "--reward.patience", "20"]
    assert main([*line, "--reward.inputs", "state", *small]) == 0
    assert ("uses squares and logarithms" in capsys.readouterr().out) == expected
