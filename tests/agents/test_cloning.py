"""A policy learns to act as demonstrated, from the weights it has, and keeps what cloning does not need."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from agents.cloning import STD_BOUNDS, CloningLoss, check_demonstrations, clone
from agents.errors import (
    DemonstrationMismatchError,
    InvalidConfigError,
    NonFiniteError,
    UnsupportedSpaceError,
)
from agents.ppo import PPO, PPOConfig
from agents.sac import SAC
from agents.sac_step import SACConfig
from tests.agents.conftest import Shown, counting_envs, make_agent, parameters
from tests.environments import balance


def shown(act: Callable[[NDArray[Any]], NDArray[Any]], size: int = 512, held_out: int = 64) -> Shown:
    """Return what ``act`` does on random observations ``(n, 3)`` far from mean 0 and variance 1."""
    observations = np.random.default_rng(0).normal([5, -20, 0], [1, 10, 0.1], (size + held_out, 3))
    actions = act(observations)
    return Shown((observations[:size], actions[:size]), (observations[size:], actions[size:]))


def choose(observations: NDArray[Any]) -> NDArray[Any]:
    """One of three choices, counted from 5, as ``(n, 1)``."""
    return 5 + (observations[:, 1:2] > -25).astype(np.int64) + (observations[:, 1:2] > -15)


def steer(observations: NDArray[Any]) -> NDArray[Any]:
    """Two numbers within the box of the counting environments."""
    standardized = (observations - [5, -20, 0]) / [1, 10, 0.1]
    return 0.5 * np.tanh(standardized[:, :2] + standardized[:, 2:]).astype(np.float32)


@pytest.fixture(params=["Box", "Discrete"])
def case(request: pytest.FixtureRequest) -> tuple[Callable[..., PPO], Shown]:
    """Makes agents with one kind of action, and demonstrations for them."""
    box = request.param == "Box"

    def make(**more: Any) -> PPO:
        envs = counting_envs() if box else counting_envs(action_space=Discrete(3, start=5))
        return PPO(envs, PPOConfig(num_steps=32, minibatch_size=16), seed=0, **more)

    return make, shown(steer if box else choose)


def test_it_learns_what_is_shown(case: tuple[Callable[..., PPO], Shown]) -> None:
    make, demonstrations = case
    agent = make()
    losses = clone(agent, demonstrations, n_epochs=25, learning_rate=3e-3)
    observations, actions = demonstrations.validation
    played = agent.act(observations, deterministic=True)
    if played.ndim == 1:
        assert (played == actions[:, 0]).mean() > 0.9
    else:
        assert np.square(played - actions).mean() < 0.01, "the variance of the actions is 0.1"
    assert losses[-1].train < 0.2 * losses[0].train
    assert losses[-1].validation < 0.5 * losses[0].validation


def test_losses_are_those_of_the_definition(case: tuple[Callable[..., PPO], Shown]) -> None:
    """Cross-entropy, or mean squared error of the mean; both by hand from the actor's outputs."""
    make, demonstrations = case
    agent = make(dtype=torch.float64)
    (loss,) = clone(agent, demonstrations, n_epochs=1)
    observations, actions = demonstrations.validation
    with torch.no_grad():
        outputs = agent.policy.actor(agent.policy.tensor(agent.normalizer(observations))).numpy()
    if outputs.shape == actions.shape:
        expected = ((outputs - actions) ** 2).sum() / actions.size
    else:
        probabilities = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        expected = -np.log(probabilities[np.arange(len(actions)), actions[:, 0] - 5]).mean()
    assert loss.validation == pytest.approx(expected, rel=1e-9)


def test_clipped_actions_are_no_error() -> None:
    agent = make_agent()
    demonstrations = shown(lambda observations: np.full((len(observations), 2), 0.5, np.float32))
    output: Any = agent.policy.actor[-1]
    with torch.no_grad():
        output.bias.fill_(2.0)
    (loss,) = clone(agent, demonstrations, n_epochs=1)
    assert loss.train == loss.validation == 0
    np.testing.assert_array_equal(output.bias.detach(), 2.0)
    with torch.no_grad():
        output.bias.fill_(-2.0)  # clipped to the other bound, which is wrong, and must not stay
    assert clone(agent, demonstrations, n_epochs=30, learning_rate=1e-2)[-1].validation < 1e-3


def test_sac_learns_demonstrations_from_the_first_step() -> None:
    config = SACConfig(hidden_sizes=(32, 32), learning_starts=1000, normalize_observations=True)
    agent, demonstrations = SAC(counting_envs(), config, seed=0), shown(steer)
    before = {name: value.clone() for name, value in agent.policy.critic.state_dict().items()}
    losses = clone(agent, demonstrations, n_epochs=25, learning_rate=3e-3)
    observations, actions = demonstrations.validation
    played = agent.act(observations, deterministic=True)
    assert np.square(played - actions).mean() < 0.01, "the variance of the actions is 0.1"
    assert losses[-1].validation == pytest.approx(4 * np.square(played - actions).mean(), rel=1e-4)
    for name, value in agent.policy.critic.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        outputs = agent.policy.actor(agent.policy.tensor(agent.normalizer(observations)))
    stds = outputs[:, 2:].exp()
    assert ((stds >= STD_BOUNDS[0] - 1e-6) & (stds <= STD_BOUNDS[1])).all()
    torch.testing.assert_close(stds, stds[:1].expand_as(stds))
    first = agent.collect()
    assert (
        np.abs(first.executed_actions[0] - agent.act(first.observations[0], deterministic=True)).max() > 0.1
    )
    agent.skip_random_actions()
    for _ in range(20):
        rollout = agent.collect()
        meant = agent.act(rollout.observations[0], deterministic=True)
        assert np.abs(rollout.executed_actions[0] - meant).max() < 0.5 * 5 * STD_BOUNDS[0]


def test_the_critic_and_the_optimizer_are_left_alone(case: tuple[Callable[..., PPO], Shown]) -> None:
    make, demonstrations = case
    agent = make()
    before = parameters(agent)
    clone(agent, demonstrations, n_epochs=1)
    changed = {name for name, value in parameters(agent).items() if not np.array_equal(value, before[name])}
    assert changed == {name for name in before if name.startswith("actor.") or name == "head.log_std"}
    assert all(len(entry) == 3 for entry in agent.state_dict()["optimizer"].values())
    assert all(not np.any(entry["exp_avg"]) for entry in agent.state_dict()["optimizer"].values())


def test_a_second_call_goes_on(case: tuple[Callable[..., PPO], Shown]) -> None:
    make, demonstrations = case
    agent = make()
    first = clone(agent, demonstrations, n_epochs=20)
    before = parameters(agent)
    second = clone(agent, demonstrations, n_epochs=1, learning_rate=1e-9)
    assert second[0].train == pytest.approx(first[-1].train, rel=0.2)
    for name, value in parameters(agent).items():
        np.testing.assert_allclose(value, before[name], atol=1e-6)


def test_rl_continues_from_the_cloned_weights(case: tuple[Callable[..., PPO], Shown]) -> None:
    """Also where the gradient step keeps the parameters in an array of its own."""
    make, demonstrations = case
    trained = []
    for allow_numpy in (True, False):
        agent = make(allow_numpy=allow_numpy, dtype=torch.float64)
        clone(agent, demonstrations, n_epochs=3)
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
        trained.append(parameters(agent))
    for name, value in trained[0].items():
        np.testing.assert_allclose(value, trained[1][name], rtol=1e-6, atol=1e-8)


def test_new_normalizer_takes_in_the_training_observations() -> None:
    agent, demonstrations = make_agent(), shown(steer)
    for _ in range(2):
        clone(agent, demonstrations, n_epochs=1)
        assert agent.normalizer.statistics.count == 512
        np.testing.assert_allclose(agent.normalizer.statistics.mean, demonstrations.train[0].mean(0))


def test_a_trained_normalizer_stays() -> None:
    agent = make_agent()
    rollout = agent.collect()
    agent.update(rollout, rollout.rewards)
    before = agent.normalizer.statistics.state_dict()
    clone(agent, shown(steer), n_epochs=1)
    np.testing.assert_equal(agent.normalizer.statistics.state_dict(), before)


def test_the_spread_of_the_actions_is_that_of_the_errors() -> None:
    agent, demonstrations = make_agent(), shown(steer)
    noise = np.random.default_rng(1).normal(0, [0.02, 0.3], (512, 2))
    actions = (0.3 * demonstrations.train[1] + noise).astype(np.float32).clip(-0.5, 0.5)
    clone(agent, Shown((demonstrations.train[0], actions), demonstrations.validation), n_epochs=30)
    policy = agent.policy
    with torch.no_grad():
        means = policy.actor(policy.tensor(agent.normalizer(demonstrations.train[0]))).numpy()
    std = np.exp(parameters(agent)["head.log_std"])
    assert std[0] == pytest.approx(STD_BOUNDS[0])
    assert std[1] == pytest.approx(np.sqrt(np.square(means - actions).mean(0)[1]), rel=1e-4)
    assert 0.2 < std[1] < 0.3, "the noise, clipped to the box"


def test_it_validates_at_intervals_and_at_the_end() -> None:
    losses = clone(make_agent(), shown(steer, 64), n_epochs=7, val_interval=3)
    assert [loss.epoch for loss in losses] == [3, 6, 7]
    (unvalidated,) = clone(make_agent(), shown(steer, 64, held_out=0), n_epochs=2, val_interval=9)
    assert unvalidated.epoch == 2
    assert np.isnan(unvalidated.validation)
    assert unvalidated.train < 1


def overfitting() -> Shown:
    """Demonstrations whose held-out part contradicts the rest after a while."""
    demonstrations = shown(steer)
    demonstrations.validation[1][:] = 0.3 * steer(demonstrations.validation[0])
    return demonstrations


def test_it_stops_early_and_keeps_the_best_weights() -> None:
    agent, demonstrations = make_agent(), overfitting()
    losses = clone(agent, demonstrations, n_epochs=200, learning_rate=3e-3, patience=4)
    assert len(losses) < 200
    best = min(losses, key=lambda loss: loss.validation)
    assert losses.index(best) == len(losses) - 5
    to_the_best = make_agent()
    clone(to_the_best, demonstrations, n_epochs=best.epoch, learning_rate=3e-3)
    np.testing.assert_equal(parameters(agent), parameters(to_the_best))


def test_without_patience_it_keeps_the_last_weights() -> None:
    agent, demonstrations = make_agent(), overfitting()
    losses = clone(agent, demonstrations, n_epochs=60, learning_rate=3e-3)
    assert [loss.epoch for loss in losses] == list(range(1, 61))
    played = agent.act(demonstrations.validation[0], deterministic=True)
    error = float(np.square(played - demonstrations.validation[1]).mean())
    assert error == pytest.approx(losses[-1].validation, rel=0.2)
    assert losses[-1].validation > 1.1 * min(loss.validation for loss in losses)


def test_the_same_calls_give_the_same_weights() -> None:
    def cloned() -> tuple[list[CloningLoss], dict[str, NDArray[Any]]]:
        agent = make_agent()
        return clone(agent, shown(steer), n_epochs=2), parameters(agent)

    np.testing.assert_equal(cloned(), cloned())


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ({"n_epochs": 0}, "n_epochs must be at least 1, not 0"),
        ({"val_interval": 0}, "val_interval must be at least 1, not 0"),
        ({"patience": 0}, "patience must be at least 1, not 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, not nan"),
    ],
)
def test_invalid_values_refused(number: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        clone(make_agent(), shown(steer), **{"n_epochs": 1, **number})


def test_stopping_early_needs_something_held_out() -> None:
    with pytest.raises(InvalidConfigError, match="hold some out"):
        clone(make_agent(), shown(steer, held_out=0), n_epochs=1, patience=1)


def test_demonstrations_of_another_environment_change_nothing() -> None:
    agent, demonstrations = make_agent(), shown(steer)
    before = copy.deepcopy(agent.state_dict())
    observations, actions = demonstrations.train
    for train, message in (
        ((observations[:, :2], actions), r"observations of shape \(3,\), got \(2,\); use demonstrations"),
        ((observations, actions[:, :1]), r"actions of shape \(2,\), got \(1,\); use demonstrations"),
        ((observations, actions[:5]), "5 actions for 512 observations; pass one action per observation"),
    ):
        with pytest.raises(DemonstrationMismatchError, match=message):
            clone(agent, Shown(train, demonstrations.validation), n_epochs=1)
    np.testing.assert_equal(agent.state_dict(), before)


@pytest.mark.parametrize(("action", "named"), [(4, "4"), (8, "8"), (5.5, "5.5")])
def test_a_choice_that_there_is_not_is_refused(action: float, named: str) -> None:
    actions = np.array([[5], [action], [6]])
    with pytest.raises(DemonstrationMismatchError, match=rf"actions in Discrete\(3, start=5\), got {named};"):
        check_demonstrations((np.zeros((3, 2)), actions), (2,), Discrete(3, start=5))


def test_choices_may_come_without_their_own_dimension() -> None:
    check_demonstrations((np.zeros((3, 2)), np.array([0, 1, 2], np.uint8)), (2,), Discrete(3))
    with pytest.raises(DemonstrationMismatchError, match=r"actions of shape \(1,\), got \(2,\)"):
        check_demonstrations((np.zeros((3, 2)), np.zeros((3, 2))), (2,), Discrete(3))


def test_choices_of_several_kinds_are_learned_together() -> None:
    space = MultiDiscrete([3, 2], start=[5, -1])
    agent = PPO(counting_envs(action_space=space), PPOConfig(), seed=0, dtype=torch.float64)
    demonstrations = shown(lambda x: np.hstack([choose(x), (x[:, 2:] > 0) - 1]))
    losses = clone(agent, demonstrations, n_epochs=25, learning_rate=3e-3)
    observations, actions = demonstrations.validation
    assert (agent.act(observations, deterministic=True) == actions).mean() > 0.9
    with torch.no_grad():
        outputs = agent.policy.actor(agent.policy.tensor(agent.normalizer(observations))).numpy()
    expected = 0.0
    for logits, chosen in ((outputs[:, :3], actions[:, 0] - 5), (outputs[:, 3:], actions[:, 1] + 1)):
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        expected -= np.log(probabilities[np.arange(len(actions)), chosen]).mean()
    assert losses[-1].validation == pytest.approx(expected, rel=1e-9)


def test_numbers_that_are_no_actions_of_the_space_are_refused() -> None:
    observations, box = np.zeros((3, 2)), Box(-1, 1, (1,), np.float32)
    for actions, space, message in (
        (np.array([[0], [1], [0]]), box, "actions of a float dtype, got int64"),
        (np.array([[0.0], [np.nan], [0]]), box, r"actions in Box\(-1.0, 1.0, \(1,\), float32\), got nan"),
        (np.array([[0.0], [1.1], [0]]), box, r"actions in Box\(-1.0, 1.0, \(1,\), float32\), got 1.1"),
        (np.array([[0, 1], [0, 2], [0, 0]]), MultiDiscrete([2, 2]), r"actions in MultiDiscrete.*, got 2"),
        (np.array([[0], [1], [0]]), MultiDiscrete([2, 2]), r"actions of shape \(2,\), got \(1,\)"),
    ):
        with pytest.raises(DemonstrationMismatchError, match=f"^Expected demonstrations with {message}"):
            check_demonstrations((observations, actions), (2,), space)
    check_demonstrations((observations, np.array([[0.0], [1 + 1e-7], [-1]])), (2,), box)


def test_other_actions_are_refused() -> None:
    with pytest.raises(
        UnsupportedSpaceError, match="only Box, Discrete and MultiDiscrete actions, not Multi"
    ):
        check_demonstrations((np.zeros((3, 2)), np.zeros((3, 2))), (2,), MultiBinary(2))


def test_a_loss_that_explodes_changes_nothing() -> None:
    agent = make_agent()
    before = copy.deepcopy(agent.state_dict())
    with pytest.raises(NonFiniteError, match="in epoch 1; lower the learning rate"):
        clone(agent, shown(steer), n_epochs=3, learning_rate=1e30)
    np.testing.assert_equal(agent.state_dict(), before)


@pytest.mark.parametrize("part", ["train", "validation"])
def test_nan_observation_changes_nothing(part: str) -> None:
    agent, demonstrations = make_agent(), shown(steer)
    getattr(demonstrations, part)[0][7, 1] = np.nan
    before = copy.deepcopy(agent.state_dict())
    with pytest.raises(NonFiniteError, match=r"finite demonstrated observations .* got nan at \(7, 1\)"):
        clone(agent, demonstrations, n_epochs=2, patience=1)
    np.testing.assert_equal(agent.state_dict(), before)


def test_ten_episodes_of_cartpole_give_nine_tenths_of_the_experts_return() -> None:
    env, episodes = gymnasium.make("CartPole-v1", max_episode_steps=200), []
    for seed in range(10):
        observation, ended = env.reset(seed=seed)[0], False
        while not ended:
            episodes.append((observation, balance(observation)))
            observation, _, terminated, truncated, _ = env.step(episodes[-1][1])
            ended = terminated or truncated
    pairs = np.stack([pair[0] for pair in episodes]), np.array([pair[1] for pair in episodes])
    expert_return = len(episodes) / 10
    assert expert_return == 200

    agent = PPO(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]), PPOConfig(), seed=0)
    clone(agent, Shown(pairs, (pairs[0][:0], pairs[1][:0])), n_epochs=10)
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=200)] * 10)
    observations, alive, steps = envs.reset(seed=1000)[0], np.ones(10, bool), 0
    while alive.any():
        steps += alive.sum()
        observations, _, fell, timed_out, _ = envs.step(agent.act(observations, deterministic=True))
        alive &= ~(fell | timed_out)
    assert steps / 10 >= 0.9 * expert_return
