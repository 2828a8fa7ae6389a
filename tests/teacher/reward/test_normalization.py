"""From raw rewards of members to one reward, against numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from teacher.reward.normalization import RewardNormalizer
from teacher.settings.options import RewardConfig


def normalization(**settings: Any) -> RewardNormalizer:
    return RewardNormalizer(RewardConfig(**{"reward_std": 0.5, **settings}), torch.device("cpu"))


def outputs(seed: int, steps: int = 50) -> Tensor:
    """Members of very different scale."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(3, steps, generator=random) * torch.tensor([[1.0], [10.0], [0.1]]) + seed


def by_numpy(raw: Tensor, of: Tensor) -> Any:
    """Each member's deviations from its mean over ``of``, ``(3, steps)``."""
    values, reference = raw.numpy(), of.numpy()
    return (values - reference.mean(1, keepdims=True)) / reference.std(1, keepdims=True)


def test_by_preferences_members_are_normalized_averaged_and_scaled() -> None:
    ours = normalization()
    ours.fit(outputs(1))
    means = by_numpy(outputs(2), of=outputs(1)).mean(0)
    expected = means * 0.5 / by_numpy(outputs(1), of=outputs(1)).mean(0).std()
    np.testing.assert_allclose(ours(outputs(2)), expected, rtol=1e-4, atol=1e-5)


def test_bonus_is_a_multiple_of_the_members_standard_deviation() -> None:
    plain, bonus = normalization(), normalization(uncertainty_bonus=2.0)
    for ours in (plain, bonus):
        ours.fit(outputs(1))
    members = by_numpy(outputs(2), of=outputs(1))
    scale = 0.5 / by_numpy(outputs(1), of=outputs(1)).mean(0).std()
    expected = plain(outputs(2)).numpy() + 2 * scale * members.std(0, ddof=1)
    np.testing.assert_allclose(bonus(outputs(2)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_running_is_by_all_steps_that_rewards_were_used_for(bonus: float) -> None:
    ours, rollouts = (
        normalization(normalization="running", uncertainty_bonus=bonus),
        [outputs(2), outputs(3, 90)],
    )
    ours.fit(outputs(1))
    for rollout in rollouts:
        ours.follow(rollout)
    rewards = np.concatenate([ours(rollout) for rollout in rollouts])
    assert rewards.mean() == pytest.approx(0, abs=1e-5)
    assert rewards.std() == pytest.approx(0.5, rel=1e-4)


def test_running_is_by_preferences_before_anything_else_and_is_not_forgotten_in_a_refit() -> None:
    ours, by_preferences = normalization(normalization="running"), normalization()
    for each in (ours, by_preferences):
        each.fit(outputs(1))
    assert (ours(outputs(2)) == by_preferences(outputs(2))).all()
    ours.follow(outputs(2))
    before = ours(outputs(3))
    ours.fit(outputs(1))
    torch.testing.assert_close(ours(outputs(3)), before)


def test_none_leaves_the_average_of_the_members() -> None:
    ours = normalization(normalization="none")
    ours.fit(outputs(1))
    torch.testing.assert_close(ours(outputs(2)), outputs(2).mean(0))


@pytest.mark.parametrize("by", ["preferences", "running", "none"])
@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_absorbing_states_earn_0(by: str, bonus: float) -> None:
    inputs = "next_state,absorbing"
    ours = normalization(normalization=by, uncertainty_bonus=bonus, inputs=inputs)
    plain = normalization(normalization=by, uncertainty_bonus=bonus)
    absorbing = torch.arange(50) % 7 == 0
    for each in (ours, plain):
        each.fit(outputs(1), absorbing if each is ours else None)
        if by == "running":
            each.follow(outputs(2))
    assert float(ours(outputs(1))[absorbing].mean()) == pytest.approx(0, abs=1e-4)
    shift = (ours(outputs(3)) - plain(outputs(3))).numpy()
    np.testing.assert_allclose(shift, shift[0], rtol=1e-3)
    assert abs(shift[0]) > 1e-3
    restored = normalization(normalization=by, uncertainty_bonus=bonus, inputs=inputs)
    restored.load_state_dict(ours.state_dict())
    for each in (ours, restored):
        each.fit(outputs(4))  # no episode ended
        if by == "running":
            each.follow(outputs(3))
    assert (ours(outputs(4)) == restored(outputs(4))).all()


@pytest.mark.parametrize("by", ["preferences", "running"])
def test_a_saved_one_goes_on_exactly(by: str) -> None:
    ours, restored = normalization(normalization=by), normalization(normalization=by)
    ours.fit(outputs(1))
    if by == "running":
        ours.follow(outputs(2))
    restored.load_state_dict(ours.state_dict())
    for each in (ours, restored):
        if by == "running":
            each.follow(outputs(3))
    assert (ours(outputs(4)) == restored(outputs(4))).all()


def test_states_before_normalization_options_load() -> None:
    ours, restored = normalization(), normalization()
    ours.fit(outputs(1))
    state = ours.state_dict()
    restored.load_state_dict({name: state[name] for name in ("output_mean", "output_std", "scale")})
    assert (ours(outputs(4)) == restored(outputs(4))).all()


def test_constant_rewards_set_no_scale() -> None:
    """A linear model predicts 0 for every step until it is fitted."""
    ours, fresh = (normalization(normalization="running") for _ in range(2))
    ours.follow(torch.zeros(3, 50))
    for each in (ours, fresh):
        each.fit(outputs(1))
        each.follow(outputs(2))
    np.testing.assert_array_equal(ours(outputs(3)).numpy(), fresh(outputs(3)).numpy())
