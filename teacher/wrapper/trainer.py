"""Learning from preferences in the background, while another program steps the environment.

Learning proceeds in short turns: add segments, submit comparisons, receive labels, fit, publish, save. They
run in a thread or, for reproducible runs, inside ``step``. The thread that steps the environment passes
segments through a queue and uses an immutable copy of the predictor, so neither thread waits for the other.
"""

import contextlib
import logging
import math
import os
import threading
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.segments import Segment
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.errors import (
    BackgroundError,
    ConfigError,
    DataError,
    EnvironmentUnsuitableError,
    TeacherError,
    Topics,
    describe_exception,
    pluralize,
    short_repr,
)
from teacher.files import locked_folder
from teacher.reward.modules import MakeNetwork
from teacher.reward.predictor import RewardPredictor
from teacher.wrapper.builder import (
    CHECKPOINTS_NAME,
    checkpoints,
    first_predictors,
    new_predictor,
    start_learning,
)
from teacher.wrapper.episode_check import EpisodeWatcher
from teacher.wrapper.labels import ClipSource, collector_of
from teacher.wrapper.pacing import QueryPacing
from teacher.wrapper.recording import Source
from teacher.wrapper.settings import PREFERENCES_NAME

_SEGMENTS_QUEUED = 1000  # if more arrive before they are processed, the oldest are dropped
_SEGMENTS_WAITED_FOR = 50  # warn after this many segment lengths without a segment
_IDLE_SECONDS = 0.1
_CLOSE_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 60.0  # longer than a fit, which delays the last labels
_CHECKPOINTS_KEPT = 5

_log = logging.getLogger("teacher.wrapper")
_predictor_log = logging.getLogger("teacher.wrapper.predictor")
_preferences_log = logging.getLogger("teacher.wrapper.preferences")


ONE_PREDICTOR = (
    "step all environments of an agent in one process, for example with DummyVecEnv([lambda: first, lambda: "
    "first.beside(env)]), or wrap a whole Gymnasium AsyncVectorEnv in HumanPreferencesVectorWrapper"
)
"""Advice on how to make environments share a predictor, quoted in error messages."""
OPEN: "WeakValueDictionary[str, PreferenceTrainer]" = WeakValueDictionary()
"""This process's open trainers, by name."""


class _StoppedError(Exception):
    """Raised inside a fit to abort it when the trainer is closed."""


class PreferenceTrainer:
    """Submits comparisons, fits the predictor to the labels, and publishes copies of the predictor.

    Call the public methods only from the thread that steps the environment. Turns of learning run in a
    background thread or, if ``background`` is False, inside calls to :meth:`give`.

    Args:
        episodes: checks episode lengths; its ``config`` must have ``segment_length`` set.
        can_draw: True if the environment can render images while it is stepped.
        network: makes a custom network for each ensemble member; None for the default networks.

    Attributes:
        name: random name that is unique across processes.
        predictor: published copy of the predictor, never modified; None until the first one is published.
        training_steps: number of completed training steps (epochs over all preferences).
        steps: number of environment steps taken in all wrappers that use this trainer.
    """

    def __init__(
        self, episodes: EpisodeWatcher, source: Source, can_draw: bool, network: MakeNetwork | None = None
    ) -> None:
        self.name = uuid.uuid4().hex
        self.config = config = episodes.config
        self.episodes, self.source, self._network = episodes, source, network
        self._process = os.getpid()
        self._given: deque[Segment] = deque(maxlen=_SEGMENTS_QUEUED)
        self._patience: float = _SEGMENTS_WAITED_FOR * config.segment_steps  # steps until a warning
        self._users = self._ever = 0  # number of wrappers using this trainer, now and ever
        self.training_steps = self.steps = 0
        self._left = 0  # training steps of the current fit
        self._published = self._saved = 0  # training steps of the published and of the saved predictor
        self._warned = Topics()
        self._failure: BaseException | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        # Set once all labels are due, requested and received, or when background learning fails.
        self._complete = threading.Event()
        self._lock = threading.Lock()  # guards the dataset and the files
        self._ending = threading.Lock()  # guards the next two, by which one thread closes the files
        self._has_ended = self._closes_late = False
        self.clips = ClipSource(config, source, can_draw)
        with contextlib.ExitStack() as parts:
            _lock_folder(config.logs, parts)
            ledger = parts.enter_context(contextlib.closing(Ledger(config.logs / LEDGER_NAME)))
            self.predictor, predictor = first_predictors(config, source, network)
            self.learning = start_learning(config, source, ledger, predictor)
            parts.callback(self.clips.close)
            # A scripted teacher's UUIDs come from the seed; those of loaded preferences must be different.
            seed = config.seed + (self.learning.earlier << 32)
            self.learning.collector = collector_of(config, source, self.clips, ledger, parts, seed)
            writer = SummaryWriter(str(config.logs / "tensorboard"))
            self._writer = parts.enter_context(contextlib.closing(writer))
            self._parts = parts.pop_all()
        self._pacing = QueryPacing(config, self.learning, self.clips.showable)
        others = [str(other.config.logs) for other in OPEN.values() if other.config.train_reward]
        if others and config.train_reward:
            _log.warning(
                "another wrapper in this process, with log_dir %s, trains a separate predictor; if both "
                "environments belong to one agent, make the second wrapper with first.beside(env)",
                others[0],
            )
        OPEN[self.name] = self
        self._thread: threading.Thread | None = None
        if config.background and (config.collect_prefs or config.train_reward):
            self._thread = threading.Thread(target=self._work, name="preference-trainer", daemon=True)
            self._thread.start()

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
            OPEN.pop(self.name, None)
            self.close()

    def transform(self, observation: Any) -> Any:
        """Apply ``obs_transform_func``, if there is one, to an observation, and return an array."""
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

    def give(self, segments: Sequence[Segment]) -> None:
        """Queue new segments for the learning thread; with ``background=False``, learn from them now.

        Raises:
            BackgroundError: label collection or training has failed in the background thread.
        """
        if os.getpid() != self._process:
            raise ConfigError(
                "the wrapper was made in a different process, so it can't collect labels or train here: "
                f"{ONE_PREDICTOR}"
            )
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
        elif segments or self._left or self._is_incomplete:
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
        return self._pacing.wanting and self.clips.mode == "pictures"

    @property
    def answers(self) -> int:
        """Number of answers to learn from."""
        return self.learning.answered

    @property
    def _is_incomplete(self) -> bool:
        """True if all labels are due but some have not been requested or received yet."""
        return self._pacing.over(self.steps) and not self._complete.is_set()

    def save_preferences(self) -> Path:
        """Write all preferences to a file in ``log_dir`` and return its path.

        If all labels are due but the thread has not received the last ones, wait for them for up to a minute.
        """
        if self._thread is not None and self._is_incomplete:
            self._wake.set()
            if not self._complete.wait(_LAST_ANSWERS_SECONDS):
                _preferences_log.warning(
                    "saving without the last labels, which did not arrive within %.0f s; call save_prefs() "
                    "again later",
                    _LAST_ANSWERS_SECONDS,
                )
        path, spaces = self.config.logs / PREFERENCES_NAME, self.source
        with self._lock:
            save_preferences(path, self.learning.dataset, spaces.observation_space, spaces.action_space)
        return path

    def save_predictor(self) -> Path:
        """Save the published predictor as a checkpoint in ``log_dir`` and return the file's path."""
        return self._save(self.published(), self._published)

    def published(self) -> RewardPredictor:
        """Return the published predictor; raise :class:`DataError` if there is none yet."""
        if self.predictor is None:
            raise DataError(
                f"there is no reward predictor yet: its training starts after {self.config.n_initial_prefs} "
                f"labels, but only {self.answers} have arrived; try again later"
            )
        return self.predictor

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
            if self._thread is not None and self._is_incomplete and self._failure is None:
                self._take(self._given_now())
                self._ask()
            self._save_unsaved()
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
            self._complete.set()  # no more labels will arrive, so nothing should wait for them
        with self._ending:
            self._has_ended = True
        if self._closes_late:
            self._close_late()

    def _close_late(self) -> None:
        try:
            with self._parts:
                self._save_unsaved()
            self.check()
        except Exception as error:
            _log.error("the learning thread failed: %s", error)

    def _turn(self) -> bool:
        """Add segments, submit comparisons, and train briefly; return True if training steps are left."""
        self._take(self._given_now())
        if self.config.collect_prefs:
            self._ask()
        return self.config.train_reward and self._learn()

    def _given_now(self) -> list[Segment]:
        return [self._given.popleft() for _ in range(len(self._given))]

    def _check_stop(self, updates: int) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _take(self, segments: Sequence[Segment]) -> None:
        self._pacing.add([segment for segment in segments if self.clips.can_show(segment)])
        if self.learning.predictor.follows:
            for segment in segments:
                self.learning.predictor.follow(segment)

    def _ask(self) -> None:
        """Submit the comparisons that are due, then receive labels, even if submitting fails."""
        steps = self.steps  # copied, because the environment keeps stepping
        try:
            self._pacing.ask(steps, choose=self.predictor is not None)
        finally:
            with self._lock:
                received = self.learning.receive()
        if received.only_cant_tell and self._warned.is_new("can't tell"):
            _preferences_log.warning(received.warning(self.learning.collector.status))
        if self._pacing.over(steps):
            self._complete.set()

    def _learn(self) -> bool:
        """Run some training steps if there are new labels; return True if steps are left."""
        if self._left == 0:
            if self.answers < self.config.n_initial_prefs:
                return False
            if self.training_steps == 0:
                self._left = self.config.n_initial_training_steps
            elif self.learning.stale:
                self._left = self.learning.predictor.config.epochs
            else:
                return False
        # A fit of linear models ends at the optimum, so repeating it would change nothing.
        is_linear = self.learning.predictor.model == "linear"
        count = self._left if is_linear else min(self._left, self.config.validation_interval)
        report = self.learning.fit(max_epochs=count, progress=self._check_stop)
        for about, problem in report.problems("reward=RewardConfig(learning_rate=...)").items():
            if self._warned.is_new(about):
                _predictor_log.warning(problem)
        if report.choice:
            _predictor_log.info(report.choice)
        before, self.training_steps = self.training_steps, self.training_steps + count
        self._left -= count
        self._report(report.scalars)
        interval = self.config.reward_predictor_ckpt_interval
        if self.training_steps // interval > before // interval:
            self._save(self.learning.predictor, self.training_steps)
        self._publish()
        return self._left > 0

    def _publish(self) -> None:
        """Publish a copy of the trained predictor, if it is time for the first copy or for an update."""
        first = self.training_steps >= self.config.n_initial_training_steps and self.predictor is None
        age = self.training_steps - self._published
        if not first and (self.predictor is None or age < self.config.reward_predictor_refresh_interval):
            return
        copy = new_predictor(self.config, self.source, self._network, self.learning.predictor.config)
        copy.load_state_dict(self.learning.predictor.state_dict())
        copy.env_id = self.learning.predictor.env_id
        self.predictor, self._published = copy, self.training_steps
        _log.info("now predicting rewards with the predictor from training step %d", self.training_steps)

    def _report(self, values: dict[str, float]) -> None:
        values = {**values, "labels/answered": self.answers}
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, self.steps)
        self.learning.collector.report(values, self.steps, None)
        self.learning.explain(self.steps)
        _predictor_log.info(
            "training step %d on %s: loss %.3f, held-out loss %.3f, accuracy %.2f",
            self.training_steps,
            pluralize(self.answers, "label"),
            values["predictor/loss"],
            values["predictor/validation_loss"],
            values["predictor/accuracy"],
        )

    def _save_unsaved(self) -> None:
        if self._published > self._saved and self.predictor is not None:
            self._save(self.predictor, self._published)

    def _save(self, predictor: RewardPredictor, training_steps: int) -> Path:
        folder = self.config.logs / CHECKPOINTS_NAME
        folder.mkdir(exist_ok=True)
        path = folder / f"predictor-{training_steps:08d}.npz"
        with self._lock:
            save_predictor(path, predictor, self.source.observation_space, self.source.action_space)
            self._saved = max(self._saved, training_steps)
            for old in checkpoints(folder)[:-_CHECKPOINTS_KEPT]:
                old.unlink()
        return path


def _lock_folder(logs: Path, parts: contextlib.ExitStack) -> None:
    try:
        parts.enter_context(locked_folder(logs))
    except BlockingIOError as error:
        raise ConfigError(
            f"log_dir: {logs} is in use by another wrapper; close that wrapper, choose a different "
            "log_dir, or, if both environments belong to one agent, use first.beside(env)"
        ) from error
    except OSError as error:
        raise ConfigError(f"log_dir: can't create {logs}: {error.strerror}") from error
