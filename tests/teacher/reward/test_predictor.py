"""Test what the predictor learns from preferences, and how it states rewards."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.numerics.correlation import rank_correlation
from teacher.data.checkpoint import load_state, save_state
from teacher.data.preferences import Preference, PreferenceDataset, bootstrap_weights
from teacher.data.segments import Segment
from teacher.errors import ConfigError, DataError
from teacher.reward.building import reject_unused_of_network
from teacher.reward.loss import preference_loss
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from tests.teacher.conftest import make_segment

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,))
IMAGES = spaces.Box(0, 255, (8, 8, 3), np.uint8)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def uuid_with(trained: bool) -> UUID:
    """A UUID whose preference all members train on, or all hold out."""
    for number in range(10_000):
        weights = bootstrap_weights(np.array([[0, number]], np.uint64), 3)
        if (weights > 0).all() if trained else not weights.any():
            return UUID(int=number)
    raise AssertionError


def predictor(seed: int = 1, **settings: Any) -> RewardPredictor:
    """Return the reward that labels these steps."""
    config = RewardConfig(**{"inputs": "state,action", "features": "plain"} | settings)
    return RewardPredictor(OBSERVATIONS, ACTIONS, config, seed)


def truthful(indices: Sequence[int]) -> list[Preference]:
    preferences = []
    for index in indices:
        first, second = make_segment(2 * index), make_segment(2 * index + 1)
        value = float(first.true_return > second.true_return)
        preferences.append(Preference(UUID(int=(index << 64) + index), first, second, value))
    return preferences


def dataset(preferences: Sequence[Preference]) -> PreferenceDataset:
    result = PreferenceDataset()
    result.upsert(preferences)
    return result


def spearman(model: RewardPredictor) -> float:
    fresh = [make_segment(seed) for seed in range(10_000, 10_200)]
    return rank_correlation(model.segment_returns(fresh), [segment.true_return for segment in fresh])


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_the_preferred_segment_rises_above_the_other(value: float) -> None:
    first, second = make_segment(1), make_segment(2)
    model = predictor()
    model.fit(dataset([Preference(uuid_with(trained=True), first, second, value)]), max_epochs=50)
    returns = model.segment_returns([first, second])
    assert (returns[0] > returns[1]) == (value == 1.0)


def test_equal_draws_the_returns_together() -> None:
    first, second = make_segment(1), make_segment(2)
    model = predictor()
    decided = dataset([Preference(uuid_with(trained=True), first, second, 1.0)])
    model.fit(decided, max_epochs=50)
    before = np.subtract(*model.segment_returns([first, second]))
    decided.upsert([Preference(uuid_with(trained=True), first, second, 0.5)])
    model.fit(decided, max_epochs=200)
    after = np.subtract(*model.segment_returns([first, second]))
    assert abs(after) < 0.3 * before


def test_swapping_segments_and_answers_gives_the_same_predictor() -> None:
    preferences = truthful(range(20))
    swapped = [Preference(p.uuid, p.second, p.first, 1 - (p.value or 0)) for p in preferences]
    models = predictor(), predictor()
    models[0].fit(dataset(preferences))
    models[1].fit(dataset(swapped))
    segment = make_segment(77)
    rewards = [model.rewards(segment.observations, segment.actions) for model in models]
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=1e-3, atol=1e-4)


def test_it_learns_the_order_of_returns_and_goes_on_learning() -> None:
    model = predictor()
    answers = dataset(truthful(range(60)))
    report = model.fit(answers, max_updates=200)
    early = spearman(model)
    assert early > 0.8
    assert report.accuracy > 0.7
    assert report.loss < 0.4
    answers.upsert(truthful(range(60, 150)))
    for _ in range(2):
        model.fit(answers)
    assert spearman(model) > max(early, 0.97)


@pytest.mark.parametrize("adapt", [False, True])
@pytest.mark.parametrize("regularization", ["weight_decay", "l1", "l2"])
def test_regularization_allows_learning(regularization: str, adapt: bool) -> None:
    model = predictor(regularization=regularization, adapt=adapt)
    model.fit(dataset(truthful(range(40))), max_updates=60)
    assert spearman(model) > 0.9


def test_a_held_out_answer_never_reaches_the_member() -> None:
    """Turning held-out answers around changes no parameter of that member; the others notice."""
    truth = truthful(range(40))
    models = predictor(), predictor()
    first = dataset(truth)
    held_out = bootstrap_weights(first.ids, 3)[0] == 0
    turned = [
        Preference(p.uuid, p.first, p.second, 1 - (p.value or 0) if out else p.value)
        for p, out in zip(truth, held_out, strict=True)
    ]
    models[0].fit(first)
    models[1].fit(dataset(turned))
    states = [model.state_dict()["network"]["weights.0"] for model in models]
    assert held_out.any()
    assert (states[0][0] == states[1][0]).all()
    assert not (states[0][1] == states[1][1]).all()


def test_fitting_to_convergence_ends_by_itself_at_the_best_held_out_loss() -> None:
    answers = dataset(truthful(range(80)))
    seen: list[int] = []
    model = predictor(patience=50)
    report = model.fit(answers, max_updates=100_000, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == report.updates < 100_000
    again = model.fit(answers, max_epochs=0)
    assert again.validation_loss == pytest.approx(report.validation_loss)
    overfitted = model.fit(answers, max_epochs=100)
    assert overfitted.loss < report.loss
    assert overfitted.validation_loss > report.validation_loss


def test_convergence_stops_at_the_limit_of_updates() -> None:
    answers = dataset(truthful(range(10)))
    assert predictor().fit(answers, max_updates=7).updates == 7


def test_a_refit_starts_from_what_was_learned() -> None:
    """New segments change the input statistics and the normalization, not what the members say."""
    answers = dataset(truthful(range(20)))
    model = predictor()
    model.fit(answers)
    segment = make_segment(500)
    before = model.rewards(segment.observations, segment.actions)
    answers.upsert(truthful(range(20, 60)))
    report = model.fit(answers, max_epochs=0)
    after = model.rewards(segment.observations, segment.actions)
    assert report.updates == 0
    assert np.corrcoef(before, after)[0, 1] > 0.99
    assert not np.allclose(before, after, rtol=1e-3)


def test_rewards_have_mean_zero_and_the_configured_standard_deviation() -> None:
    answers = dataset(truthful(range(30)))
    model = predictor(reward_std=0.5)
    model.fit(answers)
    rewards = model.rewards(answers.observations, answers.actions)
    assert rewards.shape == (30, 2, 6)
    assert rewards.mean() == pytest.approx(0, abs=1e-5)
    assert rewards.std() == pytest.approx(0.5, rel=1e-4)


def test_every_member_has_an_equal_say() -> None:
    """A member whose outputs are a thousand times larger weighs no more than before."""
    answers = dataset(truthful(range(30)))
    model = predictor()
    model.fit(answers)
    segment = make_segment(500)
    before = model.rewards(segment.observations, segment.actions)
    state = model.state_dict()
    state["network"]["weights.2"][0] *= 1000
    state["network"]["biases.2"][0] += 5
    model.load_state_dict(state)
    model.fit(answers, max_epochs=0)
    after = model.rewards(segment.observations, segment.actions)
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-3)


def test_a_step_has_the_same_reward_in_any_batch() -> None:
    model = predictor()
    model.fit(dataset(truthful(range(10))))
    random = np.random.default_rng(0)
    observations, actions = random.normal(size=(5, 4, 3)), random.uniform(-1, 1, (5, 4, 2))
    rewards = model.rewards(observations, actions)
    assert rewards.shape == (5, 4)
    assert rewards.dtype == np.float64
    assert model.rewards(observations[2, 3], actions[2, 3]).shape == ()
    np.testing.assert_allclose(model.rewards(observations[2, 3], actions[2, 3]), rewards[2, 3], rtol=1e-4)
    np.testing.assert_allclose(model.rewards(observations[1], actions[1]), rewards[1], rtol=1e-4)


def test_returns_of_segments_are_sums_of_rewards() -> None:
    segments = [make_segment(seed) for seed in range(4)]
    model = predictor()
    expected = [model.rewards(segment.observations, segment.actions).sum() for segment in segments]
    np.testing.assert_allclose(model.segment_returns(segments), expected, rtol=1e-4)


def test_member_returns_are_logits() -> None:
    """Raw and discounted: with so confident a network the loss of a pair is the difference of its returns."""
    segments = [make_segment(seed) for seed in range(4)]
    model = predictor(discount=0.9, label_noise=0.0, features="plain")
    state = model.state_dict()
    state["network"]["weights.2"] *= 1e4
    model.load_state_dict(state)
    returns = model.member_returns(segments)
    assert returns.shape == (3, 4)
    differences = returns[:, 0] - returns[:, 1]
    losing = float(differences.mean() < 0)
    pair = Preference(uuid_with(trained=True), segments[0], segments[1], losing)
    report = model.fit(dataset([pair]), max_epochs=0)
    expected = np.where((differences < 0) == losing, np.abs(differences), 0.0).mean()
    assert report.loss == pytest.approx(expected, rel=1e-3)


def test_segments_of_several_lengths_are_not_judged_at_once() -> None:
    model = predictor()
    segments = [make_segment(1, length=6), make_segment(2, length=4), make_segment(3, length=6)]
    for returns in (model.segment_returns, model.member_returns):
        with pytest.raises(
            DataError, match="must have equal length, but some have 4 steps and others 6"
        ) as refusal:
            returns(segments)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("settings", [{}, {"uncertainty_bonus": 1.0, "discount": 0.9}])
def test_no_segments_have_no_returns(settings: dict[str, Any]) -> None:
    model = predictor(**settings)
    assert model.segment_returns([]).shape == (0,)
    assert model.member_returns([]).shape == (3, 0)


def test_large_batches_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    segments, model = [make_segment(seed) for seed in range(7)], predictor()
    returns, by_member = model.segment_returns(segments), model.member_returns(segments)
    monkeypatch.setattr("teacher.reward.learner.BYTES_AT_ONCE", 300)  # two segments
    np.testing.assert_allclose(model.segment_returns(segments), returns, rtol=1e-4)
    np.testing.assert_allclose(model.member_returns(segments), by_member, rtol=1e-4)


def test_the_same_seed_gives_the_same_predictor_and_another_seed_another() -> None:
    answers = dataset(truthful(range(20)))
    segment = make_segment(500)
    rewards = []
    for seed in (1, 1, 2):
        model = predictor(seed)
        model.fit(answers, max_updates=20)
        model.fit(answers)
        rewards.append(model.rewards(segment.observations, segment.actions))
    assert (rewards[0] == rewards[1]).all()
    assert not np.allclose(rewards[0], rewards[2])


def test_a_saved_predictor_goes_on_exactly(tmp_path: Path) -> None:
    answers = dataset(truthful(range(20)))
    model, restored = predictor(), predictor(seed=9)
    model.fit(answers, max_updates=20)
    save_state(tmp_path / "state.npz", model.state_dict())
    restored.load_state_dict(load_state(tmp_path / "state.npz"))
    segment = make_segment(500)
    for _ in range(2):
        expected = model.rewards(segment.observations, segment.actions)
        assert (restored.rewards(segment.observations, segment.actions) == expected).all()
        assert model.fit(answers) == restored.fit(answers)


@pytest.mark.parametrize("settings", [{"members": 4}, {"hidden": 8}, {"inputs": "state"}, {"adapt": True}])
def test_the_state_of_other_settings_is_refused_in_a_line(settings: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"^the saved predictor does not match these --reward.*$"):
        predictor(**settings).load_state_dict(predictor().state_dict())


def test_a_saved_state_does_not_change_with_the_predictor() -> None:
    answers = dataset(truthful(range(20)))
    model = predictor()
    model.fit(answers)
    state = model.state_dict()
    weights = state["network"]["weights.0"].clone()
    moments = state["fitter"]["optimizer"][0]["exp_avg"].copy()
    model.fit(answers)
    assert (state["network"]["weights.0"] == weights).all()
    assert (state["fitter"]["optimizer"][0]["exp_avg"] == moments).all()


def test_discrete_actions_are_told_apart_wherever_they_start() -> None:
    config = RewardConfig(inputs="action", model="network")
    model = RewardPredictor(OBSERVATIONS, spaces.Discrete(3, start=5), config, seed=1)
    rewards = model.rewards(np.zeros((3, 3)), np.array([5, 6, 7]))
    assert len(set(rewards.tolist())) == 3
    same = RewardPredictor(OBSERVATIONS, spaces.Discrete(3), config, seed=1)
    assert (same.rewards(np.zeros((3, 3)), np.array([0, 1, 2])) == rewards).all()


def test_fitting_to_nothing_changes_nothing() -> None:
    """A labeler may undo the only answer."""
    answer = Preference(uuid_with(trained=True), make_segment(1), make_segment(2), 1.0)
    answers = dataset([answer])
    model = predictor()
    model.fit(answers)
    expected = model.segment_returns([answer.first, answer.second])
    answers.upsert([Preference(answer.uuid, answer.first, answer.second, None)])
    for nothing in (answers, PreferenceDataset()):
        report = model.fit(nothing)
        assert report.updates == 0
        assert np.isnan([report.loss, report.validation_loss, report.accuracy]).all()
        assert (model.segment_returns([answer.first, answer.second]) == expected).all()


def test_one_answer_is_enough_to_fit() -> None:
    answer = Preference(uuid_with(trained=True), make_segment(1), make_segment(2), 1.0)
    report, again = (predictor().fit(dataset([answer]), max_updates=10) for _ in range(2))
    assert report.loss < np.log(20)
    assert np.isnan(report.validation_loss)
    assert np.isnan(report.accuracy)
    assert report == again
    assert hash(report) == hash(again)
    assert report not in (replace(report, updates=1), replace(report, accuracy=0.0), "NaN")


def test_an_answer_held_out_from_everyone_trains_nobody() -> None:
    model = predictor()
    before = {name: value.clone() for name, value in model.state_dict()["network"].items()}
    model.fit(dataset([Preference(uuid_with(trained=False), make_segment(1), make_segment(2), 1.0)]))
    after = model.state_dict()["network"]
    assert (before["weights.1"] == after["weights.1"]).all()
    assert (before["weights.2"] == after["weights.2"]).all()


@pytest.mark.parametrize("limits", [{"max_epochs": 1}, {"max_epochs": 3}, {"max_updates": 30}])
def test_diverged_fit_changes_nothing(limits: dict[str, Any]) -> None:
    answers = dataset(truthful(range(20)))
    model = predictor(learning_rate=1e30, regularization="l2", strength=0.0)
    model.fit(answers, max_epochs=0)
    segments = [make_segment(seed) for seed in range(4)]
    before, state = model.segment_returns(segments), model.state_dict()
    assert model.fit(answers, **limits).diverged
    assert (model.segment_returns(segments) == before).all()
    after = model.state_dict()
    assert all((after["network"][name] == value).all() for name, value in state["network"].items())
    for found, wanted in zip(after["fitter"]["optimizer"], state["fitter"]["optimizer"], strict=True):
        assert all((found[name] == wanted[name]).all() for name in wanted)


def test_a_fit_goes_as_far_as_the_settings_say() -> None:
    answers = dataset(truthful(range(20)))
    assert predictor(epochs=4).fit(answers).updates == predictor().fit(answers, max_epochs=4).updates == 4
    converged = predictor(converge=True, patience=20).fit(answers)
    assert converged == predictor(patience=20).fit(answers, max_updates=10_000)
    assert converged.updates > 20


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ({"max_epochs": -1}, "max_epochs: expected a whole number, 0 or more; got -1"),
        ({"max_epochs": 2.5}, "max_epochs: expected a whole number, 0 or more; got 2.5"),
        ({"max_updates": "7"}, "max_updates: expected a whole number, 0 or more; got '7'"),
        ({"max_epochs": 1, "max_updates": 20}, "max_epochs (1) and max_updates (20) can't be combined"),
    ],
)
def test_limits_are_whole_numbers(limits: dict[str, Any], refusal: str) -> None:
    model = predictor()
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        model.fit(dataset(truthful(range(4))), **limits)


def test_initial_epochs_apply_to_the_first_fit(tmp_path: Path) -> None:
    answers = dataset(truthful(range(40)))
    model, plain = predictor(initial_epochs=7, epochs=3), predictor(epochs=3)
    assert model.fit(answers).updates == plain.fit(answers, max_epochs=7).updates
    save_state(tmp_path / "state.npz", model.state_dict())
    later = predictor(initial_epochs=7, epochs=3)
    later.load_state_dict(load_state(tmp_path / "state.npz"))
    assert later.fit(answers).updates == model.fit(answers).updates == plain.fit(answers).updates
    asked = predictor(initial_epochs=7)
    assert asked.fit(answers, max_epochs=1).updates == plain.fit(answers, max_epochs=1).updates


def test_more_answers_than_the_settings_want_are_refused() -> None:
    answers, model = dataset(truthful(range(8))), predictor(max_preferences=5)
    with pytest.raises(
        ConfigError, match=r"has 8 preferences, but .*max_preferences is 5; set .* max_size to 5"
    ):
        model.fit(answers)
    answers.max_size = 5
    assert model.fit(answers).updates > 0


def test_a_fit_to_answers_that_tell_nothing_is_told() -> None:
    def fit(*values: float, trained: bool = True) -> bool:
        ids = [uuid_with(trained), UUID(int=1 << 90), UUID(int=1 << 91)]
        pairs = [(make_segment(2 * n), make_segment(2 * n + 1)) for n in range(3)]
        found = [Preference(id_, *pair, value) for id_, pair, value in zip(ids, pairs, values, strict=False)]
        return predictor().fit(dataset(found), max_epochs=1).undecided

    assert fit()
    assert fit(0.5, 0.5, 0.5)
    assert fit(1.0, trained=False)
    assert not fit(0.6, 0.5, 0.5)
    assert not fit(1.0, 1.0, 1.0)


def test_a_fit_to_many_ties_is_told() -> None:
    def problems(*values: float) -> set[str]:
        found = [
            Preference(UUID(int=number), make_segment(2 * number), make_segment(2 * number + 1), value)
            for number, value in enumerate(values)
        ]
        return set(predictor().fit(dataset(found), max_epochs=1).problems(""))

    assert "ties" in problems(*[0.5] * 6, *[1.0] * 4)
    assert "ties" not in problems(*[0.5] * 5, *[1.0] * 5)
    assert problems(*[0.5] * 10) == {"undecided"}
    assert problems() == {"undecided"}


@pytest.mark.parametrize(
    ("space", "network", "setting"),
    [
        (OBSERVATIONS, None, "image_dropout"),
        (OBSERVATIONS, None, "no_image_batch_norm"),
        (IMAGES, None, "hidden"),
        (IMAGES, None, "dropout"),
        (OBSERVATIONS, torch.nn.Linear, "hidden"),
        (IMAGES, torch.nn.Linear, "image_dropout"),
    ],
)
def test_misplaced_settings_are_refused(space: spaces.Space[Any], network: Any, setting: str) -> None:
    own = network is not None
    reject_unused_of_network(RewardConfig(), space, own_network=own)
    values: dict[str, Any] = {
        "hidden": 5, "dropout": 0.1, "image_dropout": 0.1, "no_image_batch_norm": True
    }  # fmt: skip
    with pytest.raises(ConfigError, match=rf"^reward\.{setting}: has no effect .*; got "):
        reject_unused_of_network(RewardConfig(**{setting: values[setting]}), space, own_network=own)


@pytest.mark.parametrize(
    ("difference", "value", "right"),
    [
        *((0.3, 0.5, True), (-0.3, 0.5, True), (2.0, 0.5, False), (-2.0, 0.5, False)),
        *((0.1, 0.8, True), (0.1, 0.0, False), (-3.0, 0.0, True)),
    ],
)
def test_equal_is_right_near_one_half_and_other_labels_by_the_side(
    difference: float, value: float, right: bool
) -> None:
    """0.3 and 2 are the logits of 0.57 and 0.88."""
    first, second = make_segment(1), make_segment(2)
    model = predictor(label_noise=0.0) if value == 0.5 else predictor()
    scale_to(model, difference, first, second)
    report = model.fit(dataset([Preference(uuid_with(trained=False), first, second, value)]), max_epochs=0)
    assert report.accuracy == float(right)


def scale_to(model: RewardPredictor, difference: float, first: Segment, second: Segment) -> None:
    """Multiply what each member says, so that the first's return is so much above the second's."""
    state = model.state_dict()
    first_returns, second_returns = model.member_returns([first, second]).T
    for member, factor in enumerate(difference / (first_returns - second_returns)):
        for name in ("weights.2", "biases.2"):
            state["network"][name][member] *= factor
    model.load_state_dict(state)


def test_the_loss_of_the_true_reward_is_that_of_its_returns() -> None:
    preferences = truthful(range(30))
    differences = np.array([p.first.true_return - p.second.true_return for p in preferences])
    chosen = 0.9 / (1 + np.exp(-np.abs(differences))) + 0.05  # these labels never err
    report = predictor().fit(dataset(preferences), max_epochs=0)
    assert report.true_loss == pytest.approx(-np.log(chosen).mean(), rel=1e-4)


def test_following_a_rollout_changes_rewards_where_these_are_normalized_so() -> None:
    answers, rollout = dataset(truthful(range(20))), make_segment(500, length=300)
    for by, follows in (("running", True), ("preferences", False)):
        model = predictor(normalization=by)
        model.fit(answers)
        before = model.step_rewards(rollout)
        model.follow(rollout)
        after = model.step_rewards(rollout)
        assert (before == after).all() != follows
        assert (abs(after.mean()) < 1e-6) == follows


def test_a_feature_that_never_varied_does_no_harm() -> None:
    preferences = truthful(range(10))
    for preference in preferences:
        for segment in (preference.first, preference.second):
            segment.observations[:, 1] = 4.0
    model = predictor()
    model.fit(dataset(preferences))
    assert np.isfinite(model.rewards(np.full((1, 3), 1e9), np.zeros((1, 2)))).all()


def test_labels_of_another_environment_are_refused_by_default() -> None:
    model, answers = predictor(), dataset(truthful(range(4)))
    model.fit(answers, max_epochs=1)
    before = model.segment_returns([make_segment(1)])
    answers.env_id = "Other-v0"
    with pytest.raises(DataError, match=r"labels are from Other-v0, .* fitted to Any-v0; .* to None"):
        model.fit(answers, max_epochs=1)
    assert model.env_id == "Any-v0"
    assert model.segment_returns([make_segment(1)]) == before
    model.env_id = None
    model.fit(answers, max_epochs=1)
    assert model.env_id == "Other-v0"
    answers.env_id = None
    model.fit(answers, max_epochs=1)
    assert model.env_id == "Other-v0"


@pytest.mark.parametrize("name", ["observations", "actions"])
def test_no_reward_is_predicted_from_what_is_no_number(name: str) -> None:
    model, segment = predictor(), make_segment(1)
    steps = {"observations": segment.observations.copy(), "actions": segment.actions.copy()}
    steps[name][2, 1] = np.nan
    with pytest.raises(DataError, match="can't predict rewards: the observations or actions contain NaN"):
        model.rewards(**steps)
    steps[name][2, 1] = np.inf  # as far away as anything can count
    assert np.isfinite(model.rewards(**steps)).all()


def test_rewards_of_damaged_parameters_are_refused() -> None:
    model, segment = predictor(), make_segment(1)
    state = model.state_dict()
    state["network"] = {name: value * np.nan for name, value in state["network"].items()}
    model.load_state_dict(state)
    with pytest.raises(
        DataError, match=r"are NaN or infinite although .* are finite: .*; fit the predictor again"
    ):
        model.step_rewards(segment)


def test_networks_minimize_a_custom_loss() -> None:
    """The default loss, passed in, gives the default fit; its mirror image gives the opposite rewards."""
    config, labels = (
        RewardConfig(inputs="state,action", features="plain"),
        dataset(truthful(range(40))),
    )

    def mirrored(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return preference_loss(-logits, values, 0.1)

    default = predictor(model="network", features="plain")
    passed, opposite = (
        RewardPredictor(OBSERVATIONS, ACTIONS, config, 1, loss=loss)
        for loss in (partial(preference_loss, noise=0.1), mirrored)
    )
    for model in (default, passed, opposite):
        assert model.model == "network"
        model.fit(labels, max_epochs=30)
    segments = [make_segment(seed) for seed in range(10_000, 10_200)]
    np.testing.assert_array_equal(passed.segment_returns(segments), default.segment_returns(segments))
    assert spearman(passed) > 0.5 > -0.5 > spearman(opposite)
    with pytest.raises(ConfigError, match="model=linear can't be used with a custom loss"):
        RewardPredictor(OBSERVATIONS, ACTIONS, RewardConfig(model="linear"), 1, loss=mirrored)
