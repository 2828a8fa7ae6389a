"""What training continues from, as arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.errors import StateMismatchError


def save_adam(optimizer: torch.optim.Adam) -> dict[str, Any]:
    """Copies of the moments of each parameter, by its number."""
    moments = optimizer.state_dict()["state"]
    return {str(index): to_arrays(of_one) for index, of_one in moments.items()}


def load_adam(optimizer: torch.optim.Adam, state: Mapping[str, Any]) -> None:
    """Continue from :func:`save_adam`."""
    moments = {int(index): to_tensors(of_one) for index, of_one in state.items()}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copies as numpy arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Copies as tensors."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def require_moments(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
    """Raise :class:`StateMismatchError` unless a state of :func:`save_adam` may be of these parameters."""
    expected = {str(index): tuple(parameter.shape) for index, parameter in enumerate(parameters)}
    # An optimizer that has made no step has no moments.
    given = {index: np.shape(moments["exp_avg"]) for index, moments in state.items()}
    if given and given != expected:
        raise StateMismatchError(
            f"Expected an optimizer of {len(expected)} parameters, got one of {len(given)} or of other "
            "shapes; use the algorithm that saved it."
        )
