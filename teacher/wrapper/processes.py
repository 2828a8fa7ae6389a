"""One agent has one predictor, which is trained in one process."""

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
"""How several environments share one."""
_log = logging.getLogger("teacher.wrapper")
_open: WeakValueDictionary[str, Any] = WeakValueDictionary()


class _Learner(Protocol):
    """A trainer."""

    name: str
    config: WrapperConfig


def find_open(name: str | None) -> Any:
    """The trainer of that name, where it is in this process and not closed, else None."""
    return None if name is None else _open.get(name)


def note_open(trainer: _Learner) -> None:
    """One more trainer; warn where another trains a predictor in this process, perhaps for the same agent."""
    others = [str(other.config.logs) for other in _open.values() if other.config.train_reward]
    if others and trainer.config.train_reward:
        _log.warning(
            "another wrapper of this process, with the log_dir %s, trains a predictor of its own; where the "
            "environments of both are one agent's, make this one by first.beside(env)",
            others[0],
        )
    _open[trainer.name] = trainer


def note_closed(trainer: _Learner) -> None:
    """One trainer less."""
    _open.pop(trainer.name, None)


def require_own_agent(config: WrapperConfig) -> None:
    """Refuse to train a predictor in a process that steps one of several environments of an agent elsewhere.

    Such processes are daemons, those of Stable-Baselines3, Gymnasium and Tianshou alike.

    Raises:
        ConfigError: this is one, and ``own_agent`` does not say otherwise.
    """
    is_worker = multiprocessing.parent_process() is not None and multiprocessing.current_process().daemon
    if is_worker and (config.train_reward or config.collect_prefs) and not config.own_agent:
        raise ConfigError(
            "a wrapper in a worker process, as of SubprocVecEnv or AsyncVectorEnv, would train a predictor "
            f"of its own beside those of the others: {ONE_PREDICTOR}; own_agent=True says that this process, "
            "as one of a multiprocessing.Pool, trains an agent of its own"
        )


class Home:
    """The process that something was made in."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def require(self) -> None:
        """Raise :class:`ConfigError` in a process that was forked from it."""
        if os.getpid() != self._process:
            raise ConfigError(
                "the wrapper is stepped in another process than it was made in, where nothing is asked or "
                f"learned: {ONE_PREDICTOR}"
            )
