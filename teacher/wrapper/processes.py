"""Checks that the environments of one agent share one predictor, trained in one process."""

import logging
import multiprocessing
import os
from typing import Any
from weakref import WeakValueDictionary

from teacher.errors import ConfigError

ONE_PREDICTOR = (
    "step all environments of an agent in one process, for example with DummyVecEnv([lambda: first, lambda: "
    "first.beside(env)]), or wrap a whole Gymnasium AsyncVectorEnv in HumanPreferencesVectorWrapper"
)
"""Advice on how to make environments share a predictor, quoted in error messages."""
_log = logging.getLogger("teacher.wrapper")
_open: WeakValueDictionary[str, Any] = WeakValueDictionary()


def find_open(name: str | None) -> Any:
    """Return this process's open trainer with the given name; None if there is none."""
    return None if name is None else _open.get(name)


def note_open(trainer: Any) -> None:
    """Register an open trainer; warn if this process has another one that trains a predictor."""
    others = [str(other.config.logs) for other in _open.values() if other.config.train_reward]
    if others and trainer.config.train_reward:
        _log.warning(
            "another wrapper in this process, with log_dir %s, trains a separate predictor; if both "
            "environments belong to one agent, make the second wrapper with first.beside(env)",
            others[0],
        )
    _open[trainer.name] = trainer


def note_closed(trainer: Any) -> None:
    """Unregister a closed trainer."""
    _open.pop(trainer.name, None)


def require_own_agent(config: Any) -> None:
    """Raise an error if a predictor would be trained in a worker process that only steps environments.

    Stable-Baselines3, Gymnasium and Tianshou workers are recognized by their ``daemon`` flag.

    Raises:
        ConfigError: this is a daemon process, and ``own_agent`` is False.
    """
    is_worker = multiprocessing.parent_process() is not None and multiprocessing.current_process().daemon
    if is_worker and (config.train_reward or config.collect_prefs) and not config.own_agent:
        raise ConfigError(
            "a wrapper in a worker process, such as one of SubprocVecEnv or AsyncVectorEnv, would train a "
            f"separate predictor in each process: {ONE_PREDICTOR}; pass own_agent=True if this process "
            "trains its own agent, as in a multiprocessing.Pool"
        )


class Home:
    """Checks that an object is used only in the process that made it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def require(self) -> None:
        """Raise :class:`ConfigError` if this is a different process, such as a fork."""
        if os.getpid() != self._process:
            raise ConfigError(
                "the wrapper was made in a different process, so it can't collect labels or train here: "
                f"{ONE_PREDICTOR}"
            )
