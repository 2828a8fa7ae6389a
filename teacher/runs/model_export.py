"""Export of a run's policy and reward predictor to files for other programs."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.portable import PortablePolicy
from teacher.datasets import model_card
from teacher.datasets.dataset_card import check_folder
from teacher.datasets.onnx_files import require_onnx, save_onnx
from teacher.datasets.tensor_files import require_safetensors
from teacher.errors import ConfigError
from teacher.files import require_new
from teacher.runs.model_folder import export_model_folder
from teacher.runs.saved_run import Models, SavedRun
from teacher.training.sb3 import require_supported, save_sb3

CHECKED_INPUTS = 1000
"""Number of random inputs that an ONNX file is checked with."""
_WIDEST = 1e6


def model_writers(
    run: SavedRun, onnx: Path | None, huggingface: Path | None, sb3: Path | None, license_id: str = "unknown"
) -> list[Callable[[], Iterable[str]]]:
    """Load a run's models, check that they can be exported, and return functions that write them.

    Each function yields lines that say what was written.

    Args:
        onnx: folder for ONNX files; created if it is missing. None to write none.
        huggingface: Hugging Face folder, which may contain an earlier export, and may be the same folder.
        license_id: identifier of the models' license on the Hub.

    Raises:
        ConfigError: an optional package isn't installed, a file exists, a folder can't be created, or
            Stable-Baselines3 doesn't support the policy.
        DataError: there is no checkpoint yet.
        AgentError: the checkpoint is from a different environment.
    """
    if onnx is None and huggingface is None and sb3 is None:
        return []
    if onnx is not None:
        require_onnx()
    if huggingface is not None:
        require_safetensors()
    models = run.load_models()
    writers: list[Callable[[], Iterable[str]]] = []
    if sb3 is not None:
        space = run.task.observation_space
        require_supported(models.agent, space, sb3)
        writers.append(partial(export_sb3, models, sb3))
    is_new = huggingface is None or check_folder(huggingface, model_card.CONFIG_NAME, "a model")
    if onnx is not None:
        is_same = huggingface is not None and onnx.resolve() == huggingface.resolve()
        if not is_same:
            _prepare_folder(onnx)
        writers.append(partial(export_onnx, models, onnx, new=is_new or not is_same))
    if huggingface is not None:  # last, because the card lists the ONNX files
        writers.append(partial(export_model_folder, models, huggingface, license_id, new=is_new))
    return writers


def _prepare_folder(folder: Path) -> None:
    """Create a folder for ONNX files; raise :class:`ConfigError` if it already contains one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create the folder {folder}: {error.strerror}") from error
    for name in (model_card.POLICY_ONNX, model_card.PREDICTOR_ONNX):
        require_new(folder / name)


def export_sb3(models: Models, path: Path) -> Iterator[str]:
    """Write the policy to a file for Stable-Baselines3, and yield a line about it; see :func:`save_sb3`."""
    algorithm, statistics = save_sb3(models.agent, models.run.task.observation_space, path)
    beside = "" if statistics is None else f"; observation statistics in {statistics}"
    yield f"{path}: policy for stable_baselines3.{algorithm}.load{beside}"


def export_onnx(models: Models, folder: Path, *, new: bool) -> Iterator[str]:
    """Write the policy and the predictor to ONNX files, and yield a line about each.

    Args:
        new: never replace existing files.

    Raises:
        ConfigError: an ONNX package isn't installed, or ``new`` is True and a file exists.
        DataError: a network can't be exported, or its file gives different results than torch.
        StorageError: a file can't be written.
    """
    task = models.run.task
    observations = random_inputs(task.observation_space, seed=1)
    policy = PortablePolicy(models.agent)
    path = folder / model_card.POLICY_ONNX
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
        path = folder / model_card.PREDICTOR_ONNX
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
