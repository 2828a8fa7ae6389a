"""A size that is no whole number of 1 or more is refused by its name."""

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.demonstrations import Demonstrations, record_demonstrations
from teacher.errors import ConfigError
from teacher.judges import oracle
from teacher.offline import ask
from teacher.segments import SegmentPool
from teacher.wrapper import replayable


def pendulum() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1")


def split(size: Any) -> object:
    columns = np.ones((4, 3)), np.ones((4, 2)), np.ones(4), np.full(1, 4.0), np.arange(4) == 0
    return Demonstrations(*columns).split(1, batch_size=size)


TAKE_SIZES: dict[str, Callable[[Any], object]] = {
    "length": SegmentPool,
    "capacity": lambda size: SegmentPool(5, capacity=size),
    "max_bytes": lambda size: SegmentPool(5, max_bytes=size),
    "count": lambda size: ask(SegmentPool(5), oracle, size),
    "n_episodes": lambda size: record_demonstrations(lambda _: [0.0], pendulum(), size),
    "batch_size": split,
    "num_envs": lambda size: replayable(pendulum, size),
}


@pytest.mark.parametrize("size", [0, -3, 2.5, "10", True, float("nan"), float("inf"), [3]], ids=repr)
@pytest.mark.parametrize("name", TAKE_SIZES)
def test_what_is_no_size_is_refused(name: str, size: object) -> None:
    message = f"^{name}: expected a whole number of 1 or more; got {re.escape(repr(size))}$"
    with pytest.raises(ConfigError, match=message):
        TAKE_SIZES[name](size)
