"""Policies to Stable-Baselines3, which acts with them, and back."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from agents.errors import StateMismatchError
from agents.ppo import PPOConfig
from teacher.errors import ConfigError, DataError
from teacher.training.sb3 import read_sb3, require_same_network, require_supported, save_sb3
from tests.models import AGENTS, ARM, OTHER_AGENTS, VECTOR, AgentCase, Spaces


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


def test_damage_is_one_line(tmp_path: Path, damaged: Callable[[bytes], Iterator[bytes]]) -> None:
    case, path = AGENTS["trpo-raw"], tmp_path / "a.zip"
    save_sb3(case.agent(), case.observation_space, path)
    refusals = []
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            read_sb3(path)  # changes in pickles go unnoticed, as these are not read
        except DataError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert all(str(path) in refusal and "\n" not in refusal for refusal in refusals)
