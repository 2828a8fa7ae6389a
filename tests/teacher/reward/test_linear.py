"""Linear reward models, the choice of features, and how both are learned, saved and refused."""

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.optimize import minimize

from teacher.data.preferences import Preference, PreferenceDataset
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.errors import ConfigError, DataError
from teacher.reward.building import Architecture
from teacher.reward.choice import message
from teacher.reward.learner import EnsembleLearner
from teacher.reward.linear import _solve
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.settings.options import RewardConfig
from teacher.teach import main
from tests.teacher.conftest import make_segment
from tests.teacher.reward.conftest import Ask, Goal

SPACES = spaces.Box(-np.inf, np.inf, (8,)), spaces.Box(-1, 1, (2,), np.float32)
STATES, ACTIONS = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))


def distance(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(-np.square(states[..., :2]).sum(axis=-1))


def sum_of(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(states[..., :3].sum(axis=-1))


def predictor(**settings: Any) -> RewardPredictor:
    return RewardPredictor(*SPACES, RewardConfig(inputs="state", model="linear", **settings), seed=1)


def rewards(model: RewardPredictor) -> NDArray[np.float64]:
    return model.rewards(STATES, ACTIONS)


@pytest.mark.parametrize(
    ("count", "noise", "trims"), [(60, 0.0, 0), (60, 0.1, 0), (150, 0.0, 3), (150, 0.1, 3)]
)
def test_the_optimum_is_that_of_a_general_solver(ask: Ask, count: int, noise: float, trims: int) -> None:
    labels = ask(distance, count, wrong=0.2)
    model = predictor(members=2, label_noise=noise)
    model.fit(labels)
    network, pairs = model._learner.network, model._learner.pairs(labels)
    inputs = pairs.inputs(torch.arange(count)).double().sum(dim=2).numpy()
    scale = pairs.length**0.5 * np.repeat([1.0, 4.0, 4.0], 8)
    differences, targets = (inputs[:, 0] - inputs[:, 1]) / scale, pairs.values.double().numpy()

    for member, counts in enumerate(pairs.weights.double().numpy()):
        fitted = counts
        for _ in range(1 + trims):  # all labels, then those that the last optimum does not contradict

            def objective(split: NDArray[Any], fitted: NDArray[Any] = fitted) -> float:
                """Return the penalized loss for the positive and negative parts of the weights."""
                chance = noise / 2 + (1 - noise) / (1 + np.exp(-differences @ (split[:24] - split[24:])))
                losses = -(targets * np.log(chance) + (1 - targets) * np.log(1 - chance))
                return float(fitted @ losses + 1.5 * split.sum() ** 2)

            best = minimize(objective, np.full(48, 0.01), bounds=[(0, None)] * 48, method="L-BFGS-B")
            first_wins = 1 / (1 + np.exp(-differences @ (best.x[:24] - best.x[24:])))
            last, fitted = objective, counts * (np.abs(targets - first_wins) < 0.7)
        weights = dict(network.named_parameters())["weights.0"][member, :, 0].detach().numpy() * scale
        found = np.concatenate([weights.clip(0), (-weights).clip(0)])
        assert last(found) == pytest.approx(best.fun, rel=0.01)
        assert np.corrcoef(weights, best.x[:24] - best.x[24:])[0, 1] > 0.98


def test_weights_of_equal_preferences_add_up(ask: Ask) -> None:
    def fitted(*weights: float) -> NDArray[np.float64]:
        labels, model = ask(distance, 60, wrong=0.2), predictor()
        segments = make_segment(500, observation_size=8), make_segment(501, observation_size=8)
        copies = [Preference(uuid4(), *segments, 0.9, weight, UUID(int=3 << 64)) for weight in weights]
        labels.upsert(copies)
        assert labels.labels == 61
        model.fit(labels)
        return rewards(model)

    np.testing.assert_allclose(fitted(0.1, 3.9), fitted(2.0, 2.0), rtol=1e-4, atol=1e-5)
    assert np.abs(fitted(0.1, 3.9) - fitted(0.1, 0.1)).max() > 0.01


@pytest.mark.parametrize("rows", [0, 1, 19, 20, 50])
def test_a_newton_step_is_the_same_with_fewer_equations(rows: int) -> None:
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(rows, 20, generator=generator, dtype=torch.float64)
    diagonal = torch.rand(20, generator=generator, dtype=torch.float64) + 0.1
    right = torch.randn(20, generator=generator, dtype=torch.float64)
    solution = _solve(matrix, diagonal, right)
    torch.testing.assert_close((matrix.T @ matrix + diagonal.diag()) @ solution, right)


def test_a_fit_can_be_stopped(ask: Ask) -> None:
    def stop(updates: int) -> None:
        raise KeyboardInterrupt

    model = predictor()
    with pytest.raises(KeyboardInterrupt):
        model.fit(ask(distance, 40), progress=stop)
    assert not rewards(model).any()


@pytest.mark.parametrize(
    ("goal", "count", "wrong", "least"),
    [(sum_of, 50, 0.0, 0.95), (sum_of, 400, 0.3, 0.85), (distance, 400, 0.0, 0.9), (distance, 400, 0.3, 0.7)],
)
def test_few_noisy_labels_suffice(ask: Ask, goal: Goal, count: int, wrong: float, least: float) -> None:
    model = predictor()
    model.fit(ask(goal, count, wrong))
    assert np.corrcoef(rewards(model), goal(STATES))[0, 1] > least


def test_a_fit_continues_at_the_last_optimum(ask: Ask) -> None:
    labels, more = ask(distance, 80), ask(distance, 82)
    model, fresh = predictor(), predictor()
    model.fit(labels)
    reports = model.fit(more), fresh.fit(more)
    assert 0 < reports[0].updates < reports[1].updates
    np.testing.assert_allclose(rewards(model), rewards(fresh), atol=0.05 * rewards(fresh).std())


def test_label_smoothing_does_not_keep_contradicted_labels(ask: Ask) -> None:
    labels = ask(sum_of, 400, wrong=0.3)
    models = predictor(), predictor(label_smoothing=0.05)
    for model in models:
        model.fit(labels)
    sharp, smooth = (np.corrcoef(rewards(model), sum_of(STATES))[0, 1] for model in models)
    assert min(sharp, smooth) > 0.88  # 0.77 with all labels


def test_a_fit_continues_with_fewer_labels_than_weights(ask: Ask) -> None:
    labels = ask(sum_of, 20)
    model, again = predictor(), predictor()
    model.fit(labels)
    again.fit(labels)
    assert np.corrcoef(rewards(model), sum_of(STATES))[0, 1] > 0.8
    again.fit(labels)
    np.testing.assert_allclose(rewards(again), rewards(model), atol=0.02 * rewards(model).std())


def test_a_fit_of_length_0_changes_nothing(ask: Ask) -> None:
    model = predictor()
    assert not rewards(model).any()
    assert model.fit(ask(distance, 40), max_epochs=0).updates == 0
    assert model.fit(ask(distance, 40), max_updates=0).updates == 0
    assert not rewards(model).any()
    assert model.fit(ask(distance, 40), max_epochs=1).updates > 0
    assert rewards(model).any()


def test_a_discounted_return_is_one_of_discounted_inputs(ask: Ask) -> None:
    labels = ask(distance, 40)
    model = predictor(discount=0.5)
    model.fit(labels)
    pairs = model._learner.pairs(labels)
    weights = torch.tensor(0.5) ** torch.arange(pairs.length)
    inputs = pairs.inputs(torch.arange(40)).expand(10, -1, -1, -1, -1).contiguous()
    logits = model._learner.network.logits(inputs, weights).detach().numpy()
    np.testing.assert_allclose(logits, model.preference_logits(labels), rtol=1e-4, atol=1e-4)


def test_a_saved_model_goes_on_as_it_was(ask: Ask, tmp_path: Path) -> None:
    model, labels = predictor(), ask(distance, 60)
    model.fit(labels)
    save_predictor(tmp_path / "a.npz", model, *SPACES)
    again = load_predictor(tmp_path / "a.npz")
    for _ in range(2):
        np.testing.assert_array_equal(rewards(again), rewards(model))
        again.fit(ask(distance, 70))
        model.fit(ask(distance, 70))


def test_inputs_that_do_not_vary_do_no_harm(ask: Ask) -> None:
    model = predictor()
    model.fit(ask(lambda states: states[..., 0] * 0, 30))  # no label prefers the first segment
    assert np.isfinite(rewards(model)).all()


def test_inputs_beyond_those_of_the_labels_gain_nothing_more(ask: Ask) -> None:
    model, labels = predictor(), ask(sum_of, 60)
    model.fit(labels)
    steps = labels.observations.reshape(-1, 8)
    far = [steps.mean(axis=0) + distance * steps.std(axis=0) for distance in (0, 2, 3.01, 100)]
    middle, near, limit, beyond = model.rewards(np.array(far), ACTIONS[:4])
    assert middle < near < limit
    assert beyond == pytest.approx(limit, abs=0.02 * (limit - middle))


def test_settings_of_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--reward\.hidden: has no effect with --reward\.model=linear"):
        RewardConfig(model="linear", hidden=32)
    images = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    with pytest.raises(ConfigError, match=r"^--reward\.model=linear can't be used with images or custom"):
        RewardPredictor(images, SPACES[1], RewardConfig(model="linear", inputs="state"), seed=1)


@pytest.mark.parametrize(("wrong", "low", "high"), [(0.0, 0.0, 0.02), (0.3, 0.1, 0.3)])
def test_a_fit_reports_the_share_of_labels_dropped(ask: Ask, wrong: float, low: float, high: float) -> None:
    labels = ask(sum_of, 400, wrong)
    model = predictor()
    report = model.fit(labels)
    assert low <= report.dropped <= high
    assert report.scalars["predictor/dropped_labels"] == report.dropped

    pairs = model._learner.pairs(labels)
    first_wins = 1 / (1 + np.exp(-model.preference_logits(labels)))
    contradicted = np.abs(pairs.values.numpy() - first_wins) > 0.7
    counts = pairs.weights.numpy()
    shares = (counts * contradicted).sum(axis=1) / counts.sum(axis=1)
    assert report.dropped == pytest.approx(shares.mean(), abs=0.05)  # not settled after three rounds


def test_no_share_is_reported_with_too_few_labels_to_drop_any(ask: Ask) -> None:
    model = predictor()
    report = model.fit(ask(sum_of, 95, 0.3))
    assert np.isnan(report.dropped)
    assert model.fit(ask(sum_of, 96, 0.3)).dropped > 0


EVEN = message(Architecture("network", "even"), was_linear=False)
UPDATES = 5_000  # more than any of these fits takes


def norm(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(-np.linalg.norm(states[..., :2], axis=-1))


def sum_of_all(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(states.sum(axis=-1))


def small_predictor(features: Any = "auto", **settings: Any) -> RewardPredictor:
    """Small, and left at its best soon, so that a fit to convergence is short."""
    settings = {"inputs": "state", "members": 2, "hidden": 16, "patience": 20, **settings}
    return RewardPredictor(*SPACES, RewardConfig(features=features, **settings), seed=1)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_fit_says_how_many_labels_contradict_it(ask: Ask, wrong: bool) -> None:
    labels = ask(sum_of_all, range(300), {number for number in range(300) if wrong and number % 10 < 3})
    report = small_predictor("plain").fit(labels, max_updates=UPDATES)
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


@pytest.mark.parametrize(("goal", "expected"), [(norm, "even"), (sum_of_all, "plain")])
def test_first_fit_chooses_by_held_out_order(ask: Ask, goal: Goal, expected: str) -> None:
    answers, more = ask(goal, range(80)), ask(goal, range(160))
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    chosen, given = small_predictor(), small_predictor(expected)
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
    model = small_predictor()
    model.fit(ask(sum_of_all, range(80)), max_updates=UPDATES)
    model.fit(ask(norm, range(80, 200)), max_epochs=2)
    assert model.features == "plain"


def test_settled_choice_is_saved(ask: Ask, tmp_path: Path) -> None:
    model, answers = small_predictor(), ask(norm, range(80))
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
        small_predictor("plain").load_state_dict(model.state_dict())


def test_a_state_brings_along_what_was_settled(ask: Ask) -> None:
    model, other, fresh = small_predictor(), small_predictor(), small_predictor()
    model.fit(ask(norm, range(80)), max_updates=UPDATES)
    other.fit(ask(sum_of_all, range(80)), max_updates=UPDATES)
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    for source in (model, fresh):
        other.load_state_dict(source.state_dict())
        assert other.features == source.features
        np.testing.assert_array_equal(other.rewards(states, actions), source.rewards(states, actions))


@pytest.mark.parametrize("damaged", ["odd", None, np.array([1, 2])])
def test_a_damaged_choice_is_refused(ask: Ask, damaged: Any) -> None:
    with pytest.raises(DataError, match="does not match these --reward settings"):
        small_predictor().load_state_dict(small_predictor().state_dict() | {"features": damaged})


@pytest.mark.parametrize(("count", "expected"), [(39, "plain"), (40, "even")])
def test_few_answers_settle_nothing_but_what_is_plain(ask: Ask, count: int, expected: str) -> None:
    model = small_predictor(members=3)
    model.fit(ask(norm, range(count)), max_updates=UPDATES)
    assert model.features == expected


@pytest.mark.parametrize(("goal", "expected"), [(norm, "even"), (sum_of_all, "plain")])
@pytest.mark.parametrize("limits", [{"max_epochs": 2}, {"max_updates": 20}, {}], ids=str)
def test_short_fit_chooses_alike(ask: Ask, goal: Goal, expected: str, limits: dict[str, Any]) -> None:
    answers = ask(goal, range(80))
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    chosen, given = small_predictor(), small_predictor(expected)
    reports = chosen.fit(answers, **limits), given.fit(answers, **limits)
    assert chosen.features == expected
    assert reports[0] == replace(reports[1], choice=EVEN if expected == "even" else "")
    np.testing.assert_array_equal(chosen.rewards(states, actions), given.rewards(states, actions))


def test_very_many_answers_are_not_all_tried(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, sizes = ask(norm, range(100)), list[int]()
    fit = EnsembleLearner.fit

    def recorded(self: EnsembleLearner, some: PreferenceDataset, *limits: Any) -> FitReport:
        sizes.append(len(some))
        return fit(self, some, *limits)

    monkeypatch.setattr("teacher.reward.choice.TRIED_ON", 80)
    monkeypatch.setattr(EnsembleLearner, "fit", recorded)
    chosen, given = small_predictor(members=3), small_predictor("even", members=3)
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
    model = small_predictor()
    report = model.fit(ask(norm, range(40)), max_updates=UPDATES)
    assert (model.features, report.choice) == (expected, EVEN if expected == "even" else "")


def test_progress_goes_on_counting(ask: Ask) -> None:
    counts: list[int] = []
    small_predictor().fit(ask(norm, range(40)), max_epochs=5, progress=counts.append)
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(("features", "strength"), [("plain", 3.0), ("even", 10.0)])
def test_squares_and_logarithms_are_held_back_more(ask: Ask, features: str, strength: float) -> None:
    answers = ask(norm, range(20))
    models = (
        small_predictor(features),
        small_predictor(features, strength=strength),
        small_predictor(features, strength=7.0),
    )
    for model in models:
        model.fit(answers)
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    unsaid, said, other = (model.rewards(states, actions) for model in models)
    np.testing.assert_array_equal(unsaid, said)
    assert np.abs(said - other).max() > 1e-4


@pytest.mark.parametrize(("goal", "expected"), [(norm, True), (sum_of_all, False)])
def test_fit_says_what_it_settled_on(
    ask: Ask, goal: Goal, expected: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_preferences(tmp_path / "labels.npz", ask(goal, range(80)), *SPACES)
    line = ["fit", str(tmp_path / "labels.npz"), str(tmp_path / "reward.npz"), "--max_updates", str(UPDATES)]
    small = ["--reward.hidden", "16", "--reward.patience", "20"]
    assert main([*line, "--reward.inputs", "state", *small]) == 0
    assert ("uses squares and logarithms" in capsys.readouterr().out) == expected
