"""One-hot observations for MiniGrid."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = (11, 6, 4)  # numbers of object types, colors, and states (of doors, or directions of agents)
_DIRECTIONS = 4


def cells(observation: Mapping[str, Any]) -> NDArray[np.float32]:
    """Convert an observation to concatenated one-hot encodings, shape ``(cells * 21 + 4,)``.

    They encode the object type, color and state of each visible cell, and the agent's direction. The mission
    text is dropped. For use with ``--obs_transform teacher.envs.minigrid:cells``.
    """
    codes = np.moveaxis(np.asarray(observation["image"]), -1, 0)
    parts = [np.eye(kinds, dtype=np.float32)[code].ravel() for kinds, code in zip(_KINDS, codes, strict=True)]
    return np.concatenate([*parts, np.eye(_DIRECTIONS, dtype=np.float32)[observation["direction"]]])
