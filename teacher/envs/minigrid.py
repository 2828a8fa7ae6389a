"""Observations of MiniGrid as numbers that a network can tell apart."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = (11, 6, 4)  # of objects, of colors, and of states (of doors, and ways that an agent looks)
_DIRECTIONS = 4


def cells(observation: Mapping[str, Any]) -> NDArray[np.float32]:
    """The cells that the agent sees, each number one-hot, and the way it looks: ``(cells * 21 + 4,)``.

    MiniGrid numbers objects, colors and states of doors; the mission's text is left out. For
    ``--obs_transform teacher.envs.minigrid:cells``.
    """
    codes = np.moveaxis(np.asarray(observation["image"]), -1, 0)
    parts = [np.eye(kinds, dtype=np.float32)[code].ravel() for kinds, code in zip(_KINDS, codes, strict=True)]
    return np.concatenate([*parts, np.eye(_DIRECTIONS, dtype=np.float32)[observation["direction"]]])
