"""SAC: its agent in every autoreset mode, its steps against Stable-Baselines3, and its replay buffer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from stable_baselines3 import SAC as SB3SAC
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

from agents import replay
from agents.distributed import Ranks
from agents.errors import (
    InvalidConfigError,
    NonFiniteError,
    ShapeError,
    StateMismatchError,
    UnsupportedSpaceError,
)
from agents.replay import ReplayBuffer, Transitions
from agents.sac import SAC
from agents.sac_step import SACConfig, SACStep
from agents.squashed_gaussian import SquashedActorCritic, TwinCritic
from tests.agents.conftest import BOX, CountingEnv, counting_envs, made_up_batch, squashed_policy
from tests.agents.test_ppo import Target

MakeEnvs = Callable[..., SyncVectorEnv]
SMALL: dict[str, Any] = {"hidden_sizes": (16, 16), "batch_size": 8, "train_freq": 8, "gradient_steps": 2}


def make_agent(envs: SyncVectorEnv, seed: int = 0, folder: Path | None = None, **changes: Any) -> SAC:
    return SAC(envs, SACConfig(**{**SMALL, "learning_starts": 30, **changes}), seed, buffer_folder=folder)


def train(agent: SAC, rounds: int) -> list[dict[str, float]]:
    found = []
    for _ in range(rounds):
        rollout = agent.collect()
        found.append(agent.update(rollout, rollout.rewards))
    return found


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_transitions_are_those_of_the_episodes(mode: AutoresetMode) -> None:
    agent = make_agent(counting_envs(mode))
    train(agent, 6)
    assert len(agent.buffer) == agent.total_steps
    before, actions, after, rewards, terminated = agent.buffer.transitions
    assert (after[:, :2] == before[:, :2]).all(), "a transition stays within its episode"
    assert (after[:, 2] == before[:, 2] + 1).all()
    assert (rewards == after[:, 2]).all()
    env, episode, time = after.T
    ends = (time == 3 + (env + episode) % 3) & (episode % 4 < 2)
    assert (terminated == ends).all(), "an episode cut off by a limit is not terminated"
    assert (np.abs(actions) <= 0.5).all()


def test_actions_are_uniform_before_learning_starts() -> None:
    agent = make_agent(counting_envs(AutoresetMode.SAME_STEP), learning_starts=300, train_freq=1)
    metrics = train(agent, 99)
    assert metrics == [{}] * 99
    actions = agent.buffer.transitions.actions
    assert np.abs(actions).max() > 0.48
    assert actions.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.1)
    assert train(agent, 1)[0].keys() == {"critic_loss", "actor_loss", "ent_coef", "entropy"}


@pytest.mark.parametrize(("gradient_steps", "taken"), [(0, 0), (3, 3), (-1, 24)])
def test_number_of_gradient_steps(gradient_steps: int, taken: int) -> None:
    agent = make_agent(
        counting_envs(AutoresetMode.SAME_STEP), learning_starts=0, gradient_steps=gradient_steps
    )
    train(agent, 1)
    assert agent._step.state_dict()["steps"] == taken


def test_it_learns_a_continuous_target_and_explores_less() -> None:
    envs = SyncVectorEnv([Target] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    config = SACConfig(hidden_sizes=(32, 32), learning_rate=3e-3, batch_size=64, gradient_steps=4)
    agent = SAC(envs, config, seed=0)
    metrics = train(agent, 200)
    observations = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    error = agent.act(observations, deterministic=True) - observations / 2
    assert np.abs(error).mean() < 0.1
    assert metrics[-1]["ent_coef"] < metrics[20]["ent_coef"]


@pytest.mark.parametrize("in_files", [False, True])
def test_restored_agent_continues_alike(tmp_path: Path, *, in_files: bool) -> None:
    def make(seed: int) -> SAC:
        return make_agent(counting_envs(), seed, tmp_path if in_files else None)

    agent = make(0)
    train(agent, 4)
    state = agent.state_dict()
    restored = make(1)
    restored.load_state_dict(state)
    assert restored.total_steps == agent.total_steps
    observations = np.ones((4, 3))
    assert (
        restored.act(observations, deterministic=True) == agent.act(observations, deterministic=True)
    ).all()
    agent.sampler.started = False  # a restored agent starts new episodes
    if not in_files:
        agent.sampler.envs.close()
        agent.sampler.envs = counting_envs()
        assert train(restored, 2) == train(agent, 2)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = (train(make_agent(counting_envs(), seed), 4)[-1] for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_rewards_are_relabeled_and_critics_reset() -> None:
    agent = make_agent(counting_envs())
    train(agent, 4)
    agent.relabel(lambda observations, *_: observations[:, 0])
    assert (agent.buffer.transitions.rewards == agent.buffer.transitions.observations[:, 0]).all()
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    agent.reset_critics()
    after = agent.policy.state_dict()
    same = {name: bool((after[name] == before[name]).all()) for name in before}
    assert all(same[name] for name in same if name.startswith("actor"))
    assert not any(same[name] for name in same if not name.startswith("actor"))
    assert (after["critic.weights.0"] == after["target.weights.0"]).all()
    assert train(agent, 1)[0]["critic_loss"] > 0


def test_bad_rewards_change_nothing() -> None:
    agent = make_agent(counting_envs())
    rollout = agent.collect()
    with pytest.raises(ShapeError, match=r"rewards of shape \(8, 3\), got \(8,\)"):
        agent.update(rollout, rollout.rewards[:, 0])
    with pytest.raises(NonFiniteError, match="finite rewards"):
        agent.update(rollout, np.full(rollout.rewards.shape, np.nan))
    assert len(agent.buffer) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffer_size": 0}, "buffer_size must be at least 1"),
        ({"gradient_steps": -2}, "gradient_steps must be at least -1"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"tau": 1.5}, "tau must be between 0 and 1"),
        ({"ent_coef": "high"}, "ent_coef must be a positive number, auto, or auto_"),
        ({"ent_coef": "auto_0"}, "ent_coef must be"),
        ({"ent_coef": -0.1}, "ent_coef must be"),
        ({"network": dict}, "SAC supports no custom network"),
    ],
)
def test_bad_hyperparameters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        SACConfig(**changes)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (
            Box(-1, 1, (3,)),
            Discrete(2),
            r"SAC needs a bounded Box of floats as the action space, not Discrete\(2\)",
        ),
        (Box(-1, 1, (3,)), Box(-np.inf, np.inf, (2,)), "SAC needs a bounded Box"),
        (Box(0, 255, (64, 64, 3), np.uint8), Box(-1, 1, (2,)), "SAC needs vector observations, not images"),
    ],
)
def test_spaces_that_it_cannot_learn_are_refused(observations: Box, actions: Any, message: str) -> None:
    class Env(CountingEnv):
        observation_space = observations  # type: ignore[assignment]

    with pytest.raises(UnsupportedSpaceError, match=message):
        make_agent(SyncVectorEnv([lambda: Env(0, actions)]))


def test_a_second_process_is_refused() -> None:
    agent = make_agent(counting_envs())
    agent.ranks = Ranks(0, 2)
    with pytest.raises(InvalidConfigError, match="SAC trains in a single process"):
        agent.collect()


def test_another_policy_is_refused() -> None:
    agent = make_agent(counting_envs())
    state = make_agent(counting_envs(), hidden_sizes=(8,)).state_dict()
    with pytest.raises(StateMismatchError, match="parameter shapes"):
        agent.load_policy(state)


def test_actions_fill_the_bounds() -> None:
    space = Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))
    agent = make_agent(counting_envs(action_space=space), learning_starts=10_000)
    train(agent, 40)
    actions = agent.buffer.transitions.actions
    assert np.allclose(actions.min(0), space.low, atol=0.2)
    assert np.allclose(actions.max(0), space.high, atol=0.2)
    squashed = agent.policy.head.squashed(actions)
    assert np.allclose(agent.policy.head.executed(squashed), actions, atol=1e-6)
    assert gymnasium.spaces.Box(-1, 1, (2,)).contains(squashed[0].astype(np.float32))
    assert BOX.shape == (2,)


ACTIONS = Box(-2.0, 2.0, (2,), np.float64)
OBSERVATIONS = Box(-np.inf, np.inf, (5,), np.float64)


class _Env(gym.Env[Any, Any]):
    observation_space, action_space = OBSERVATIONS, ACTIONS


def sb3_with(policy: SquashedActorCritic, config: SACConfig) -> SB3SAC:
    """Return SB3's agent with our parameters, in float64."""
    sb3 = SB3SAC(
        "MlpPolicy", _Env(), learning_rate=config.learning_rate, batch_size=64, gamma=config.gamma,
        tau=config.tau, ent_coef=config.ent_coef,
        policy_kwargs={"net_arch": list(config.hidden_sizes)}, device="cpu",
    )  # fmt: skip
    for module in (sb3.actor, sb3.critic, sb3.critic_target):
        module.double()
    if sb3.log_ent_coef is not None:
        sb3.log_ent_coef.data = sb3.log_ent_coef.data.double()
    sb3.set_logger(configure(None, []))
    with torch.no_grad():
        layers = [module for module in policy.actor if isinstance(module, nn.Linear)]
        for ours, theirs in zip(layers[:-1], linear(sb3.actor.latent_pi), strict=True):
            theirs.weight.copy_(ours.weight)
            theirs.bias.copy_(ours.bias)
        for head, part in ((sb3.actor.mu, slice(0, 2)), (sb3.actor.log_std, slice(2, 4))):
            assert isinstance(head, nn.Linear)
            head.weight.copy_(layers[-1].weight[part])
            head.bias.copy_(layers[-1].bias[part])
        for critic, q_networks in ((policy.critic, sb3.critic), (policy.target, sb3.critic_target)):
            for which, network in enumerate(q_networks.q_networks):
                for (weight, bias), layer in zip(layers_of(critic, which), linear(network), strict=True):
                    layer.weight.copy_(weight)
                    layer.bias.copy_(bias)
    return sb3


def linear(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def layers_of(critic: TwinCritic, which: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return weights ``(outputs, inputs)`` and biases of one of the critics."""
    first, *middle, last = critic.weights
    weights = [first[:, which].T, *(weight[which].T for weight in middle), last[which]]
    return [(weight, bias[which, 0]) for weight, bias in zip(weights, critic.biases, strict=True)]


@pytest.mark.parametrize(
    "changes", [{}, {"ent_coef": 0.3}, {"ent_coef": "auto_0.1", "gamma": 0.9, "tau": 0.5}]
)
def test_steps_equal_those_of_sb3(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *_, **__: obs)
    policy, config = squashed_policy(**changes)
    sb3, step = sb3_with(policy, config), SACStep(policy, config)
    for number in range(5):
        batch, noise = made_up_batch(number)
        drawn = iter([noise[0], noise[1]])
        samples = ReplayBufferSamples(
            batch.observations, batch.actions, batch.next_observations,
            batch.terminated[:, None], batch.rewards[:, None],
        )  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(sb3.replay_buffer, "sample", lambda *_, drawn=samples, **__: drawn)
            patch.setattr(
                torch.distributions.Normal,
                "rsample",
                lambda self, shape=(), drawn=drawn: self.loc + self.scale * next(drawn),
            )
            sb3.train(1, 64)
        step(batch, noise)
        with torch.no_grad():
            mine = policy.actor(batch.observations)
            mu, log_std, _ = sb3.actor.get_action_dist_params(batch.observations)
            torch.testing.assert_close(mine, torch.cat([mu, log_std], 1), rtol=0, atol=1e-6)
            for critic, theirs in ((policy.critic, sb3.critic), (policy.target, sb3.critic_target)):
                q = torch.cat(theirs(batch.observations, batch.actions), 1).T
                torch.testing.assert_close(critic(batch.observations, batch.actions), q, rtol=0, atol=1e-6)
    if sb3.log_ent_coef is not None:
        assert step.log_ent_coef.item() == pytest.approx(sb3.log_ent_coef.item(), abs=1e-6)


def test_targets_follow_at_their_interval() -> None:
    policy, config = squashed_policy(target_update_interval=3, tau=1.0)
    step, equal = SACStep(policy, config), []
    for number in range(6):
        step(*made_up_batch(number))
        equal.append(all(map(torch.equal, policy.critic.parameters(), policy.target.parameters())))
    assert equal == [False, False, True, False, False, True]


def test_state_of_the_optimizers_is_restored() -> None:
    policy, config = squashed_policy()
    step = SACStep(policy, config)
    step(*made_up_batch(0))
    state, parameters = step.state_dict(), {k: v.clone() for k, v in policy.state_dict().items()}
    step(*made_up_batch(1))
    expected = torch.cat([parameter.flatten() for parameter in policy.parameters()])
    other_policy, _ = squashed_policy()
    other = SACStep(other_policy, config)
    other_policy.load_state_dict(parameters)
    other.load_state_dict(state)
    other(*made_up_batch(1))
    found = torch.cat([parameter.flatten() for parameter in other_policy.parameters()])
    assert (found == expected).all()
    assert other.log_ent_coef.item() == step.log_ent_coef.item()


STATES, FLOAT_ACTIONS = Box(-np.inf, np.inf, (3,), np.float64), Box(-2, 2, (2,), np.float32)


def numbered(start: int, count: int) -> Transitions:
    """Make transitions whose every number tells their index."""
    index = np.arange(start, start + count, dtype=np.float64)
    return Transitions(
        np.repeat(index[:, None], 3, 1),
        np.repeat(index[:, None], 2, 1).astype(np.float32),
        np.repeat(index[:, None] + 0.5, 3, 1),
        -index,
        index % 5 == 0,
    )


def indices(transitions: Transitions) -> list[int]:
    """Return the indices of numbered transitions, and check that no row is mixed."""
    index: NDArray[Any] = transitions.observations[:, 0]
    assert (transitions.observations == index[:, None]).all()
    assert (transitions.actions == index[:, None]).all()
    assert (transitions.next_observations == index[:, None] + 0.5).all()
    assert (transitions.rewards == -index).all()
    assert (transitions.terminated == (index % 5 == 0)).all()
    found: list[int] = index.astype(int).tolist()
    return found


def make_buffer(capacity: int, folder: Path | None) -> ReplayBuffer:
    return ReplayBuffer(STATES, FLOAT_ACTIONS, capacity, folder)


@pytest.fixture(params=["memory", "files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "replay" if request.param == "files" else None


@pytest.mark.parametrize("sizes", [[3, 4, 2], [10], [7, 7, 7], [25, 1]])
def test_the_last_transitions_are_kept(folder: Path | None, sizes: list[int]) -> None:
    buffer, added = make_buffer(10, folder), 0
    for size in sizes:
        buffer.add(numbered(added, size))
        added += size
    assert sorted(indices(buffer.transitions)) == list(range(max(0, added - 10), added))
    assert len(buffer) == min(10, added)


def test_transitions_are_sampled_uniformly(folder: Path | None) -> None:
    buffer = make_buffer(20, folder)
    buffer.add(numbered(0, 10))
    counts = np.bincount(indices(buffer.sample(20_000, np.random.default_rng(1))), minlength=10)
    assert counts.min() > 1800
    assert counts.max() < 2200


def test_rewards_are_relabeled_in_bulk(folder: Path | None) -> None:
    buffer = make_buffer(10, folder)
    buffer.add(numbered(0, 9))
    buffer.relabel(
        lambda observations, actions, following, ends: observations[:, 0] * 2 + following[:, 1] + ends
    )
    index = np.arange(9)
    assert (buffer.transitions.rewards == 3 * index + 0.5 + (index % 5 == 0)).all()


def test_state_is_restored(folder: Path | None) -> None:
    buffer = make_buffer(10, folder)
    buffer.add(numbered(0, 14))
    restored = make_buffer(10, folder)
    restored.load_state_dict(buffer.state_dict())
    restored.add(numbered(14, 3))
    assert sorted(indices(restored.transitions)) == list(range(7, 17))


@pytest.mark.parametrize("on_macos", [False, True])
def test_files_grow_off_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_macos: bool) -> None:
    if on_macos:
        monkeypatch.delattr("os.posix_fallocate")
    monkeypatch.setattr(replay, "_FIRST_ROWS", 4)
    buffer = make_buffer(100, tmp_path / "replay")
    assert not (tmp_path / "replay").exists()
    path = tmp_path / "replay" / "rewards.bin"
    buffer.add(numbered(0, 3))
    assert path.stat().st_size == 4 * 4
    buffer.add(numbered(3, 6))
    assert path.stat().st_size == 16 * 4
    assert buffer.state_dict() == {"added": 9}
    restored = make_buffer(100, tmp_path / "replay")
    restored.load_state_dict({"added": 9})
    assert indices(restored.transitions) == list(range(9))


def test_transitions_added_after_the_checkpoint_are_kept_and_torn_ones_replaced(tmp_path: Path) -> None:
    buffer = make_buffer(10, tmp_path)
    buffer.add(numbered(0, 10))
    state = buffer.state_dict()
    buffer.add(numbered(10, 3))
    columns = buffer.transitions
    columns.rewards[3:5] = np.nan  # a process killed while it wrote transitions 13 and 14
    columns.observations[3] = 13
    restored = make_buffer(10, tmp_path)
    restored.load_state_dict(state)
    assert set(indices(restored.transitions)) == {5, 6, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize("damage", ["missing", "short", "other"])
def test_missing_transitions_are_refused(tmp_path: Path, damage: str) -> None:
    buffer = make_buffer(10, tmp_path)
    buffer.add(numbered(0, 9))
    state, path = buffer.state_dict(), tmp_path / "actions.bin"
    match damage:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(b"x")
    fresh = make_buffer(10, None if damage == "other" else tmp_path)
    with pytest.raises(StateMismatchError, match=r"transitions; restore|no observations of shape"):
        fresh.load_state_dict(state)
