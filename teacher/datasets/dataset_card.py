"""Hugging Face dataset folder with one Parquet file and a dataset card (``README.md``)."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from teacher.data.preferences import PreferenceDataset
from teacher.errors import ConfigError, pluralize
from teacher.files import require_new, saved

FILE_NAME, CARD_NAME = "train.parquet", "README.md"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**9, "100K<n<1M"))

_CARD = """\
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
With RL-Teacher (`pip install rl-teacher`), fit a reward predictor: `teach fit {file} reward.npz`
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

        file: name of a file that each such export contains.

    Returns:
        True if the folder contains no earlier export; in that case, the caller must not replace any file.

    Raises:
        ConfigError: the folder can't be created, or contains files but no card written by RL-Teacher.
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


@dataclass(frozen=True)
class CardFacts:
    """Contents of a dataset card beside the preferences themselves.

    Attributes:
        question: sentence that says who labeled the clips and what they were asked.
    """

    question: str
    license: str = "unknown"
    with_clips: bool = False


def write_card(folder: Path, dataset: PreferenceDataset, facts: CardFacts, *, new: bool = False) -> None:
    """Write the dataset card, ``README.md``.

    Raises:
        ConfigError: ``new`` is True and a card exists.
        StorageError: the card can't be written.
    """
    text = _CARD.format(
        env_id=dataset.env_id,
        answers=pluralize(len(dataset), "label"),
        size=next(name for bound, name in _SIZES if len(dataset) < bound),
        steps=pluralize(dataset.segment_length, "step"),
        file=FILE_NAME,
        license=facts.license,
        question=facts.question,
        clips=_CLIPS if facts.with_clips else "",
        reading=_READING_CLIPS if facts.with_clips else "",
    )
    with saved(folder / CARD_NAME, str(folder / CARD_NAME), new=new) as file:
        file.write(text.encode())
