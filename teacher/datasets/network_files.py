"""ONNX files of torch modules, checked against torch with onnxruntime as they are written."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from teacher.errors import DataError, StorageError, one_line
from teacher.extras import require_extra
from teacher.files import part_of, refusing_damage, saved

TOLERANCE = 1e-5
"""Largest accepted difference between onnxruntime and torch, relative to outputs above 1."""
_SHARE_OF_TIES = 0.01  # of integers that may differ, as near-ties between logits are rounded either way
_REMEDY = "use a network whose operations don't depend on values or on the batch size"
_TRACED_ROWS = 2  # torch.export takes sizes of 0 and 1 for constants


def require_onnx() -> None:
    """Raise :class:`ConfigError` unless the packages for writing and checking ONNX files are installed."""
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require_extra(module, "an ONNX file", "onnx")


def save_onnx(
    path: Path,
    module: nn.Module,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    *,
    new: bool,
) -> float:
    """Write a module to an ONNX file, after a check against torch.

    Args:
        module: module in evaluation mode; takes one tensor ``(n, ...)`` per input, and returns a tensor
            ``(n, ...)`` or a tuple of them.
        inputs: example inputs ``(n, ...)`` to check the file with, keyed by name, in the module's order.

    Returns:
        The largest difference between onnxruntime's and torch's floating-point outputs; if an output has
        values above 1, relative to the largest of them.
    """
    require_onnx()
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    try:
        with part_of(path, new=new) as part:
            _write(part, path, module, tensors, outputs)
            return _check(part, path, module, tensors)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _write(
    part: Path, path: Path, module: nn.Module, tensors: Mapping[str, Tensor], outputs: Sequence[str]
) -> None:
    examples = tuple(tensor[:_TRACED_ROWS] for tensor in tensors.values())
    batch = {0: torch.export.Dim("batch")}
    try:
        with _quiet():
            program = torch.onnx.export(
                _Positional(module),
                examples,
                input_names=list(tensors),
                output_names=list(outputs),
                dynamic_shapes=((batch,) * len(examples),),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # a custom network may raise anything
        cause, *_ = str(error.__cause__ or error).splitlines() or [type(error).__name__]
        raise DataError(
            f"cannot write {path}: torch can't trace the network ({one_line(cause)}); {_REMEDY}"
        ) from error
    program.save(part, external_data=False)


class _Positional(nn.Module):
    """Calls a module, for torch.export to see the same signature whatever the number of inputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)


def _check(part: Path, path: Path, module: nn.Module, tensors: Mapping[str, Tensor]) -> float:
    """Return the largest difference between onnxruntime's outputs for the written file and torch's."""
    runtime = require_extra("onnxruntime", "an ONNX file", "onnx")
    with torch.no_grad():
        expected = module(*tensors.values())
    try:
        session = runtime.InferenceSession(str(part), providers=["CPUExecutionProvider"])
        found = session.run(None, {name: tensor.numpy() for name, tensor in tensors.items()})
    except Exception as error:  # onnxruntime has no public base class of its errors
        raise DataError(
            f"cannot write {path}: onnxruntime can't run the exported network ({one_line(error)}); {_REMEDY}"
        ) from error
    expected = [tensor.numpy() for tensor in (expected if isinstance(expected, tuple) else (expected,))]
    difference = max(map(_difference, found, expected))
    if not difference <= TOLERANCE:
        raise DataError(
            f"cannot write {path}: onnxruntime's outputs differ from torch's by {difference:.2g}, more than "
            f"{TOLERANCE:g}; a network whose outputs are random, for example, can't be exported"
        )
    return difference


def _difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.inf
    if found.dtype.kind != "f":
        return 0.0 if np.mean(found != expected) <= _SHARE_OF_TIES else np.inf
    return float(np.max(np.abs(found - expected)) / max(1, np.max(np.abs(expected))))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch and onnxscript log and warn about their own workings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


_PURPOSE = "a safetensors file"


def require_safetensors() -> None:
    """Raise :class:`ConfigError` unless safetensors is installed."""
    require_extra("safetensors", _PURPOSE, "hub")


def save_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, str], *, new: bool
) -> None:
    """Write named tensors to a safetensors file, atomically."""
    library = require_extra("safetensors.numpy", _PURPOSE, "hub")
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    with saved(path, str(path), new=new) as file:
        file.write(library.save(contiguous, dict(about)))


def load_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read all tensors of a safetensors file."""
    library = require_extra("safetensors.numpy", _PURPOSE, "hub")
    damage = require_extra("safetensors", _PURPOSE, "hub").SafetensorError
    with refusing_damage(f"{path} is not a readable safetensors file", damage):
        tensors: dict[str, NDArray[Any]] = library.load_file(path)
        return tensors
