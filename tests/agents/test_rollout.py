"""Advantages against recurrences written independently, episode by episode."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.errors import NonFiniteError
from agents.rollout import Batch, OnPolicyRollout, generalized_advantages, require_finite

GAMMA, LAMBDA = 0.9, 0.8


def make_rollout(seed: int, num_steps: int = 40, num_envs: int = 3) -> OnPolicyRollout:
    """Random rewards, values and ends, with a dummy transition after each end, as next-step autoreset has."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    valid, terminated, truncated = np.ones(shape, bool), np.zeros(shape, bool), np.zeros(shape, bool)
    for t in range(num_steps):
        if t > 0:
            valid[t] = ~(terminated | truncated)[t - 1]
        terminated[t] = valid[t] & (rng.random(num_envs) < 0.1)
        truncated[t] = valid[t] & (rng.random(num_envs) < 0.1)
    return OnPolicyRollout(
        observations=rng.normal(size=(*shape, 2)),
        actions=rng.normal(size=(*shape, 1)),
        executed_actions=rng.normal(size=(*shape, 1)),
        log_probs=rng.normal(size=shape),
        values=rng.normal(size=shape),
        rewards=np.where(valid, rng.normal(size=shape), 0.0),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        bootstrap_values=np.where(truncated & ~terminated, rng.normal(size=shape), 0.0),
        last_values=rng.normal(size=num_envs),
        last_observations=rng.normal(size=(num_envs, 2)),
        final_observations=rng.normal(size=((terminated | truncated).sum(), 2)),
    )


def episode_slices(rollout: OnPolicyRollout, env: int) -> list[list[int]]:
    """The valid steps of one environment, split into episodes."""
    episodes: list[list[int]] = [[]]
    for t in range(len(rollout.rewards)):
        if rollout.valid[t, env]:
            episodes[-1].append(t)
            if rollout.terminated[t, env] or rollout.truncated[t, env]:
                episodes.append([])
    return [episode for episode in episodes if episode]


def advantages_by_definition(rollout: OnPolicyRollout, rewards: NDArray[Any]) -> NDArray[np.float64]:
    """Equation 16 of the paper: for each step a sum over the rest of its episode."""
    expected = np.zeros(rewards.shape)
    for env in range(rewards.shape[1]):
        for steps in episode_slices(rollout, env):
            after_last = rollout.last_values[env]
            if rollout.terminated[steps[-1], env]:
                after_last = 0.0
            elif rollout.truncated[steps[-1], env]:
                after_last = rollout.bootstrap_values[steps[-1], env]
            values = [*rollout.values[steps, env], after_last]
            deltas = [rewards[t, env] + GAMMA * values[i + 1] - values[i] for i, t in enumerate(steps)]
            for i, t in enumerate(steps):
                expected[t, env] = sum((GAMMA * LAMBDA) ** k * delta for k, delta in enumerate(deltas[i:]))
    return expected


@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_their_definition(seed: int) -> None:
    rollout = make_rollout(seed)
    advantages = generalized_advantages(rollout, rollout.rewards, GAMMA, LAMBDA)
    np.testing.assert_allclose(advantages, advantages_by_definition(rollout, rollout.rewards), atol=1e-12)


def test_with_lambda_one_advantage_and_value_are_the_discounted_return() -> None:
    rollout = make_rollout(0, num_steps=50)
    returns = generalized_advantages(rollout, rollout.rewards, GAMMA, 1.0) + rollout.values
    checked = 0
    for env in range(3):
        for steps in episode_slices(rollout, env):
            if rollout.terminated[steps[-1], env]:
                discounts = GAMMA ** np.arange(len(steps))
                assert returns[steps[0], env] == pytest.approx(discounts @ rollout.rewards[steps, env])
                checked += 1
    assert checked > 3


def test_truncation_is_bootstrapped_and_termination_is_not() -> None:
    def advantage(*, terminated: bool, truncated: bool) -> float:
        rollout = make_rollout(0, num_steps=1, num_envs=1)
        fields = {**vars(rollout), "values": np.array([[1.0]]), "last_values": np.array([100.0])}
        fields |= {"terminated": np.array([[terminated]]), "truncated": np.array([[truncated]])}
        fields |= {"bootstrap_values": np.array([[10.0 if truncated and not terminated else 0.0]])}
        return float(
            generalized_advantages(OnPolicyRollout(**fields), np.array([[2.0]]), GAMMA, LAMBDA)[0, 0]
        )

    assert advantage(terminated=False, truncated=False) == pytest.approx(2 + GAMMA * 100 - 1)
    assert advantage(terminated=False, truncated=True) == pytest.approx(2 + GAMMA * 10 - 1)
    assert advantage(terminated=True, truncated=False) == pytest.approx(2 - 1)
    assert advantage(terminated=True, truncated=True) == pytest.approx(2 - 1)


def test_dummy_transitions_have_no_advantage_and_are_not_counted() -> None:
    rollout = make_rollout(1)
    assert not rollout.valid.all()
    assert not generalized_advantages(rollout, rollout.rewards, GAMMA, LAMBDA)[~rollout.valid].any()
    assert rollout.num_valid == sum(len(s) for env in range(3) for s in episode_slices(rollout, env))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_with_its_place(value: float) -> None:
    array = np.zeros((4, 3))
    require_finite("rewards", array)
    array[2, 1] = value
    with pytest.raises(NonFiniteError, match=r"Expected finite rewards, got -?(nan|inf) at \(2, 1\)"):
        require_finite("rewards", array)


def test_minibatches_hold_every_transition_once_and_have_nearly_one_size() -> None:
    advantages = np.arange(89.0)
    batch = Batch._make([*[advantages] * 6, np.ones(89, bool)])
    minibatches = list(batch.minibatches(7, np.random.default_rng(0)))
    sizes = {minibatch.size for minibatch in minibatches}
    assert min(sizes) >= 7
    assert max(sizes) - min(sizes) <= 1
    seen = np.concatenate([minibatch.advantages for minibatch in minibatches])
    assert sorted(seen) == advantages.tolist()
    assert seen.tolist() != advantages.tolist()
    for minibatch in minibatches:
        np.testing.assert_array_equal(minibatch.advantages, minibatch.returns)
