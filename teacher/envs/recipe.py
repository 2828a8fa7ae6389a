"""Episode recipes: everything needed to replay an episode exactly, on any machine."""

import base64
import contextlib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.envs.suites import SUITES
from teacher.errors import DataError

_DISTRIBUTIONS = ("gymnasium", "mujoco", "numpy", *(suite.distribution for suite in SUITES.values()))


@functools.cache
def library_versions() -> Mapping[str, str]:
    """Return the installed versions of the libraries that determine whether a replay is bit-exact."""
    versions = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a suite of environments
            versions[name] = metadata.version(name)
    return MappingProxyType(versions)


@dataclass(frozen=True, eq=False)
class EpisodeRecipe:
    """Everything needed to replay the first steps of one episode.

    Attributes:
        kwargs: further arguments of ``make_env``, JSON values only.
        actions: ``(steps, *action_shape)``, exactly as executed (clipped, with the environment's dtype).
        versions: library versions with which the episode was recorded, keyed by package name.
    """

    env_id: str
    kwargs: Mapping[str, Any]
    seed: int
    actions: NDArray[Any]
    versions: Mapping[str, str] = field(default_factory=library_versions)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as a JSON-serializable dict; actions are base64-encoded little-endian bytes."""
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
        """Restore a recipe from the output of :meth:`to_dict`.

        Raises:
            DataError: ``data`` is not a valid recipe.
        """
        try:
            packed = data["actions"]
            dtype = np.dtype(packed["dtype"])
            if dtype.kind not in "iufb":
                raise ValueError(f"unsupported action dtype {dtype}")
            raw = base64.b64decode(packed["base64"], validate=True)
            actions = np.frombuffer(raw, dtype).reshape(packed["shape"]).astype(dtype.newbyteorder("="))
            return cls(
                env_id=str(data["env_id"]),
                kwargs=dict(data["kwargs"]),
                seed=int(data["seed"]),
                actions=actions,
                versions=dict(data["versions"]),
            )
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            SyntaxError,
        ) as error:  # np.dtype may raise SyntaxError
            raise DataError(
                f"not an episode recipe: {error!r}; expected the output of EpisodeRecipe.to_dict()"
            ) from error

    def to_json(self) -> str:
        """Return the recipe as a JSON string."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "EpisodeRecipe":
        """Restore a recipe from the output of :meth:`to_json`.

        Raises:
            DataError: ``text`` is not a valid recipe.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not an episode recipe: {error!r}; expected a JSON string") from error
        return cls.from_dict(data)
