"""Hugging Face folder with a run's policy and reward predictor."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
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
from teacher.errors import pluralize
from teacher.reward.predictor import RewardPredictor
from teacher.training.export import question_of
from teacher.training.metrics import BEHAVIOR_TAG, SUCCESS_TAG, TRUE_RETURN_TAG, read_last
from teacher.training.saved_run import Models
from teacher.training.warmstart import NORMALIZER_PREFIX, POLICY_PREFIX

_METRICS = {
    TRUE_RETURN_TAG: ("mean_reward", "mean true return of the last episodes in training"),
    SUCCESS_TAG: ("success_rate", "success rate of the last episodes in training"),
    BEHAVIOR_TAG: ("mean_behavior", "mean goal value of the last episodes in training"),
    "predictor/accuracy": ("accuracy", "held-out accuracy of the reward predictor"),
}
_NETWORK_SETTINGS = ("hidden_sizes", "activation", "network")


def export_model_folder(models: Models, folder: Path, *, new: bool) -> Iterator[str]:
    """Write safetensors files, ``config.json`` and a model card, and yield how to upload them.

    Args:
        models: the models to write.
        folder: existing folder to write to; the card also lists ONNX files that are in it.
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
    write_model_card(folder, _facts(models), new=new)
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


def _facts(models: Models) -> ModelFacts:
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
    }
    rewards, inputs = "the environment's rewards.", tuple[str, ...]()
    if predictor is not None:
        chosen = {"model": predictor.model, "features": predictor.features, "members": predictor.members}
        contents["predictor"] = {**dataclasses.asdict(predictor.config), **chosen}
        inputs = tuple(predictor.portable().inputs)
        with contextlib.closing(run.open_ledger()) as ledger:
            labels = pluralize(ledger.usable(), "label")
        rewards = f"rewards predicted from {labels}. {question_of(run)}"
    logged = read_last(run.folder)
    metrics = tuple(Metric(*_METRICS[tag], logged[tag]) for tag in _METRICS if tag in logged)
    return ModelFacts(contents, _options(config.agent_settings), rewards, inputs, metrics)


def _options(settings: Mapping[str, Any]) -> str:
    """Return the ``--agent.*`` options of a run that determine its policy's networks."""
    options = ""
    for name in _NETWORK_SETTINGS:
        value = settings.get(name)
        if value is not None:
            text = value if isinstance(value, str) else ",".join(map(str, value))
            options += f" --agent.{name} {text}"
    return options
