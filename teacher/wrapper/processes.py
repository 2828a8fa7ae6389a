"""Checks that an agent has one predictor, trained in one process."""

import logging
import multiprocessing
import os
from typing import Any, Protocol
from weakref import WeakValueDictionary

from teacher.errors import ConfigError
from teacher.wrapper.settings import WrapperConfig

ONE_PREDICTOR = (
    "step the environments of one agent in one process, as DummyVecEnv([lambda: first, lambda: "
    "first.beside(env)]) does, or wrap a Gymnasium AsyncVectorEnv as a whole in HumanPreferencesVectorWrapper"
)
"""Advice for sharing a predictor between environments, the end of error messages."""
_log = logging.getLogger("teacher.wrapper")
_open: WeakValueDictionary[str, Any] = WeakValueDictionary()


class _Learner(Protocol):
    """A trainer of a predictor."""

    name: str
    config: WrapperConfig


def find_open(name: str | None) -> Any:
    """Return the open trainer of this process with the given name, None without one."""
    return None if name is None else _open.get(name)


def note_open(trainer: _Learner) -> None:
    """Register an open trainer; warn if another one of this process also trains a predictor."""
    others = [str(other.config.logs) for other in _open.values() if other.config.train_reward]
    if others and trainer.config.train_reward:
        _log.warning(
            "another wrapper of this process, with the log_dir %s, trains a separate predictor; if both "
            "environments belong to one agent, make this one by first.beside(env)",
            others[0],
        )
    _open[trainer.name] = trainer


def note_closed(trainer: _Learner) -> None:
    """Remove a closed trainer."""
    _open.pop(trainer.name, None)


def require_own_agent(config: WrapperConfig) -> None:
    """Refuse to train a predictor in a worker process that steps one environment of an agent elsewhere.

    Workers of Stable-Baselines3, Gymnasium and Tianshou are recognized as daemonic processes.

    Raises:
        ConfigError: this is a worker process, and ``own_agent`` is not set.
    """
    is_worker = multiprocessing.parent_process() is not None and multiprocessing.current_process().daemon
    if is_worker and (config.train_reward or config.collect_prefs) and not config.own_agent:
        raise ConfigError(
            "a wrapper in a worker process, as of SubprocVecEnv or AsyncVectorEnv, would train a separate "
            f"predictor in each process: {ONE_PREDICTOR}; pass own_agent=True if this process trains its own "
            "agent, as in a multiprocessing.Pool"
        )


class Home:
    """Remembers the process that made the wrapper."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def require(self) -> None:
        """Raise :class:`ConfigError` in any other process, such as a fork."""
        if os.getpid() != self._process:
            raise ConfigError(
                "the wrapper is stepped in another process than it was made in, where it can't ask or learn: "
                f"{ONE_PREDICTOR}"
            )
