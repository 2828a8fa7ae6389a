"""Hugging Face folder with a run's policy and reward predictor."""

import contextlib
import dataclasses
import platform
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.base import Agent
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state
from teacher.datasets.dataset_card import upload_command
from teacher.datasets.model_card import (
    POLICY_NAME,
    PREDICTOR_NAME,
    Metric,
    ModelFacts,
    write_model_card,
)
from teacher.datasets.preference_files import describe_space
from teacher.datasets.tensor_files import save_tensors
from teacher.envs.random_episodes import policy_trajectories
from teacher.errors import pluralize
from teacher.queries.judges import goal_of
from teacher.reporting.metrics import read_last
from teacher.reward.predictor import RewardPredictor
from teacher.runs.export import question_of
from teacher.runs.saved_run import Models
from teacher.training.warmstart import NORMALIZER_PREFIX, POLICY_PREFIX

EPISODES = 10
"""Number of episodes that the policy is evaluated on."""
_ACCURACY_TAG = "predictor/accuracy"
_EVALUATION_SEED = 2**31 - 1  # no seed that a run is likely to have trained with
_PACKAGES = ("rl-teacher", "torch", "gymnasium", "numpy")
_NETWORK_SETTINGS = ("hidden_sizes", "activation", "network")


def export_model_folder(models: Models, folder: Path, license_id: str, *, new: bool) -> Iterator[str]:
    """Write safetensors files, ``config.json`` and a model card, and yield how to upload them.

    The card's results are those of :data:`EPISODES` episodes with the policy's most likely actions.

    Args:
        folder: existing folder to write to; the card also lists ONNX files that are in it.
        license_id: identifier of the models' license on the Hub.
        new: never replace existing files.

    Raises:
        ConfigError: safetensors isn't installed, or ``new`` is True and a file exists.
        StorageError: a file can't be written.
    """
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


def _evaluated(models: Models, seed: int) -> Iterator[Metric]:
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


def _facts(models: Models, license_id: str) -> ModelFacts:
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
    """Return the ``--agent.*`` options of a run that determine its policy's networks."""
    options = ""
    for name in _NETWORK_SETTINGS:
        value = settings.get(name)
        if value is not None:
            text = value if isinstance(value, str) else ",".join(map(str, value))
            options += f" --agent.{name} {text}"
    return options
