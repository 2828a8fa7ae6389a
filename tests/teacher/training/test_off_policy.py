"""Runs with SAC, and policies to Stable-Baselines3, which acts with them, and back."""

import io
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from rich.console import Console
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from threadpoolctl import threadpool_info, threadpool_limits

from agents.errors import StateMismatchError
from agents.ppo import PPOConfig
from agents.sac import SAC
from agents.sac_step import SACConfig
from teacher import ConfigError, DataError, TeachConfig, open_run, train
from teacher.queries.kinds import preferences_in
from teacher.reward.predictor import relabeled
from teacher.settings.options import RewardConfig
from teacher.teach import main
from teacher.training.asking import pretrain
from teacher.training.loop import Round
from teacher.training.run import REPLAY_NAME, Run
from teacher.training.sb3 import read_sb3, require_same_network, require_supported, save_sb3
from tests.conftest import refusals
from tests.models import AGENTS, ARM, OTHER_AGENTS, VECTOR, AgentCase, Spaces

QUIET = Console(quiet=True)
SMALL = SACConfig(hidden_sizes=(16, 16), batch_size=16, train_freq=16, gradient_steps=1, learning_starts=64)


def make_config(tmp_path: Path, **changes: Any) -> TeachConfig:
    given = {
        "env_id": "Pendulum-v1", "predictor": "synth", "name": "x", "n_labels": 24, "segment_steps": 20,
        "num_timesteps": 1600, "no_videos": True, "runs_dir": str(tmp_path), "agent": SMALL, "num_envs": 2,
        "pretrain_iters": 30, "reward": RewardConfig(members=2, hidden=8, epochs=1),
    }  # fmt: skip
    return TeachConfig(**{**given, **changes})


def agent_of(run: Run) -> SAC:
    assert isinstance(run.agent, SAC)
    return run.agent


def assert_relabeled(run: Run) -> None:
    """Check that stored rewards are those of the current predictor."""
    assert run.teaching is not None
    before, actions, after, rewards, terminated = agent_of(run).buffer.transitions
    expected = relabeled(run.teaching.predictor, before, actions, after, terminated)
    np.testing.assert_allclose(rewards, expected, rtol=1e-4, atol=1e-5)


def test_the_buffer_has_the_rewards_of_the_current_predictor(tmp_path: Path) -> None:
    seen: list[int] = []

    def check(iteration: Round) -> None:
        assert iteration.run.teaching is not None
        seen.append(iteration.run.teaching.fits)
        assert_relabeled(iteration.run)

    with open_run(make_config(tmp_path), QUIET) as run:
        assert train(run, check)
        assert len(agent_of(run).buffer) == run.step >= 1600
    assert len(set(seen)) > 2, "refitted while training"


def test_numpy_uses_one_thread_in_a_run(tmp_path: Path) -> None:
    """With several, matrix products of this size take up to sixty times as long."""
    with threadpool_limits(2, "blas"), open_run(make_config(tmp_path), QUIET):
        threads = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert set(threads) == {1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrain_steps": 1600}, "pretrain_steps: expected less than --num_timesteps .1600."),
        ({"pretrain_steps": 100, "policy": "nowhere"}, "pretrain_steps: can't be combined with --policy"),
    ],
)
def test_excessive_exploration_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = make_config(tmp_path, **changes)  # settings of earlier runs are still read
    with pytest.raises(ConfigError, match=message), open_run(config, QUIET):
        pass


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 1.0), ({"agent": "ppo"}, 0.05), ({"reward": RewardConfig(reward_std=0.3)}, 0.3)],
)
def test_rewards_fit_the_agents_scale(tmp_path: Path, changes: dict[str, Any], expected: float) -> None:
    config = make_config(tmp_path, **changes)
    with open_run(config, QUIET) as run:
        assert run.teaching is not None
        assert pretrain(run, run.teaching)
        segments = [
            segment for each in preferences_in(run.teaching.ledger) for segment in (each.first, each.second)
        ]
        rewards = np.concatenate([run.teaching.predictor.step_rewards(segment) for segment in segments])
    assert rewards.std() == pytest.approx(expected, rel=0.2)


def test_a_run_on_the_true_reward_stores_it(tmp_path: Path) -> None:
    with open_run(
        make_config(
            tmp_path,
            predictor="rl",
            n_labels=None,
            segment_steps=None,
            pretrain_iters=10_000,
            reward=RewardConfig(),
        ),
        QUIET,
    ) as run:
        assert train(run)
        rewards = agent_of(run).buffer.transitions.rewards
    assert (rewards < 0).all()
    assert rewards.min() < -5


def test_a_killed_run_resumes_with_its_transitions(tmp_path: Path) -> None:
    config = make_config(tmp_path)

    def kill(iteration: Round) -> None:
        if iteration.step >= 800:
            iteration.run.save()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), open_run(config, QUIET) as run:
        train(run, kill)
    stored = {path.name for path in (config.run_dir / REPLAY_NAME).iterdir()}
    assert "rewards.bin" in stored
    assert (config.run_dir / "checkpoint.npz").stat().st_size < 300_000, "transitions are not in it"
    with open_run(config.run_dir, QUIET) as run:
        assert len(agent_of(run).buffer) == run.step >= 800
        assert_relabeled(run)
        assert train(run)
        assert len(agent_of(run).buffer) == run.step >= 1600


def test_a_run_without_its_transitions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(tmp_path)
    with open_run(config, QUIET) as run:
        train(run)
        run.save()
    shutil.rmtree(config.run_dir / REPLAY_NAME)
    assert main(["--resume", str(config.run_dir), "-t", "2000"]) == 1
    said = capsys.readouterr().err
    assert "transitions; restore" in said
    assert said.count("\n") == 1


def test_states_are_explored_before_the_first_labels(tmp_path: Path) -> None:
    config = make_config(tmp_path, pretrain_steps=640, pretrain_labels=12)
    with open_run(config, QUIET) as run:
        critics = {name: value.clone() for name, value in agent_of(run).policy.critic.state_dict().items()}
        assert train(run)
        assert run.teaching is not None
        pairs = list(preferences_in(run.teaching.ledger))
        assert_relabeled(run)
        changed = agent_of(run).policy.critic.state_dict()
        assert not any((changed[name] == critics[name]).all() for name in critics)
        assert len(agent_of(run).buffer) == run.step >= 1600
    assert len(pairs) == 24


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "-e CartPole-v1 --allow_variable_horizon --agent.buffer_size 900",
            (
                "-a sac: SAC needs a bounded Box of floats as the action space, not Discrete(2); use PPO or "
                "TRPO, or wrap the environment; corrected: teach -p synth -e CartPole-v1 -n x -l 20 -t 400 "
                "-V --allow_variable_horizon\n"
            ),
        ),
        ("-e Pendulum-v1 --agent.clip_coef 0.1", "--agent.clip_coef: sac has no such hyperparameter"),
        ("-e Pendulum-v1 --agent.tau 2", "tau must be between 0 and 1"),
        ("-e Pendulum-v1 --agent.network builtins:dict", "SAC supports no custom network"),
        ("-e Pendulum-v1 -a ppo --pretrain_steps 100", "--pretrain_steps: needs -a sac"),
    ],
)
def test_unsupported_sac_settings_are_refused(
    line: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"-p synth -n x -l 20 -t 400 -V -a sac {line}".split()) != 0
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (here / "runs").exists()


@pytest.mark.parametrize("case", AGENTS.values(), ids=AGENTS)
def test_a_policy_acts_alike_there_and_comes_back_unchanged(case: AgentCase, tmp_path: Path) -> None:
    agent, observations, path = case.agent(), case.observations(), tmp_path / "a.zip"
    require_supported(agent, case.observation_space, path)
    algorithm, statistics = save_sb3(agent, case.observation_space, path)
    model = getattr(sb3, algorithm).load(path, device="cpu")
    seen: Any = observations
    if statistics is not None:
        env = DummyVecEnv([lambda: Spaces(case.observation_space, case.action_space)])
        normalized = VecNormalize(env, training=False, norm_reward=False)
        with np.load(statistics) as arrays:
            vars(normalized.obs_rms).update(arrays)
        seen = normalized.normalize_obs(observations)
    expected = agent.act(observations, deterministic=True)
    np.testing.assert_allclose(model.predict(seen, deterministic=True)[0], expected, atol=1e-5)

    state, other = read_sb3(path), case.agent(seed=2)
    require_same_network(state, other)
    other.load_policy(state)
    for name, tensor in agent.policy.state_dict().items():
        assert torch.equal(other.policy.state_dict()[name], tensor), name
    np.testing.assert_array_equal(other.act(observations, deterministic=True), expected)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (sb3.PPO, {"policy_kwargs": {"activation_fn": torch.nn.ReLU, "net_arch": [16, 8, 4]}}),
        (sb3.A2C, {"policy_kwargs": {"net_arch": [16, 8, 4]}}),
        (sb3.SAC, {"policy_kwargs": {"net_arch": [16, 8, 4]}, "buffer_size": 10}),
    ],
)
def test_sb3_policy_acts_alike_here(algorithm: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    env = DummyVecEnv([lambda: Spaces(VECTOR, ARM)])
    model = algorithm("MlpPolicy", env, seed=3, device="cpu", **settings)
    model.save(tmp_path / "a.zip")
    state = read_sb3(tmp_path / "a.zip")
    case = AGENTS["sac"]
    if algorithm is not sb3.SAC:
        config = PPOConfig(
            normalize_observations=False, activation=state["activation"], hidden_sizes=(16, 8, 4)
        )
        case = AgentCase(config, VECTOR, ARM)
    agent = case.agent()
    require_same_network(state, agent)
    agent.load_policy(state)
    observations = case.observations()
    expected = model.predict(observations, deterministic=True)[0]
    np.testing.assert_allclose(agent.act(observations, deterministic=True), expected, atol=1e-5)


@pytest.mark.parametrize("name", OTHER_AGENTS)
def test_unsupported_policies_are_refused(name: str, tmp_path: Path) -> None:
    case = OTHER_AGENTS[name]
    with pytest.raises(ConfigError, match="Stable-Baselines3 can't use policies with"):
        require_supported(case.agent(), case.observation_space, tmp_path / "a.zip")


def test_an_agent_with_other_inputs_or_activations_is_refused(tmp_path: Path) -> None:
    case, path = AGENTS["ppo"], tmp_path / "a.zip"
    agent = case.agent()
    _, statistics = save_sb3(agent, case.observation_space, path)
    assert statistics is not None
    assert isinstance(case.config, PPOConfig)
    relu = replace(case, config=replace(case.config, activation="relu")).agent()
    with pytest.raises(StateMismatchError, match=r"uses tanh, .* pass --agent.activation tanh"):
        require_same_network(read_sb3(path), relu)
    statistics.write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"a\.npz has no observation statistics"):
        read_sb3(path)
    statistics.unlink()
    with pytest.raises(StateMismatchError, match=r"pass --agent.normalize_observations false"):
        require_same_network(read_sb3(path), agent)


@pytest.mark.parametrize(
    ("algorithm", "settings", "found"),
    [
        ("DQN", {"env": "CartPole-v1", "buffer_size": 10}, "the parameter 'q_net"),
        ("PPO", {"env": "Pendulum-v1", "use_sde": True}, "use_sde=True"),
        (
            "PPO",
            {"env": "Pendulum-v1", "policy_kwargs": {"activation_fn": torch.nn.ELU}},
            "the activation function elu",
        ),
        (
            "SAC",
            {"env": "Pendulum-v1", "buffer_size": 10, "policy_kwargs": {"n_critics": 3}},
            "the parameter 'critic.qf2",
        ),
    ],
)
def test_other_sb3_networks(algorithm: str, settings: dict[str, Any], found: str, tmp_path: Path) -> None:
    getattr(sb3, algorithm)("MlpPolicy", device="cpu", **settings).save(tmp_path / "a.zip")
    with pytest.raises(DataError, match=rf"with its built-in MLP or CNN, found {found}"):
        read_sb3(tmp_path / "a.zip")


class _Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path, mark = tmp_path / "a.zip", tmp_path / "mark"
    model = sb3.PPO("MlpPolicy", DummyVecEnv([lambda: Spaces(VECTOR, ARM)]), device="cpu")
    vars(model)["trap"] = _Trap(mark)
    model.save(path)
    read_sb3(path)
    assert not mark.exists()
    sb3.PPO.load(path)
    assert mark.exists()  # Stable-Baselines3 itself unpickles it
    mark.unlink()
    weights = io.BytesIO()
    torch.save({"action_net.weight": _Trap(mark)}, weights)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", json.dumps({"policy_kwargs": {}}))
        file.writestr("policy.pth", weights.getvalue())
    with pytest.raises(DataError, match=r"policy\.pth contains more than tensors, or is damaged"):
        read_sb3(path)
    assert not mark.exists()


def test_damage_is_one_line(tmp_path: Path) -> None:
    case, path = AGENTS["trpo-raw"], tmp_path / "a.zip"
    save_sb3(case.agent(), case.observation_space, path)
    refused = refusals(path, lambda: read_sb3(path), DataError)  # pickles aren't read
    assert len(refused) > 20
    assert all(str(path) in refusal and "\n" not in refusal for refusal in refused)
