"""Hugging Face folders: the cards (``README.md``) of models and datasets, and a model's ``config.json``."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teacher.data.preferences import PreferenceDataset
from teacher.errors import ConfigError, pluralize
from teacher.files import require_new, saved

CARD_NAME, CONFIG_NAME, DATASET_NAME = "README.md", "config.json", "train.parquet"
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
To train on from this policy with RL-Teacher (`pip install <wheel or repository>`):

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
    """

    config: Mapping[str, Any]
    options: str
    rewards: str
    inputs: tuple[str, ...]
    metrics: tuple[Metric, ...]
    license: str = "unknown"


def write_model_card(folder: Path, facts: ModelFacts, *, new: bool) -> None:
    """Write ``config.json`` and the model card, which lists the model files in the folder."""
    _write(folder / CONFIG_NAME, json.dumps(facts.config, indent=2) + "\n", new=new)
    _write(folder / CARD_NAME, _card(folder, facts), new=new)


def _card(folder: Path, facts: ModelFacts) -> str:
    env_id, agent = str(facts.config["env_id"]), str(facts.config["agent"])
    inputs = ", ".join(f"`{name}`" for name in facts.inputs)
    versions = ", ".join(f"{name} {version}" for name, version in facts.config["versions"].items())
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
        origin=f"Seed: {facts.config['seed']}. Written with {versions}.",
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


_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**9, "100K<n<1M"))

_DATASET_CARD = """\
---
license: {license}
pretty_name: Preferences about {env_id}
task_categories:
- reinforcement-learning
tags:
- preferences
- rlhf
- gymnasium
- rl-teacher
size_categories:
- {size}
configs:
- config_name: default
  data_files:
  - split: train
    path: {file}
---

# Preferences about {env_id}

{answers} saying which of two clips of the Gymnasium environment `{env_id}` is better.
Each clip has {steps}. {question}

| column | content |
|---|---|
| `uuid` | identifies the pair |
| `preference` | probability that the first clip is better: 1, 0, or 0.5 for equal |
| `complete` | true if the final observation and the termination were recorded |
{clips}| `first_true_return`, `second_true_return` | sum of the environment's rewards over the clip |
| `first_terminated`, `second_terminated` | true if the episode ended at the clip's last step |
| `first_observations`, `second_observations` | observations before each step and after the last one |
| `first_actions`, `second_actions` | actions as executed, one per step |

```python
from datasets import load_dataset

preferences = load_dataset("parquet", data_files="{file}")["train"]
```
{reading}
With RL-Teacher (`pip install <wheel or repository>`), fit a reward predictor: `teach fit {file} reward.npz`
"""
_READING_CLIPS = """
Decoding the clips needs `pip install torchcodec`. Without it, read them as MP4 files:

```python
from datasets import Video

for column in ("first_clip", "second_clip"):
    preferences = preferences.cast_column(column, Video(decode=False))
clip = preferences[0]["first_clip"]["bytes"]
```
"""
_CLIPS = "| `first_clip`, `second_clip` | the two compared clips, as MP4 |\n"


def check_folder(folder: Path, file: str, what: str) -> bool:
    """Create a Hugging Face folder, or check that an existing one is empty or contains an earlier export.

    Args:
        file: name of a file that each such export contains.

    Returns:
        True if the folder contains no earlier export; in that case, the caller must not replace any file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        card = folder / CARD_NAME
        has_card = card.exists()
        is_ours = (
            has_card and (folder / file).exists() and "- rl-teacher\n" in card.read_text(errors="replace")
        )
        has_files = any(not path.name.startswith(".") for path in folder.iterdir())  # ignore .git
    except OSError as error:
        raise ConfigError(f"cannot create the folder {folder}: {error.strerror}") from error
    if has_card and not is_ours:
        raise ConfigError(f"{card} was not written by RL-Teacher for {what}; choose a different folder")
    if has_files and not has_card:
        require_new(folder)
    return not has_card


def upload_command(folder: Path) -> str:
    """Return the command that uploads a folder to a repository of the same name, for models by default."""
    return f"hf upload {shlex.quote(f'YOU/{folder.resolve().name}')} {shlex.quote(str(folder))} ."


def write_dataset_card(
    folder: Path, dataset: PreferenceDataset, question: str, license_id: str, *, clips: bool, new: bool
) -> None:
    """Write the card of a dataset; ``question`` is a sentence on who labeled and what they were asked."""
    text = _DATASET_CARD.format(
        env_id=dataset.env_id,
        answers=pluralize(dataset.labels, "label"),
        size=next(name for bound, name in _SIZES if len(dataset) < bound),
        steps=pluralize(dataset.segment_length, "step"),
        file=DATASET_NAME,
        license=license_id,
        question=question,
        clips=_CLIPS if clips else "",
        reading=_READING_CLIPS if clips else "",
    )
    _write(folder / CARD_NAME, text, new=new)


def _write(path: Path, text: str, *, new: bool) -> None:
    with saved(path, str(path), new=new) as file:
        file.write(text.encode())
