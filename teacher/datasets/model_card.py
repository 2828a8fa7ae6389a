"""Hugging Face model folder: its card (``README.md``) and its ``config.json``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teacher.datasets.dataset_card import CARD_NAME
from teacher.files import saved

CONFIG_NAME = "config.json"
POLICY_NAME, PREDICTOR_NAME = "policy.safetensors", "predictor.safetensors"
POLICY_ONNX, PREDICTOR_ONNX = "policy.onnx", "predictor.onnx"

_CONTENTS = {
    POLICY_NAME: "the policy's networks and observation statistics",
    PREDICTOR_NAME: "the reward predictor's models and normalization",
    POLICY_ONNX: "the policy: `observation` to `action` and the parameters of the distribution",
    PREDICTOR_ONNX: "the reward predictor: {inputs} to `reward`",
    CONFIG_NAME: "environment, spaces and hyperparameters",
}
_CARD = """\
---
license: {license}
library_name: rl-teacher
pipeline_tag: reinforcement-learning
tags:
- reinforcement-learning
- deep-reinforcement-learning
- gymnasium
- rl-teacher
- {quoted_env_id}
{results}---

# {algorithm} policy for {env_id}

A policy for the Gymnasium environment `{env_id}`, trained by {algorithm} for {steps:,} environment steps
on {rewards}

{origin}

| file | content |
|---|---|
{files}{metrics}
To train on from this policy with RL-Teacher (`pip install rl-teacher`):

```
teach -p rl -e {env_id} -a {agent} -n more --policy {policy}{options}
```
{onnx}"""
_RESULTS = """\
model-index:
- name: {name}
  results:
  - task:
      type: reinforcement-learning
      name: reinforcement-learning
    dataset:
      type: {env_id}
      name: {env_id}
    metrics:
{metrics}"""
_METRIC = """\
    - type: {type}
      name: {name}
      value: {value}
"""
_ONNX = f"""
To act with ONNX Runtime:

```python
import onnxruntime

policy = onnxruntime.InferenceSession("{POLICY_ONNX}")
action, *_ = policy.run(None, {{"observation": observation[None]}})
observation, reward, terminated, truncated, info = env.step(action[0])
```
"""


@dataclass(frozen=True)
class Metric:
    """A result of a run for the card.

    Attributes:
        std: standard deviation over episodes; None if the result is a single number.
    """

    type: str
    name: str
    value: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.4g}" if self.std is None else f"{self.value:.2f} +/- {self.std:.2f}"


@dataclass(frozen=True)
class ModelFacts:
    """Contents of a model folder's card and ``config.json``.

    Attributes:
        config: contents of ``config.json``; requires ``env_id``, ``agent`` and ``num_timesteps``.
        options: options of ``teach`` with which an agent has the policy's networks.
        rewards: end of a sentence that says which rewards the policy was trained on and who labeled.
        inputs: the predictor's inputs; empty if there is no predictor.
    """

    config: Mapping[str, Any]
    options: str
    rewards: str
    inputs: tuple[str, ...]
    metrics: tuple[Metric, ...]
    license: str = "unknown"

    @property
    def origin(self) -> str:
        """Sentence with the run's seed and the versions of the packages that wrote the folder."""
        versions = ", ".join(f"{name} {version}" for name, version in self.config["versions"].items())
        return f"Seed: {self.config['seed']}. Written with {versions}."


def write_model_card(folder: Path, facts: ModelFacts, *, new: bool) -> None:
    """Write ``config.json`` and the model card, which lists the model files in the folder.

    Args:
    Raises:
        ConfigError: ``new`` is True and a file exists.
        StorageError: a file can't be written.
    """
    with saved(folder / CONFIG_NAME, str(folder / CONFIG_NAME), new=new) as file:
        file.write(json.dumps(facts.config, indent=2).encode() + b"\n")
    with saved(folder / CARD_NAME, str(folder / CARD_NAME), new=new) as file:
        file.write(_card(folder, facts).encode())


def _card(folder: Path, facts: ModelFacts) -> str:
    env_id, agent = str(facts.config["env_id"]), str(facts.config["agent"])
    inputs = ", ".join(f"`{name}`" for name in facts.inputs)
    files = [
        f"| `{name}` | {content.format(inputs=inputs)} |\n"
        for name, content in _CONTENTS.items()
        if (folder / name).exists()
    ]
    rows = "".join(f"| {metric.name} | {metric} |\n" for metric in facts.metrics)
    return _CARD.format(
        quoted_env_id=json.dumps(env_id),
        results=_results(f"{agent}-{env_id}", env_id, facts.metrics),
        algorithm=agent.upper(),
        agent=agent,
        env_id=env_id,
        steps=facts.config["num_timesteps"],
        rewards=facts.rewards,
        license=facts.license,
        origin=facts.origin,
        files="".join(files),
        metrics=f"\n| result | value |\n|---|---|\n{rows}" if rows else "",
        policy=POLICY_NAME,
        options=facts.options,
        onnx=_ONNX if (folder / POLICY_ONNX).exists() else "",
    )


def _results(name: str, env_id: str, metrics: tuple[Metric, ...]) -> str:
    """Return the card's ``model-index`` in YAML; JSON strings are YAML strings."""
    if not metrics:
        return ""
    listed = "".join(
        _METRIC.format(type=metric.type, name=json.dumps(metric.name), value=metric) for metric in metrics
    )
    return _RESULTS.format(name=json.dumps(name), env_id=json.dumps(env_id), metrics=listed)
