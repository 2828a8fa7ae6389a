"""When linear reward models give way to networks."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.preferences import PreferenceDataset
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.errors import DataError
from teacher.reward.building import Architecture
from teacher.reward.choice import message
from teacher.reward.learner import EnsembleLearner
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.settings.options import RewardConfig
from tests.teacher.conftest import make_segment
from tests.teacher.reward.conftest import Ask

SPACES = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,), np.float32)
STATES, ACTIONS = np.random.default_rng(0).normal(size=(500, 3)), np.zeros((500, 2))
FIRST, SECOND = 120, 240  # labels at which networks are tried; by default 250 and 500
NETWORKS = message(Architecture("network", "plain"), was_linear=True)


def product(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(states[..., 0] * states[..., 1])


def sum_of(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(states.sum(axis=-1))


def first_of(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(states[..., 0])


def predictor(**settings: Any) -> RewardPredictor:
    return RewardPredictor(*SPACES, RewardConfig(**{"inputs": "state", "model": "auto", **settings}), seed=1)


def rewards(model: RewardPredictor) -> NDArray[np.float64]:
    return model.rewards(STATES, ACTIONS)


@pytest.fixture(autouse=True)
def _networks_are_tried_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teacher.reward.choice._FEWEST_FOR_NETWORKS", FIRST)


@pytest.fixture
def ask(ask: Ask) -> Ask:
    return partial(ask, length=4, observation_size=3)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Architecture]:
    """Architectures of all fits, which are cut short and say that networks are worse."""
    made, fit = list[Architecture](), EnsembleLearner.fit

    def recorded(self: EnsembleLearner, *arguments: Any) -> FitReport:
        made.append(self.architecture)
        return fit(self, *arguments) if self.architecture.is_linear else FitReport(order_loss=9.0)

    monkeypatch.setattr(EnsembleLearner, "fit", recorded)
    return made


def test_networks_take_over(ask: Ask, tmp_path: Path) -> None:
    segment = make_segment(0, observation_size=3)
    model = predictor()
    assert [len(each.member_returns([segment])) for each in (model, predictor(members=5))] == [10, 5]
    assert (model.fit(ask(product, FIRST - 1)).choice, model.model) == ("", "linear")
    assert np.corrcoef(rewards(model), product(STATES))[0, 1] < 0.5
    report = model.fit(ask(product, FIRST), max_epochs=1)
    assert (report.choice, model.model, model.features) == (NETWORKS, "network", "plain")
    assert len(model.member_returns([segment])) == 3
    assert np.corrcoef(rewards(model), product(STATES))[0, 1] > 0.8
    given = predictor(model="network", features="plain")
    assert given.fit(ask(product, FIRST), max_updates=10_000).updates == report.updates
    np.testing.assert_array_equal(rewards(model), rewards(given))
    save_predictor(tmp_path / "a.npz", model, *SPACES)
    again = load_predictor(tmp_path / "a.npz")
    assert again.model == "network"
    for _ in range(2):
        np.testing.assert_array_equal(rewards(again), rewards(model))
        again.fit(ask(product, FIRST), max_epochs=2)
        model.fit(ask(product, FIRST), max_epochs=2)
    with pytest.raises(DataError, match="does not match these --reward settings"):
        predictor(model="linear").load_state_dict(model.state_dict())
    assert model.fit(ask(sum_of, SECOND), max_epochs=1).choice == ""
    assert model.model == "network"


def test_linear_models_stay_where_networks_are_no_better(ask: Ask) -> None:
    model, linear = predictor(), predictor(model="linear")
    for count in (FIRST - 1, FIRST):
        assert model.fit(ask(first_of, count)).choice == ""
        linear.fit(ask(first_of, count))
        np.testing.assert_array_equal(rewards(model), rewards(linear))
    assert (model.model, model.features) == ("linear", "even")


def test_networks_are_tried_whenever_labels_have_doubled(ask: Ask, fits: list[Architecture]) -> None:
    model, tried = predictor(), list[int]()
    for count in (FIRST - 1, FIRST, SECOND - 1, SECOND, SECOND + 1, 2 * SECOND):
        fits.clear()
        model.fit(ask(sum_of, count))
        assert fits[-1].is_linear
        if len(fits) > 1:
            assert [(each.model, each.features) for each in fits[:-1]] == [
                ("linear", "even"),
                ("network", "plain"),
                ("network", "even"),
            ]
            tried.append(count)
    assert tried == [FIRST, SECOND, 2 * SECOND]


def test_a_state_brings_its_number_of_members_along(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    model = predictor()
    model.fit(ask(sum_of, 40))
    monkeypatch.setattr("teacher.settings.options._LINEAR_MODELS", 4)
    again = predictor()
    again.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(rewards(again), rewards(model))
    again.fit(ask(sum_of, 60))
    model.fit(ask(sum_of, 60))
    np.testing.assert_array_equal(rewards(again), rewards(model))
    with pytest.raises(DataError, match="does not match these --reward settings"):
        predictor(members=4).load_state_dict(model.state_dict())
    old = predictor(members=3)  # as states were before
    old.fit(ask(sum_of, 40))
    again.load_state_dict(old.state_dict())
    assert again.members == 3
    np.testing.assert_array_equal(rewards(again), rewards(old))


def test_linear_models_do_not_count_as_progress(ask: Ask, fits: list[Architecture]) -> None:
    counts = list[int]()
    model = predictor()
    model.fit(ask(sum_of, 40), progress=counts.append)
    model.fit(ask(sum_of, FIRST), progress=counts.append)
    assert set(counts) == {0}


def test_a_fit_of_length_0_tries_nothing(ask: Ask, fits: list[Architecture]) -> None:
    predictor().fit(ask(sum_of, FIRST), max_epochs=0)
    assert len(fits) == 1


def test_tried_sizes_are_saved(ask: Ask, fits: list[Architecture], tmp_path: Path) -> None:
    model = predictor()
    model.fit(ask(sum_of, FIRST))
    save_predictor(tmp_path / "a.npz", model, *SPACES)
    again = load_predictor(tmp_path / "a.npz")
    fits.clear()
    again.fit(ask(sum_of, SECOND - 1))
    assert len(fits) == 1
    again.fit(ask(sum_of, SECOND))
    assert len(fits) == 5


def test_a_linear_model_is_restored_although_a_default_of_networks_has_changed(ask: Ask) -> None:
    model, again = predictor(), predictor(hidden=32)  # as if 32 had been the default when it was saved
    model.fit(ask(sum_of, 40))
    again.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(rewards(again), rewards(model))
    assert again.fit(ask(product, FIRST), max_epochs=1).choice == NETWORKS


def test_diverged_network_falls_back_to_its_trial(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = EnsembleLearner.fit

    def diverging(self: EnsembleLearner, some: PreferenceDataset, *limits: Any) -> FitReport:
        return FitReport(diverged=True) if len(some) > 100 else fit(self, some, *limits)

    monkeypatch.setattr("teacher.reward.choice.TRIED_ON", 100)
    monkeypatch.setattr(EnsembleLearner, "fit", diverging)
    model = predictor()
    report = model.fit(ask(product, FIRST))
    assert (report.diverged, model.model) == (True, "network")
    assert np.corrcoef(rewards(model), product(STATES))[0, 1] > 0.8


@pytest.mark.parametrize("damaged", ["odd", None, np.array([1, 2])], ids=str)
def test_a_damaged_model_is_refused(damaged: Any) -> None:
    state = predictor().state_dict() | {"model": damaged}
    with pytest.raises(DataError, match="does not match these --reward settings"):
        predictor().load_state_dict(state)


def test_a_state_without_a_model_is_of_the_one_in_the_settings(ask: Ask) -> None:
    """States of earlier versions have none; the settings they are saved with name it."""
    for settings in ({"model": "network", "features": "plain"}, {"model": "linear"}):
        model, again = predictor(**settings), predictor(**settings)
        model.fit(ask(sum_of, 20), max_epochs=1)
        state = {name: value for name, value in model.state_dict().items() if name not in ("model", "tried")}
        again.load_state_dict(state)
        np.testing.assert_array_equal(rewards(again), rewards(model))


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({}, "linear"),
        ({"members": 5, "label_noise": 0.0, "discount": 0.9, "reward_std": 1.0}, "linear"),
        ({"hidden": 32}, "network"),
        ({"features": "even"}, "network"),
        ({"epochs": 3}, "network"),
    ],
    ids=str,
)
def test_settings_of_networks_choose_networks(settings: dict[str, Any], model: str) -> None:
    assert predictor(**settings).model == model


def test_images_have_networks() -> None:
    images = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    assert RewardPredictor(images, SPACES[1], RewardConfig(model="auto"), seed=1).model == "network"
