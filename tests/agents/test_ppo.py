"""PPO: what an update does to the parameters, and whole runs: reproducible and resumable."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents.errors import DivergedError, InvalidConfigError, NonFiniteError, ShapeError, StateMismatchError
from agents.ppo import PPO, PPOConfig
from agents.rollout import OnPolicyRollout
from agents.trpo import TRPO, TRPOConfig
from tests.agents.conftest import made_up_rollout, make_agent, parameters, sb3_model
from tests.environments import Stub

NUM_STEPS, NUM_ENVS = 48, 2
MakeRollout = Callable[[PPO], OnPolicyRollout]
CONFIG = PPOConfig(num_steps=NUM_STEPS, minibatch_size=16, learning_rate=1e-3, ent_coef=0.01)


def sb3_ppo(agent: PPO, env_id: str) -> Any:
    """Stable-Baselines3's PPO with the hyperparameters of one of our agents."""
    config = agent.config
    return sb3_model(
        sb3.PPO,
        agent,
        lambda: gymnasium.make(env_id),
        "MlpPolicy",
        n_epochs=config.update_epochs,
        clip_range=config.clip_coef,
        ent_coef=config.ent_coef,
        vf_coef=config.vf_coef,
        max_grad_norm=config.max_grad_norm,
        clip_range_vf=config.clip_coef_vf,
        target_kl=config.target_kl,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )


@pytest.mark.parametrize("allow_numpy", [True, False])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1", "Reacher-v5"])
def test_an_update_gives_the_parameters_that_stable_baselines3_gives(
    env_id: str, allow_numpy: bool, sb3_twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * NUM_ENVS)
    agent = PPO(envs, CONFIG, seed=0, dtype=torch.float64, allow_numpy=allow_numpy)
    reference = sb3_twin(sb3_ppo(agent, env_id), agent)
    metrics = reference.assert_updates_alike(monkeypatch, least=1e-2, atol=1e-9)
    assert metrics["approx_kl"] == pytest.approx(reference.logged("approx_kl"), rel=1e-6)
    assert metrics["explained_variance"] == pytest.approx(reference.logged("explained_variance"), rel=1e-6)
    assert metrics["clip_fraction"] > 0


@pytest.mark.parametrize("allow_numpy", [True, False])
def test_an_update_ends_and_clips_values_as_in_stable_baselines3(
    allow_numpy: bool, sb3_twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(**settings: Any) -> dict[str, NDArray[Any]]:
        envs = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * NUM_ENVS)
        agent = PPO(envs, replace(CONFIG, **settings), seed=0, dtype=torch.float64, allow_numpy=allow_numpy)
        reference = sb3_twin(sb3_ppo(agent, "Pendulum-v1"), agent)
        reference.assert_updates_alike(monkeypatch, least=0.0, atol=1e-9)
        return parameters(agent)

    critics = [
        trained(**settings)["critic.0.weight"]
        for settings in ({"target_kl": 0.003}, {"clip_coef_vf": 0.03}, {})
    ]
    for critic in critics[:2]:
        assert np.abs(critic - critics[2]).max() > 1e-3, "the setting should matter"


@pytest.mark.parametrize("allow_numpy", [True, False])
def test_policy_past_the_kl_limit_is_unchanged(allow_numpy: bool) -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * NUM_ENVS)
    agent = PPO(envs, replace(CONFIG, target_kl=1e-3), seed=0, allow_numpy=allow_numpy)
    rollout = made_up_rollout(agent)
    rollout = replace(rollout, log_probs=rollout.log_probs + 1)
    before = parameters(agent)
    assert agent.update(rollout, rollout.rewards).keys() == {"explained_variance"}
    np.testing.assert_equal(parameters(agent), before)


def test_approx_kl_and_entropy_tell_how_far_the_update_moved_the_policy() -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
    agent = PPO(envs, PPOConfig(num_steps=256, minibatch_size=2048, update_epochs=2), seed=0)
    rollout = agent.collect()
    inputs = agent.policy.tensor(agent.normalizer(rollout.observations[rollout.valid]))
    before = torch.distributions.Categorical(logits=agent.policy.actor(inputs).detach())
    state = agent.state_dict()
    agent.config = replace(agent.config, update_epochs=1)
    agent.update(rollout, rollout.rewards)
    between: Any = torch.distributions.Categorical(logits=agent.policy.actor(inputs).detach())

    agent.load_state_dict(state)
    agent.config = replace(agent.config, update_epochs=2)
    metrics = agent.update(rollout, rollout.rewards)  # its second epoch starts from `between`

    kl = torch.distributions.kl_divergence(before, between).mean().item()
    assert metrics["approx_kl"] == pytest.approx(kl, rel=0.1)
    assert metrics["entropy"] == pytest.approx(between.entropy().mean().item(), rel=1e-5)


def test_dummy_transitions_have_no_influence() -> None:
    clean, spoilt = make_agent(normalize_rewards=True), make_agent(normalize_rewards=True)
    rollout = clean.collect()
    dummies = ~rollout.valid
    assert dummies.any()
    fields = dict(vars(rollout))
    for name in ("observations", "actions", "executed_actions", "log_probs", "values", "rewards"):
        fields[name] = fields[name].copy()
        fields[name][dummies] = np.nan

    expected = clean.update(rollout, rollout.rewards)
    assert spoilt.update(OnPolicyRollout(**fields), fields["rewards"]) == expected

    np.testing.assert_equal(parameters(clean), parameters(spoilt))
    np.testing.assert_equal(clean.state_dict()["normalizer"], spoilt.state_dict()["normalizer"])
    assert clean.state_dict()["normalizer"]["count"] == rollout.num_valid


def test_the_given_rewards_count_and_not_the_environments() -> None:
    own, given, other = make_agent(), make_agent(), make_agent()
    rollout = own.collect()
    own.update(rollout, rollout.rewards)
    given.update(replace(rollout, rewards=-rollout.rewards), rollout.rewards)
    other.update(rollout, -rollout.rewards)
    np.testing.assert_equal(parameters(own), parameters(given))
    assert any(
        (a != b).any() for a, b in zip(parameters(own).values(), parameters(other).values(), strict=True)
    )


def test_the_scale_of_rewards_matters_only_without_normalization() -> None:
    def value_loss(scale: float, *, normalize: bool) -> float:
        agent = make_agent(normalize_rewards=normalize)
        rollout = agent.collect()
        rollout = replace(rollout, bootstrap_values=0 * rollout.values, last_values=0 * rollout.last_values)
        return agent.update(rollout, scale * rollout.rewards)["value_loss"]

    assert value_loss(1e3, normalize=True) == pytest.approx(value_loss(1.0, normalize=True), rel=1e-3)
    assert value_loss(1e3, normalize=False) > 1e5 * value_loss(1.0, normalize=False)


def test_statistics_of_observations_change_only_between_rollouts() -> None:
    agent = make_agent()
    probe = np.array([[1.0, 2.0, 3.0]])
    first = agent.normalizer(probe)
    rollouts = [agent.collect(), agent.collect()]
    np.testing.assert_array_equal(agent.normalizer(probe), first)
    agent.update(rollouts[0], rollouts[0].rewards)
    seen = rollouts[0].observations[rollouts[0].valid]
    np.testing.assert_allclose(agent.normalizer.statistics.mean, seen.mean(0))
    np.testing.assert_allclose(agent.normalizer.statistics.variance, seen.var(0))


def test_non_finite_or_misshapen_rewards_change_nothing() -> None:
    agent = make_agent(normalize_rewards=True)
    rollout = agent.collect()
    before = parameters(agent)
    step, env = np.argwhere(rollout.valid)[50]
    rewards = rollout.rewards.copy()
    rewards[step, env] = np.nan
    with pytest.raises(NonFiniteError, match=rf"rewards \(step, environment\), got nan at \({step}, {env}\)"):
        agent.update(rollout, rewards)
    with pytest.raises(ShapeError, match=r"Expected rewards of shape \(32, 3\), got \(3, 32\)"):
        agent.update(rollout, rollout.rewards.T)
    assert agent.reward_scaler.statistics.count == 0
    np.testing.assert_equal(parameters(agent), before)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_steps": 3}, "num_steps must be at least 4, not 3"),
        ({"minibatch_size": 1}, "minibatch_size must be at least 2"),
        ({"update_epochs": 0}, "update_epochs must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"gamma": 1.1}, "gamma must be between 0 and 1, not 1.1"),
        ({"gae_lambda": -0.1}, "gae_lambda must be between 0 and 1"),
        ({"ent_coef": -1.0}, "ent_coef must be at least 0"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        PPOConfig(**setting)


def pendulum_agent(seed: int, **config: Any) -> PPO:
    envs = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20)] * 2)
    return PPO(envs, PPOConfig(num_steps=32, update_epochs=2, minibatch_size=16, **config), seed)


def iterate(agent: PPO | TRPO, times: int) -> list[Any]:
    """Everything that an outsider sees of a run."""
    seen: list[Any] = []
    for _ in range(times):
        rollout = agent.collect()
        metrics = agent.update(rollout, rollout.rewards)
        seen += [rollout.observations, rollout.executed_actions, rollout.values, *metrics.values()]
    return seen


def same(first: list[Any], second: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_same_seed_gives_the_same_run_whatever_else_draws_numbers() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = iterate(pendulum_agent(7), 3)
    torch.manual_seed(2)
    np.random.seed(2)
    agent = pendulum_agent(7)
    second = iterate(agent, 1)
    agent.act(np.zeros((5, 3), np.float32), deterministic=False)
    second += iterate(agent, 2)
    assert same(first, second)
    assert not same(first, iterate(pendulum_agent(8), 3))


def test_environments_of_one_agent_start_differently() -> None:
    observations = pendulum_agent(0).collect().observations[0]
    assert not np.array_equal(observations[0], observations[1])


@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_a_restored_agent_continues_identically(normalize_rewards: bool) -> None:
    original = pendulum_agent(0, normalize_rewards=normalize_rewards)
    iterate(original, 2)
    restored = pendulum_agent(99, normalize_rewards=normalize_rewards)
    restored.load_state_dict(original.state_dict())
    assert restored.total_steps == original.total_steps > 0

    probe = np.ones((4, 3), np.float32)
    for deterministic in (True, False):
        ours, theirs = (agent.act(probe, deterministic=deterministic) for agent in (original, restored))
        np.testing.assert_array_equal(ours, theirs)
    rollout = original.collect()
    assert original.update(rollout, rollout.rewards) == restored.update(rollout, rollout.rewards)
    np.testing.assert_equal(parameters(original), parameters(restored))


@pytest.mark.parametrize("allow_numpy", [False, True])
@pytest.mark.parametrize(("algorithm", "config"), [(PPO, PPOConfig), (TRPO, TRPOConfig)])
def test_an_update_that_diverges_is_refused_and_leaves_the_policy_as_it_was(
    algorithm: type[PPO | TRPO], config: type[PPOConfig | TRPOConfig], allow_numpy: bool
) -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20)] * 2)
    agent = algorithm(envs, config(num_steps=32, minibatch_size=16), 0, allow_numpy=allow_numpy)  # type: ignore[arg-type]
    iterate(agent, 1)
    rollout, before = agent.collect(), agent.state_dict()
    with (
        np.errstate(all="ignore"),
        pytest.raises(
            DivergedError,
            match=r"^Training diverged: an update made \S+ NaN or .*; use a smaller ent_coef or",
        ),
    ):
        agent.update(rollout, np.full_like(rollout.rewards, 1e300))
    after = agent.state_dict()
    for part in ("policy", "normalizer"):
        np.testing.assert_equal(after[part], before[part])
    algorithm(envs, agent.config, 1, allow_numpy=allow_numpy).load_state_dict(after)  # type: ignore[arg-type]
    iterate(agent, 1)


def test_a_restored_agent_starts_new_episodes_with_seeds_of_their_own() -> None:
    original = pendulum_agent(0, normalize_rewards=True)
    first = original.collect().observations[0]
    restored = pendulum_agent(0, normalize_rewards=True)
    restored.collect()
    restored.load_state_dict(original.state_dict())
    rollout = restored.collect()
    assert not np.array_equal(rollout.observations[0], first)
    assert rollout.valid[:20].all(), "a new episode has all of its 20 steps before it"
    assert not rollout.valid[20].any()


def test_a_restored_agent_may_have_another_number_of_environments() -> None:
    original = pendulum_agent(0, normalize_rewards=True)
    iterate(original, 1)
    config = replace(original.config, num_steps=20)
    restored = PPO(SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 5), config, seed=0)
    restored.load_state_dict(original.state_dict())
    iterate(restored, 2)
    assert restored.total_steps == original.total_steps + 2 * 20 * 5


def test_a_state_is_a_copy_of_arrays_and_json() -> None:
    agent = make_agent(normalize_rewards=True)
    iterate(agent, 1)
    state = agent.state_dict()
    saved = copy.deepcopy(state)
    iterate(agent, 1)

    def compare(now: Any, then: Any) -> Any:
        """Fails where they differ; gives the state without its arrays."""
        if isinstance(then, dict):
            return {key: compare(now[key], value) for key, value in then.items()}
        np.testing.assert_array_equal(now, then)
        return None if isinstance(then, np.ndarray) else then

    assert json.loads(json.dumps(compare(state, saved))) == compare(state, saved)
    assert (state["policy"]["actor.0.weight"] != agent.state_dict()["policy"]["actor.0.weight"]).any()


def test_the_state_of_another_environments_agent_is_refused_whole() -> None:
    agent = make_agent()
    before = agent.state_dict()
    other = PPO(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), PPOConfig(), seed=0)
    with pytest.raises(StateMismatchError, match="The saved policy's parameter shapes are"):
        agent.load_state_dict(other.state_dict())
    np.testing.assert_equal(agent.state_dict()["policy"], before["policy"])


def test_the_state_of_another_algorithm_is_refused_whole() -> None:
    def make(algorithm: Any, config: Any) -> Any:
        return algorithm(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), config, seed=0)

    ppo, trpo = make(PPO, PPOConfig(num_steps=16)), make(TRPO, TRPOConfig(num_steps=16))
    for agent, other in ((ppo, trpo), (trpo, ppo)):
        iterate(other, 1)
        before = agent.state_dict()
        with pytest.raises(StateMismatchError, match="use the algorithm that saved the state"):
            agent.load_state_dict(other.state_dict())
        np.testing.assert_equal(agent.state_dict(), before)


def test_acting_deterministically_takes_the_mean_within_the_box() -> None:
    agent = make_agent()
    observations = np.random.default_rng(0).normal(size=(6, 3))
    with torch.no_grad():
        list(agent.policy.actor.parameters())[-2].mul_(300)
        inputs = agent.policy.tensor(agent.normalizer(observations))
        means = agent.policy.actor(inputs).numpy()
    actions = agent.act(observations, deterministic=True)
    assert (np.abs(means) > 0.5).any()
    assert (np.abs(means) < 0.5).any()
    np.testing.assert_allclose(actions, means.clip(-0.5, 0.5), rtol=1e-5, atol=1e-6)
    assert not np.array_equal(agent.act(observations, deterministic=False), actions)


def test_observations_that_are_not_to_be_normalized_reach_the_policy_as_they_are() -> None:
    agent = pendulum_agent(0, normalize_observations=False)
    iterate(agent, 2)
    observations = agent.collect().observations
    np.testing.assert_array_equal(agent.normalizer(observations), observations)


class Target(Stub):
    """One step an episode: the action should be half of the observation."""

    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    length, terminates = 1, True

    def reward(self, action: NDArray[np.float32]) -> float:
        return -float(np.square(action - self.target / 2).sum())

    def observe(self) -> NDArray[np.float32]:
        if self.time == 0:
            self.target = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.target


def test_it_learns_a_continuous_target() -> None:
    envs = SyncVectorEnv([Target] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = PPO(envs, PPOConfig(num_steps=64, update_epochs=5, learning_rate=3e-3), seed=0)
    for _ in range(20):
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
    observations = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    error = agent.act(observations, deterministic=True) - observations / 2
    assert np.abs(error).mean() < 0.1, "an untrained policy, whose mean is 0, is off by 0.28"


def test_it_learns_to_balance_a_pole() -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
    agent = PPO(envs, PPOConfig(num_steps=128, update_epochs=5, learning_rate=1e-3), seed=0)
    ends, steps = 0, 0
    while agent.total_steps < 18_000:
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
        if agent.total_steps > 14_000:
            ends, steps = ends + int(rollout.ended.sum()), steps + rollout.num_valid
    assert steps / max(1, ends) > 150, "a random policy stays up for 22 steps"
