"""An episode as a recipe: everything needed to play it again, exactly, anywhere."""

import base64
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.errors import DataError

_DISTRIBUTIONS = ("gymnasium", "mujoco", "numpy")


@functools.cache
def library_versions() -> Mapping[str, str]:
    """Return the versions of the libraries that decide whether a replay is bit-exact."""
    return MappingProxyType({name: metadata.version(name) for name in _DISTRIBUTIONS})


@dataclass(frozen=True, eq=False)
class EpisodeRecipe:
    """How to play the beginning of one episode again.

    Attributes:
        env_id: Gymnasium id, as given to ``gymnasium.make``.
        kwargs: further arguments of ``gymnasium.make``, JSON values only.
        seed: the seed of the episode's ``reset``.
        actions: ``(steps, *action_shape)``, exactly as executed (clipped, with the environment's dtype).
        versions: distribution name to version, at recording.
    """

    env_id: str
    kwargs: Mapping[str, Any]
    seed: int
    actions: NDArray[Any]
    versions: Mapping[str, str] = field(default_factory=library_versions)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON values; the actions as base64 of their little-endian bytes."""
        actions = np.ascontiguousarray(self.actions)
        actions = actions.astype(actions.dtype.newbyteorder("<"))
        return {
            "env_id": self.env_id,
            "kwargs": dict(self.kwargs),
            "seed": self.seed,
            "versions": dict(self.versions),
            "actions": {
                "dtype": actions.dtype.str,
                "shape": list(actions.shape),
                "base64": base64.b64encode(actions.tobytes()).decode("ascii"),
            },
        }

    @classmethod
    def from_dict(cls, data: Any) -> "EpisodeRecipe":
        """Read back :meth:`to_dict`. Raises :class:`DataError` for anything else."""
        try:
            packed = data["actions"]
            dtype = np.dtype(packed["dtype"])
            if dtype.kind not in "iufb":
                raise ValueError(f"actions of dtype {dtype}")
            raw = base64.b64decode(packed["base64"], validate=True)
            actions = np.frombuffer(raw, dtype).reshape(packed["shape"]).astype(dtype.newbyteorder("="))
            return cls(
                env_id=str(data["env_id"]),
                kwargs=dict(data["kwargs"]),
                seed=int(data["seed"]),
                actions=actions,
                versions=dict(data["versions"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, SyntaxError) as error:  # the last of a dtype
            raise DataError(
                f"not an episode recipe: {error!r}; expected what EpisodeRecipe.to_dict wrote"
            ) from error

    def to_json(self) -> str:
        """Return :meth:`to_dict` as one JSON object."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "EpisodeRecipe":
        """Read back :meth:`to_json`. Raises :class:`DataError` for anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not an episode recipe: {error!r}; expected JSON") from error
        return cls.from_dict(data)
