"""A small environment, and wrappers of it that learn quickly."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher import HumanPreferencesEnvWrapper, HumanPreferencesVectorWrapper
from teacher.settings.options import RewardConfig

SMALL = RewardConfig(members=2, hidden=16, refit_after=0.5, epochs=4)
INSIDE: dict[str, Any] = {  # all within step, with few labels
    "background": False,
    "n_prefs": 24,
    "n_initial_prefs": 12,
    "total_timesteps": 600,
    "segment_length": 5,
    "n_initial_training_steps": 8,
    "validation_interval": 4,
    "reward_predictor_ckpt_interval": 4,
    "reward_predictor_refresh_interval": 4,
    "reward": SMALL,
}

Wrapper = HumanPreferencesEnvWrapper
Wrap = Callable[..., HumanPreferencesEnvWrapper]
WrapVector = Callable[..., HumanPreferencesVectorWrapper]


class Line(gym.Env[Any, Any]):
    """A point on a line that is pushed left and right at random, and by the agent; it should be on the right.

    It writes into the observation it returned before, as some environments do.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(self, render_mode: str | None = None, steps: int = 23) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self._state = np.zeros(2, np.float32)
        self._steps = steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._state = np.array([self.np_random.uniform(-1, 1), 0], np.float32)
        return self._state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        self._state += (0.3 * action[0] + 0.05 * self.np_random.normal(), 1 / self._steps)
        ended = self._time >= self._steps
        return self._state, float(self._state[0]), ended and self._time % 2 == 0, ended, {"time": self._time}

    def render(self) -> Any:
        picture = np.full((48, 64, 3), 255, np.uint8)
        column = int(np.clip(32 + 8 * self._state[0], 0, 63))
        picture[:, column] = (200, 30, 30)
        return picture


def play(env: gym.Env[Any, Any], steps: int, seed: int = 1) -> list[tuple[float, dict[str, Any]]]:
    """Random actions; what came of each step."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    outcomes = []
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        outcomes.append((float(reward), info))
        if terminated or truncated:
            env.reset()
    return outcomes


@pytest.fixture
def wrap(tmp_path: Path) -> Iterator[Wrap]:
    """Wraps a Line, or another environment, with few labels and all within ``step``; closed at the end."""
    with contextlib.ExitStack() as made:
        yield partial(_wrapped, HumanPreferencesEnvWrapper, tmp_path, made)


@pytest.fixture
def wrap_vector(tmp_path: Path) -> Iterator[WrapVector]:
    with contextlib.ExitStack() as made:
        yield partial(_wrapped, HumanPreferencesVectorWrapper, tmp_path, made)


def _wrapped(kind: Any, folder: Path, made: contextlib.ExitStack, env: Any = None, **settings: Any) -> Any:
    settings = {"log_dir": folder / "logs", **INSIDE, **settings}
    return made.enter_context(contextlib.closing(kind(env or Line(), **settings)))
