"""Learning from preferences in the background, while another program steps the environment.

Learning runs in a thread or, for reproducible runs, inside ``step``. The thread that steps the environment
passes segments through a queue and uses an immutable copy of the predictor, so neither thread waits for the
other.
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

import numpy as np

from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import (
    BackgroundError,
    ConfigError,
    EnvironmentUnsuitableError,
    TeacherError,
    describe_exception,
    pluralize,
    short_repr,
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

_SEGMENTS_QUEUED = 1000  # if more arrive before they are processed, the oldest are dropped
_SEGMENTS_WAITED_FOR = 50  # warn after this many segment lengths without a segment
_IDLE_SECONDS = 0.1
_CLOSE_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 60.0  # longer than a fit, which delays the last labels

_log = logging.getLogger("teacher.wrapper")
_preferences_log = logging.getLogger("teacher.wrapper.preferences")


class _StoppedError(Exception):
    """Raised inside a fit to abort it when the trainer is closed."""


class PreferenceTrainer:
    """Submits comparisons, fits the predictor to the labels, and publishes copies of the predictor.

    Call the public methods only from the thread that steps the environment. Learning proceeds in short turns,
    which run in a background thread or, if ``background`` is False, inside calls to :meth:`give`.

    Args:
        episodes: checks episode lengths; its ``config`` must have ``segment_length`` set.
        source: properties of the environment that segments are recorded from.
        can_draw: True if the environment can render images while it is stepped.
        network: makes a custom network for each ensemble member; None for the default networks.

    Attributes:
        name: random name that is unique across processes.
        episodes: checks episode lengths.
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
        self._patience: float = _SEGMENTS_WAITED_FOR * config.segment_steps  # steps until a warning
        self._users = self._ever = 0  # number of wrappers using this trainer, now and ever
        self._failure: BaseException | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        self._ending = threading.Lock()  # guards the next two, by which one thread closes the files
        self._has_ended = self._closes_late = False
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
    def learning(self) -> PreferenceLearning:
        """Learning state: ledger, segment pool, dataset, label collector and predictor."""
        return self._turns.learning

    @property
    def predictor(self) -> RewardPredictor | None:
        """Copy of the predictor that currently computes rewards; None until the first one is published."""
        return self._turns.predictor

    @property
    def training_steps(self) -> int:
        """Number of completed training steps; a training step is one epoch over all preferences."""
        return self._turns.training_steps

    @property
    def steps(self) -> int:
        """Number of environment steps taken in all wrappers that use this trainer."""
        return self._turns.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._turns.steps = steps

    # The methods below are called by the thread that steps the environment.

    def join(self) -> int:
        """Register a wrapper that uses this trainer, and return its zero-based index."""
        self._users += 1
        self._ever += 1
        return self._ever - 1

    def leave(self) -> None:
        """Unregister a wrapper; the last one to leave closes the trainer."""
        self._users -= 1
        if self._users == 0:
            note_closed(self)
            self.close()

    @property
    def pool(self) -> SegmentPool:
        """The newest segments, from which comparisons are sampled."""
        return self.learning.pool

    def transform(self, observation: Any) -> Any:
        """Apply ``obs_transform_func``, if there is one, to an observation, and return an array.

        Raises:
            EnvironmentUnsuitableError: the observation does not have the shape that the environment declares.
        """
        function, space = self.config.obs_transform_func, self.source.observation_space
        given = observation if function is None else function(observation)
        try:
            array = np.asarray(given, space.dtype)
        except (TypeError, ValueError):
            array = None
        if array is None or array.shape != space.shape:
            raise EnvironmentUnsuitableError(
                f"{self.source.env_id} returned the observation {short_repr(given)}; expected an array of "
                f"shape {space.shape} and dtype {space.dtype}; fix the environment"
            )
        return array

    @property
    def address(self) -> str:
        """URL of the labeling page; empty if labels don't come from the site."""
        collector = self.learning.collector
        return collector.experiment.invite_url if isinstance(collector, HumanCollector) else ""

    def answer(self, count: int | None) -> int:
        """Ask the notebook user to label up to ``count`` waiting pairs; return the number labeled.

        Args:
            count: maximum number of pairs; None for all waiting pairs.

        Raises:
            ConfigError: ``people`` is not ``"notebook"``.
        """
        collector = self.learning.collector
        if not isinstance(collector, PromptCollector) or self.config.people != "notebook":
            raise ConfigError('answer() needs a wrapper with synthetic_prefs=False and people="notebook"')
        return collector.answer(count)

    def give(self, segments: Sequence[Segment]) -> None:
        """Queue new segments for the learning thread; with ``background=False``, learn from them now.

        Raises:
            BackgroundError: label collection or training has failed in the background thread.
            ConfigError: this is not the process that made the trainer.
        """
        self._home.require()
        if segments:
            self._patience = math.inf
        elif self.steps >= self._patience:
            self._patience *= 10
            _preferences_log.warning(
                "no segment of %s was recorded in %s: either episodes are too short (lower segment_length) "
                "or segment collection is stopped (call start_segment_collection())",
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
        """Raise :class:`BackgroundError` if the background thread has failed."""
        if self._failure is not None:
            error = self._failure
            reason = str(error) if isinstance(error, TeacherError) else describe_exception(error)
            raise BackgroundError(f"background training of the reward predictor failed: {reason}") from error

    @property
    def wants_frames(self) -> bool:
        """True if frames should be captured now, because due comparisons are waiting for them."""
        return self._turns.pacing.wanting and self.clips.mode == "pictures"

    @property
    def answers(self) -> int:
        """Number of preferences to learn from."""
        return len(self.learning.dataset)

    def save_preferences(self) -> Path:
        """Write all preferences to a file in ``log_dir`` and return its path.

        If all labels are due but the thread has not received the last ones, wait for them for up to a minute.
        """
        if self._thread is not None and self._turns.incomplete:
            self._wake.set()
            if not self._turns.complete.wait(_LAST_ANSWERS_SECONDS):
                _preferences_log.warning(
                    "saving without the last labels, which did not arrive within %.0f s; call save_prefs() "
                    "again later",
                    _LAST_ANSWERS_SECONDS,
                )
        return self._turns.save_preferences()

    def save_predictor(self) -> Path:
        """Save the current predictor as a checkpoint in ``log_dir`` and return the file's path.

        Raises:
            DataError: there is no predictor yet.
        """
        return self._turns.save_predictor()

    def close(self) -> None:
        """Stop training, and stop submitting comparisons. Labels stay in ``log_dir``.

        Raises:
            BackgroundError: the background thread has failed.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            with self._ending:
                self._closes_late = not self._has_ended
            if self._closes_late:
                _log.warning(
                    "the learning thread did not stop within %.0f s; it closes its files when it stops",
                    _CLOSE_SECONDS,
                )
                return
        with self._parts:
            if self._thread is not None and self._turns.incomplete and self._failure is None:
                self._turns.take(self._given_now())
                self._turns.ask()
            self._turns.save_unsaved()
        self.check()

    # The methods below run in the background thread, if there is one.

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
            self._turns.complete.set()  # no more labels will arrive, so nothing should wait for them
        with self._ending:
            self._has_ended = True
        if self._closes_late:
            self._close_late()

    def _close_late(self) -> None:
        try:
            with self._parts:
                self._turns.save_unsaved()
            self.check()
        except Exception as error:
            _log.error("the learning thread failed: %s", error)

    def _turn(self) -> bool:
        """Run one turn of learning; return True if training steps are left."""
        return self._turns.turn(self._given_now(), self._check_stop)

    def _given_now(self) -> list[Segment]:
        """Drain the segment queue and return its contents.

        Segments added during the call may be left for the next one.
        """
        return [self._given.popleft() for _ in range(len(self._given))]

    def _check_stop(self, updates: int) -> None:
        if self._stop.is_set():
            raise _StoppedError
