"""Checks of episode lengths, to choose a segment length and to detect episodes that end early.

``teach`` uses the same rules, in :mod:`teacher.envs.trial`. Random episodes are run in a second instance of
the environment. If no second instance can be made, the agent's first episodes are checked instead.
"""

import contextlib
import dataclasses
import logging
import math
import time
from typing import Any

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.datasets.preference_files import saved_length
from teacher.envs.episodes import declares
from teacher.envs.horizon import limit_of
from teacher.envs.make import make_again
from teacher.envs.trial import (
    LEAKS,
    LIMIT,
    TRIAL_EPISODES,
    Advice,
    Audience,
    Ends,
    Trial,
    WithoutEnds,
    choose_length,
    fillings,
    misfits,
    of_fixed_length,
    try_episodes,
    usual_length,
    without_ends,
)
from teacher.errors import (
    DataError,
    EnvironmentUnsuitableError,
    Topics,
    describe_exception,
    join_errors,
    pluralize,
)
from teacher.wrapper.settings import WrapperConfig

_PATIENCE_SECONDS = 5.0
_log = logging.getLogger("teacher.wrapper")


class EpisodeWatcher:
    """Checks the length of each of the agent's episodes.

    If no random episodes were run, the agent's first episodes are checked instead, and unsuitable ones raise
    an error. Later episodes that end early, or are shorter than another one, only cause a warning.

    Args:
        trial: lengths of random episodes; None to check the agent's first episodes instead.
    """

    def __init__(self, config: WrapperConfig, env_id: str, trial: Trial | None) -> None:
        self.config = config
        self._env_id, self._trial = env_id, trial
        self._first: list[int] = []
        self._longest = 0
        self._warned = Topics()

    def note(self, length: int, *, terminated: bool) -> None:
        """Check the length of an episode that has just ended.

        Raises:
            EnvironmentUnsuitableError: no random episodes were run, and the agent's first episodes end early
                or are too short.
        """
        if self._trial is None and self.config.collect_prefs:
            self._note_first(length)
        elif (
            not self.config.allow_variable_horizon
            and (length < self._longest or (terminated and self._is_early(length)))
            and self._warned.is_new("early end")
        ):
            _log.warning(
                f"an episode of {self._env_id} ended early, after {pluralize(length, 'step')}, and "
                f"{LEAKS}; pass allow_variable_horizon=True to accept this"
            )
        self._longest = max(self._longest, length)

    def _is_early(self, length: int) -> bool:
        trial = self._trial
        return trial is None or length < (trial.horizon or max(trial.lengths))

    def _note_first(self, length: int) -> None:
        self._first.append(length)
        trial, audience = Trial(self._first, None), _audience(self._env_id, WithoutEnds())
        if trial.early and not self.config.allow_variable_horizon:
            raise EnvironmentUnsuitableError(
                f"episodes of {self._env_id} have {min(self._first)} to {max(self._first)} steps, and "
                f"{LEAKS}: {audience.ways_out(trial)[0]}"
            )
        if len(self._first) == TRIAL_EPISODES:
            self._trial = trial
            for problem in misfits(trial, self.config.segment_steps, audience):
                raise problem


def _audience(env_id: str, instead: WithoutEnds) -> Audience:
    """Say which arguments of the wrappers to change, or how to make the environment."""

    def ways_out(trial: Trial) -> Advice:
        ways = [f"make the environment with {name}={value}; " for name, value in instead.arguments.items()]
        if instead.env_id is not None:
            ways.append(f"use {instead.env_id}, whose episodes never end early; ")
        first, second = fillings(trial)
        return (
            f'{"".join(ways)}wrap the environment in teacher.FixedHorizon(env, "{first}") (or "{second}") to '
            "fill in the missing steps; or pass allow_variable_horizon=True to accept this"
        ), {}

    return Audience(env_id, lambda steps: (f"segment_length={steps}", {"segment_length": steps}), ways_out)


def fit_to_environment(config: WrapperConfig, env: Any, env_id: str, fps: int) -> EpisodeWatcher:
    """Choose the segment length for an environment, and log it.

    Returns:
        A watcher whose ``config`` has ``segment_length`` set: the given length, else the length of saved
        segments, else a length that fits random episodes.

    Raises:
        EnvironmentUnsuitableError: episodes end early, or are shorter than the given segment length.
    """
    length = config.segment_length or _saved_segment_length(config)
    usual = usual_length(None, fps)
    tried = _run_trial(config, env, env_id, length or usual) if config.collect_prefs else None
    if tried is not None:
        ends: Ends = "accepted" if config.allow_variable_horizon else "refused"
        length, note, problems = choose_length(tried[0], length, usual, ends, _audience(env_id, tried[1]))
        if problems:
            raise join_errors(problems)
        if note:
            _log.warning("%s; pass segment_length to choose a different length", note)
        else:
            _log.info("Segments of %d steps", length)
    config = dataclasses.replace(config, segment_length=length or usual)
    return EpisodeWatcher(config, env_id, None if tried is None else tried[0])


def _run_trial(config: WrapperConfig, env: Any, env_id: str, wanted: int) -> tuple[Trial, WithoutEnds] | None:
    """Run random episodes in a second instance of the environment; return None if that fails."""
    try:
        if declares(env, "never_terminates") and (limit := limit_of(env)) is not None:
            return of_fixed_length(limit), WithoutEnds()
        other = make_again(env) if config.env_fn is None else config.env_fn()
        if other is None:
            _log.warning(
                "can't check the lengths of random episodes, because no second instance of %s can be made; "
                "the agent's first %d episodes are checked instead",
                env_id,
                TRIAL_EPISODES,
            )
            return None
        with contextlib.closing(other):
            horizon = limit_of(other)
            instead = without_ends(env_id, other)
            if declares(other, "never_terminates") and horizon is not None:
                return of_fixed_length(horizon), instead
            most = wanted if config.allow_variable_horizon else horizon or LIMIT
            return try_episodes(other, horizon, config.seed, most, _SlowTrialWarning()), instead
    except (Exception, SystemExit) as error:  # an environment may raise anything
        _log.warning(
            "could not run random episodes (%s); the agent's first %d episodes are checked instead",
            describe_exception(error),
            TRIAL_EPISODES,
        )
        return None


class _SlowTrialWarning:
    """Logs one warning if random episodes are slow, for example because each step is rendered."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _PATIENCE_SECONDS

    def __call__(self, tried: int) -> None:
        if time.monotonic() > self._until:
            self._until = math.inf
            _log.warning(
                "still running random episodes (%d of %d finished); pass allow_variable_horizon=True to "
                "stop each episode after one segment",
                tried,
                TRIAL_EPISODES,
            )


def _saved_segment_length(config: WrapperConfig) -> int | None:
    """Return the length of the segments saved in ``prefs_dir``, else in ``log_dir``; None if unknown."""
    if config.saved_preferences is not None:
        return saved_length(config.saved_preferences)
    path = config.logs / LEDGER_NAME
    if not path.exists():
        return None
    with contextlib.suppress(DataError), contextlib.closing(Ledger(path, read_only=True)) as ledger:
        return ledger.segment_length()
    return None
