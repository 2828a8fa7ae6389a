"""Hugging Face dataset folder: one Parquet file, and a card that describes it."""

from pathlib import Path

from teacher.data.preferences import PreferenceDataset
from teacher.errors import ConfigError, pluralize
from teacher.files import require_new, saved

FILE_NAME, CARD_NAME = "train.parquet", "README.md"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**9, "100K<n<1M"))

_CARD = """\
---
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

{answers} on which of two clips of the Gymnasium environment `{env_id}` is better, each of
{steps}. {question}

| column | content |
|---|---|
| `uuid` | identifies the pair |
| `preference` | probability that the first clip is better: 1, 0, or 0.5 for equal |
| `complete` | whether the final observation and the termination were recorded |
{clips}| `first_true_return`, `second_true_return` | sum of the environment's rewards over the clip |
| `first_terminated`, `second_terminated` | whether the environment ended the episode with the last step |
| `first_observations`, `second_observations` | before each step, and after the last one |
| `first_actions`, `second_actions` | one per step, as executed |

```python
from datasets import load_dataset

preferences = load_dataset("parquet", data_files="{file}")["train"]
```

With [RL-Teacher](https://pypi.org/project/rl-teacher/), `teach fit {file} reward.npz` fits a reward to it.
"""
_CLIPS = "| `first_clip`, `second_clip` | the compared clips, as mp4 |\n"


def check_folder(folder: Path) -> bool:
    """Make a dataset folder, or refuse one that holds anything but an earlier export.

    Return True if there was no earlier export, so that nothing may be replaced now.

    Raises:
        ConfigError: the folder has another card, or no card but other files, or it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        card = folder / CARD_NAME
        has_card = card.exists()
        is_other = has_card and "- rl-teacher\n" not in card.read_text(errors="replace")
        holds_files = any(not path.name.startswith(".") for path in folder.iterdir())  # ignore .git
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}") from error
    if is_other:
        raise ConfigError(f"{card} was not written by this program; choose another folder")
    if holds_files and not has_card:
        require_new(folder)
    return not has_card


def write_card(
    folder: Path, dataset: PreferenceDataset, question: str, *, with_clips: bool, new: bool = False
) -> None:
    """Write the card of the dataset in ``folder``.

    Args:
        folder: the folder of :data:`FILE_NAME`.
        dataset: its preferences.
        question: a sentence on who was asked, and what.
        with_clips: the file includes clips.
        new: never replace a card.

    Raises:
        ConfigError: with ``new``, a card exists.
        StorageError: it cannot be written.
    """
    text = _CARD.format(
        env_id=dataset.env_id,
        answers=pluralize(len(dataset), "label"),
        size=next(name for bound, name in _SIZES if len(dataset) < bound),
        steps=pluralize(dataset.segment_length, "step"),
        file=FILE_NAME,
        question=question,
        clips=_CLIPS if with_clips else "",
    )
    with saved(folder / CARD_NAME, str(folder / CARD_NAME), new=new) as file:
        file.write(text.encode())
