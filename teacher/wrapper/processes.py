"""One agent has one predictor, which is trained in one process."""

import multiprocessing
import os

from teacher.errors import ConfigError
from teacher.wrapper.settings import WrapperConfig

ONE_PREDICTOR = (
    "step the environments of one agent in one process, as DummyVecEnv([lambda: first, lambda: "
    "first.beside(env)]) does, or wrap a Gymnasium AsyncVectorEnv as a whole in HumanPreferencesVectorWrapper"
)
"""How several environments share one."""


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
