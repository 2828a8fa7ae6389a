"""Export of a run's policy and reward predictor to ONNX, Stable-Baselines3 and Hugging Face files."""

import contextlib
import copy
import dataclasses
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.base import Agent
from agents.portable import PortablePolicy
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state
from teacher.datasets.cards import (
    CONFIG_NAME,
    POLICY_NAME,
    POLICY_ONNX,
    PREDICTOR_NAME,
    PREDICTOR_ONNX,
    Metric,
    ModelFacts,
    check_folder,
    upload_command,
    write_model_card,
)
from teacher.datasets.network_files import require_onnx, require_safetensors, save_onnx, save_tensors
from teacher.datasets.preference_files import describe_space
from teacher.envs.random_episodes import policy_trajectories
from teacher.errors import ConfigError, pluralize
from teacher.files import require_new
from teacher.queries.judges import goal_of
from teacher.reporting.metrics import read_last
from teacher.reward.predictor import RewardPredictor
from teacher.runs.export import question_of
from teacher.runs.saved_run import SavedRun
from teacher.training.sb3 import require_supported, save_sb3
from teacher.training.warmstart import NORMALIZER_PREFIX, POLICY_PREFIX

CHECKED_INPUTS = 1000
"""Number of random inputs that an ONNX file is checked with."""
_WIDEST = 1e6
EPISODES = 10
"""Number of episodes that the policy is evaluated on."""
_ACCURACY_TAG = "predictor/accuracy"
_EVALUATION_SEED = 2**31 - 1  # no seed that a run is likely to have trained with
_PACKAGES = ("rl-teacher", "torch", "gymnasium", "numpy")
_NETWORK_SETTINGS = ("hidden_sizes", "activation", "network")


@dataclass(frozen=True)
class _Models:
    run: SavedRun
    agent: Agent
    predictor: RewardPredictor | None  # None if the run learns from the true reward


def model_writers(
    run: SavedRun, onnx: Path | None, huggingface: Path | None, sb3: Path | None, license_id: str = "unknown"
) -> list[Callable[[], Iterable[str]]]:
    """Load a run's models, check that they can be exported, and return functions that write them.

    Each function yields lines that say what was written.

    Args:
        onnx: folder for ONNX files; created if it is missing. None to write none.
        huggingface: Hugging Face folder, which may contain an earlier export, and may be the same folder.
    """
    if onnx is None and huggingface is None and sb3 is None:
        return []
    if onnx is not None:
        require_onnx()
    if huggingface is not None:
        require_safetensors()
    agent = run.load_agent()
    models = _Models(run, agent, None if run.config.predictor == "rl" else run.load_predictor())
    writers: list[Callable[[], Iterable[str]]] = []
    if sb3 is not None:
        space = run.task.observation_space
        require_supported(models.agent, space, sb3)
        writers.append(partial(_write_sb3, models, sb3))
    is_new = huggingface is None or check_folder(huggingface, CONFIG_NAME, "a model")
    if onnx is not None:
        is_same = huggingface is not None and onnx.resolve() == huggingface.resolve()
        if not is_same:
            _prepare_folder(onnx)
        writers.append(partial(_write_onnx, models, onnx, new=is_new or not is_same))
    if huggingface is not None:  # last, because the card lists the ONNX files
        writers.append(partial(_write_model_folder, models, huggingface, license_id, new=is_new))
    return writers


def _prepare_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create the folder {folder}: {error.strerror}") from error
    for name in (POLICY_ONNX, PREDICTOR_ONNX):
        require_new(folder / name)


def _write_sb3(models: _Models, path: Path) -> Iterator[str]:
    algorithm, statistics = save_sb3(models.agent, models.run.task.observation_space, path)
    beside = "" if statistics is None else f"; observation statistics in {statistics}"
    yield f"{path}: policy for stable_baselines3.{algorithm}.load{beside}"


def _write_onnx(models: _Models, folder: Path, *, new: bool) -> Iterator[str]:
    task = models.run.task
    observations = random_inputs(task.observation_space, seed=1)
    policy = PortablePolicy(models.agent)
    path = folder / POLICY_ONNX
    difference = save_onnx(path, policy, {"observation": observations}, policy.outputs, new=new)
    yield _checked(path, ["observation"], policy.outputs, difference)
    if models.predictor is not None:
        module = models.predictor.portable()
        steps = {
            "state": observations,
            "action": random_inputs(task.action_space, seed=2),
            "next_state": random_inputs(task.observation_space, seed=3),
            "terminated": np.random.default_rng(4).random(CHECKED_INPUTS) < 0.5,
        }
        path = folder / PREDICTOR_ONNX
        steps["next_state"][::2] = observations[::2]  # as in an absorbing state
        inputs = {name: steps[name] for name in module.inputs}
        difference = save_onnx(path, module, inputs, ("reward",), new=new)
        yield _checked(path, module.inputs, ("reward",), difference)


def random_inputs(space: spaces.Space[Any], seed: int) -> NDArray[Any]:
    """Draw :data:`CHECKED_INPUTS` random elements of a space, without changing the space's random state.

    Components with a range of more than a million, such as that of all single-precision numbers, are drawn as
    if they were unbounded, from a standard normal distribution.
    """
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        is_wide = space.high.astype(np.float64) - space.low > _WIDEST
        low, high = np.where(is_wide, -np.inf, space.low), np.where(is_wide, np.inf, space.high)
        space = spaces.Box(low, high, dtype=space.dtype)
    else:
        space = copy.deepcopy(space)
    space.seed(seed)
    return np.stack([space.sample() for _ in range(CHECKED_INPUTS)])


def _checked(path: Path, inputs: list[str], outputs: tuple[str, ...], difference: float) -> str:
    return (
        f"{path}: {', '.join(inputs)} -> {', '.join(outputs)}; differs from torch by at most "
        f"{difference:.1g} for {CHECKED_INPUTS:,} random inputs"
    )


def _write_model_folder(models: _Models, folder: Path, license_id: str, *, new: bool) -> Iterator[str]:
    about = {"format": "rl-teacher", "env_id": models.run.task.env_id}
    save_tensors(folder / POLICY_NAME, _policy_tensors(models.agent), about, new=new)
    if models.predictor is not None:
        tensors = _predictor_tensors(models.predictor)
        save_tensors(folder / PREDICTOR_NAME, tensors, about, new=new)
    write_model_card(folder, _facts(models, license_id), new=new)
    what = "policy" if models.predictor is None else "policy and predictor"
    yield f"{folder}: {what} with a model card; to upload: {upload_command(folder)}"


def _policy_tensors(agent: Agent) -> dict[str, NDArray[Any]]:
    state = agent.state_dict()
    return {
        **{f"{POLICY_PREFIX}{name}": array for name, array in state["policy"].items()},
        **{f"{NORMALIZER_PREFIX}{name}": np.asarray(value) for name, value in state["normalizer"].items()},
    }


def _predictor_tensors(predictor: RewardPredictor) -> dict[str, NDArray[Any]]:
    state = predictor.state_dict()
    normalization = ("output_mean", "output_std", "center", "scale")
    return {
        **{f"network.{name}": tensor.numpy() for name, tensor in state["network"].items()},
        **{f"input_center.{name}": array for name, array in state.get("input_center", {}).items()},
        **{f"normalization.{name}": np.asarray(state[name]) for name in normalization},
    }


def _evaluated(models: _Models, seed: int) -> Iterator[Metric]:
    """Yield the results of the policy in the environment, with its most likely actions."""
    run = models.run
    act = partial(models.agent.act, deterministic=True)
    played = islice(policy_trajectories(run.task, seed, act, num_envs=EPISODES), EPISODES)
    episodes = list(played)
    about = f"of {EPISODES} episodes with the most likely actions"
    returns = [episode.true_return for episode in episodes]
    yield Metric("mean_reward", f"true return {about}", float(np.mean(returns)), float(np.std(returns)))
    successes = [episode.succeeded for episode in episodes if episode.succeeded is not None]
    if successes:
        yield Metric("success_rate", f"share {about} that succeeded", float(np.mean(successes)))
    if run.config.predictor != "rl" and run.config.error_model.function is not None:
        goal = goal_of(run.config.error_model)
        values = [goal(episode) for episode in episodes]
        yield Metric("mean_behavior", f"goal value {about}", float(np.mean(values)), float(np.std(values)))


def _facts(models: _Models, license_id: str) -> ModelFacts:
    run, task, predictor = models.run, models.run.task, models.predictor
    config = run.config
    progress = load_state(run.folder / CHECKPOINT_NAME, with_arrays=False)["agent"]
    hyperparameters = dataclasses.asdict(models.agent.config)
    hyperparameters["network"] = config.agent_settings.get("network")
    contents = {
        "env_id": task.env_id,
        "env_kwargs": task.kwargs,
        "observation_space": describe_space(task.observation_space),
        "action_space": describe_space(task.action_space),
        "agent": config.agent,
        "agent_config": hyperparameters,
        "num_timesteps": int(progress["total_steps"]),
        "seed": config.seed,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }
    rewards, inputs = "the environment's rewards.", tuple[str, ...]()
    if predictor is not None:
        chosen = {"model": predictor.model, "features": predictor.features, "members": predictor.members}
        contents["predictor"] = {**dataclasses.asdict(predictor.config), **chosen}
        inputs = tuple(predictor.portable().inputs)
        with contextlib.closing(run.open_ledger()) as ledger:
            labels = pluralize(ledger.usable(), "label")
        rewards = f"rewards predicted from {labels}. {question_of(run)}"
    metrics = list(_evaluated(models, _EVALUATION_SEED))
    accuracy = read_last(run.folder).get(_ACCURACY_TAG)
    if accuracy is not None:
        metrics.append(Metric("accuracy", "held-out accuracy of the reward predictor", accuracy))
    options = _options(config.agent_settings)
    return ModelFacts(contents, options, rewards, inputs, tuple(metrics), license_id)


def _options(settings: Mapping[str, Any]) -> str:
    options = ""
    for name in _NETWORK_SETTINGS:
        value = settings.get(name)
        if value is not None:
            text = value if isinstance(value, str) else ",".join(map(str, value))
            options += f" --agent.{name} {text}"
    return options
