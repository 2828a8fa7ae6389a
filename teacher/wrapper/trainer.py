"""Learning from preferences in the background of an environment that another program steps.

A thread does it, or ``step`` itself for reproducible runs. The environment's side passes segments through a
queue and uses an immutable copy of the predictor, so that neither waits for the other.
"""

import contextlib
import logging
import math
import threading
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from teacher.data.ledger import Ledger
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import (
    BackgroundError,
    ConfigError,
    TeacherError,
    describe_exception,
    pluralize,
)
from teacher.labeling.human import HumanCollector
from teacher.queries.learning import PreferenceLearning
from teacher.reward.modules import MakeNetwork
from teacher.reward.predictor import RewardPredictor
from teacher.wrapper.clips import ClipSource
from teacher.wrapper.episode_check import EpisodeWatcher
from teacher.wrapper.processes import Home, note_closed, note_open
from teacher.wrapper.prompt import PromptCollector
from teacher.wrapper.recording import Source
from teacher.wrapper.turns import LearningTurns

_SEGMENTS_QUEUED = 1000  # the newest are kept if they arrive faster than they are processed
_SEGMENTS_WAITED_FOR = 50
_IDLE_SECONDS = 0.1
_CLOSE_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 60.0  # longer than the fit that they wait for

_log = logging.getLogger("teacher.wrapper")
_preferences_log = logging.getLogger("teacher.wrapper.preferences")


class _StoppedError(Exception):
    """Aborts a fit when the trainer is closed."""


class PreferenceTrainer:
    """Submits comparisons, fits the predictor to the labels, and provides copies of it.

    The environment's side calls the public methods; the learning runs in turns, in a separate thread or
    within :meth:`give`.

    Args:
        episodes: watches episode lengths, and holds the settings fitted to the environment.
        source: the environment that segments come from.
        can_draw: True if the environment can be rendered while it is stepped.
        network: makes a custom network of each ensemble member.

    Attributes:
        name: unique name, also across processes.
        episodes: watches episode lengths.
    """

    def __init__(
        self, episodes: EpisodeWatcher, source: Source, can_draw: bool, network: MakeNetwork | None = None
    ) -> None:
        config = episodes.config
        self.name = uuid.uuid4().hex
        self.config = config
        self.source = source
        self._home = Home()
        self.episodes = episodes
        self._parts = contextlib.ExitStack()
        self._given: deque[Segment] = deque(maxlen=_SEGMENTS_QUEUED)
        self._patience: float = _SEGMENTS_WAITED_FOR * config.segment_steps  # steps without a segment
        self._users = self._ever = 0  # wrappers, now and ever
        self._failure: BaseException | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        self.clips = ClipSource(config, source, can_draw)
        with contextlib.ExitStack() as parts:
            self._turns = LearningTurns(config, source, self.clips, network, parts)
            self._parts = parts.pop_all()
        note_open(self)
        self._thread: threading.Thread | None = None
        if config.background and (config.collect_prefs or config.train_reward):
            self._thread = threading.Thread(target=self._work, name="preference-trainer", daemon=True)
            self._thread.start()

    @property
    def learning(self) -> PreferenceLearning[Ledger]:
        """The learning state: ledger, pool, dataset, collector and predictor."""
        return self._turns.learning

    @property
    def predictor(self) -> RewardPredictor | None:
        """Current copy of the predictor; None before the first."""
        return self._turns.predictor

    @property
    def training_steps(self) -> int:
        """Epochs over all preferences so far."""
        return self._turns.training_steps

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self._turns.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._turns.steps = steps

    # For the environment's side.

    def join(self) -> int:
        """Register a wrapper that uses this trainer, and return its number."""
        self._users += 1
        self._ever += 1
        return self._ever - 1

    def leave(self) -> None:
        """Remove a wrapper; removing the last one closes the trainer."""
        self._users -= 1
        if self._users == 0:
            note_closed(self)
            self.close()

    @property
    def pool(self) -> SegmentPool:
        """The newest segments, from which comparisons are sampled."""
        return self.learning.pool

    def transform(self, observation: Any) -> Any:
        """Return an observation after ``obs_transform_func``."""
        function = self.config.obs_transform_func
        return observation if function is None else function(observation)

    @property
    def address(self) -> str:
        """Address where people label; empty if nobody does."""
        collector = self.learning.collector
        return collector.experiment.invite_url if isinstance(collector, HumanCollector) else ""

    def answer(self, count: int | None) -> int:
        """Ask in this notebook about waiting pairs and return the number of labels.

        Raises:
            ConfigError: ``people`` is not ``"notebook"``.
        """
        collector = self.learning.collector
        if not isinstance(collector, PromptCollector) or self.config.people != "notebook":
            raise ConfigError('answer() needs a wrapper with synthetic_prefs=False, people="notebook"')
        return collector.answer(count)

    def give(self, segments: Sequence[Segment]) -> None:
        """Pass new segments to the trainer, without waiting; with ``background=False``, learn from them here.

        Raises:
            BackgroundError: asking or learning in the background failed.
            ConfigError: another process made this trainer.
        """
        self._home.require()
        if segments:
            self._patience = math.inf
        elif self.steps >= self._patience:
            self._patience *= 10
            _preferences_log.warning(
                "no segment of %s in %s: episodes are shorter, or collection is stopped",
                pluralize(self.config.segment_steps, "step"),
                pluralize(self.steps, "step"),
            )
        self._given.extend(segments)
        if self._thread is not None:
            self.check()
            if segments:
                self._wake.set()
        elif segments or self._turns.left or self._turns.incomplete:
            while self._turn():
                pass

    def check(self) -> None:
        """Raise :class:`BackgroundError` if the thread has failed."""
        if self._failure is not None:
            error = self._failure
            told = str(error) if isinstance(error, TeacherError) else describe_exception(error)
            raise BackgroundError(f"asking and learning in the background failed: {told}") from error

    @property
    def wants_frames(self) -> bool:
        """True if frames of the current steps are to be captured."""
        return self._turns.pacing.wanting and self.clips.mode == "pictures"

    @property
    def answers(self) -> int:
        """Number of preferences to learn from."""
        return len(self.learning.dataset)

    def save_preferences(self) -> Path:
        """Write all preferences by :func:`~teacher.datasets.preference_files.save_preferences`.

        If all labels are due and the thread is still asking for the last ones, wait for them.
        """
        if self._thread is not None and self._turns.incomplete:
            self._wake.set()
            if not self._turns.complete.wait(_LAST_ANSWERS_SECONDS):
                _preferences_log.warning(
                    "saving without the last labels, which did not arrive within %.0f s; save again later",
                    _LAST_ANSWERS_SECONDS,
                )
        return self._turns.save_preferences()

    def save_predictor(self) -> Path:
        """Write the current predictor and return the file's path.

        Raises:
            DataError: there is no predictor yet.
        """
        return self._turns.save_predictor()

    def close(self) -> None:
        """Stop asking and learning; comparisons and labels stay in ``log_dir``.

        Raises:
            BackgroundError: the thread failed, and this was not raised before.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():  # it keeps its resources and ends with the process
                _log.warning("learning did not stop within %.0f s; leaving it behind", _CLOSE_SECONDS)
                return
        with self._parts:
            if self._thread is not None and self._turns.incomplete and self._failure is None:
                self._turns.take(self._given_now())
                self._turns.ask()
            self._turns.save_unsaved()
        self.check()

    # The following methods run in the thread, if there is one.

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                if not self._turn():
                    self._wake.wait(_IDLE_SECONDS)
        except _StoppedError:
            pass
        except BaseException as error:
            self._failure = error
            self._turns.complete.set()  # so that nothing waits for it forever

    def _turn(self) -> bool:
        """Run one turn, and return whether training steps are left."""
        return self._turns.turn(self._given_now(), self._check_stop)

    def _given_now(self) -> list[Segment]:
        """Return the segments queued at the call, as a fast environment keeps adding more."""
        return [self._given.popleft() for _ in range(len(self._given))]

    def _check_stop(self, updates: int) -> None:
        if self._stop.is_set():
            raise _StoppedError
