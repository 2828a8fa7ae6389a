"""What goes on beside an environment that is stepped elsewhere: asking, taking in answers, learning.

One thread does it (or ``step`` itself, where a run is to be repeated). The environment's side gives it
segments through a queue, and takes from it a predictor that is never changed afterwards, so that neither
waits for the other.
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

from torch.utils.tensorboard import SummaryWriter

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.errors import (
    BackgroundError,
    ConfigError,
    DataError,
    TeacherError,
    describe_exception,
    pluralize,
)
from teacher.files import locked_folder
from teacher.labeling.human import HumanCollector
from teacher.queries.learning import PreferenceLearning
from teacher.queries.messages import only_cant_tell
from teacher.reward.modules import MakeNetwork
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import SETTLED
from teacher.wrapper.builder import (
    CHECKPOINTS_NAME,
    PREFERENCES_NAME,
    checkpoints,
    collector_of,
    first_predictors,
    first_preferences,
    keep_last,
    new_predictor,
    schedule_of,
)
from teacher.wrapper.clips import ClipSource
from teacher.wrapper.episode_check import EpisodeWatcher
from teacher.wrapper.once import WarnOnce
from teacher.wrapper.pacing import QueryPacing
from teacher.wrapper.processes import Home, note_closed, note_open
from teacher.wrapper.prompt import PromptCollector
from teacher.wrapper.recording import Source

_CHECKPOINTS_KEPT = 5
_SEGMENTS_QUEUED = 1000  # newest, where they come faster than they are taken
_SEGMENTS_WAITED_FOR = 50
_IDLE_SECONDS = 0.1
_CLOSE_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 60.0  # more than the fit takes that they wait for

_log = logging.getLogger("teacher.wrapper")
_predictor_log = logging.getLogger("teacher.wrapper.predictor")
_preferences_log = logging.getLogger("teacher.wrapper.preferences")


class _StoppedError(Exception):
    """Ends a fit that nobody waits for any more."""


class PreferenceTrainer:
    """Asks about segments, learns from the answers, and offers the predictor that came of it.

    :meth:`give`, :attr:`predictor` and all below it are for the environment's side; the rest is done in
    turns, by a thread of its own or by :meth:`give`.

    Args:
        episodes: watches them, and holds the settings that were fitted to the environment.
        source: where segments come from.
        can_draw: whether the environment can draw itself while it is stepped.
        network: makes each member of the predictor, instead of the project's networks.

    Attributes:
        name: no other has it, in any process.
        predictor: what rewards are to be predicted with now; None where there is none yet.
        training_steps: passes through all answers that were made so far.
        steps: environment steps so far.
        episodes: watches how long they are.
    """

    def __init__(
        self, episodes: EpisodeWatcher, source: Source, can_draw: bool, network: MakeNetwork | None = None
    ) -> None:
        config = episodes.config
        self.name = uuid.uuid4().hex
        self.config = config
        self.source = source
        self._home = Home()
        self._network = network
        self.predictor: RewardPredictor | None = None
        self.training_steps = self.steps = 0
        self.episodes = episodes
        self._warn_once = WarnOnce()
        self._parts = contextlib.ExitStack()
        self._lock = threading.Lock()  # for the dataset and the files that are written of it
        self._given: deque[Segment] = deque(maxlen=_SEGMENTS_QUEUED)
        self._left = 0  # training steps that are to be made now
        self._published = self._saved = 0  # training steps of the predictor in use, and of that on the disk
        self._patience: float = _SEGMENTS_WAITED_FOR * config.segment_steps  # steps without a segment
        self._users = self._ever = 0  # wrappers, now and ever
        self._failure: BaseException | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        self._complete = threading.Event()  # when all was due, it was asked for and taken in
        self.clips = ClipSource(config, source, can_draw)
        with contextlib.ExitStack() as parts:
            self._open(parts)
            self._parts = parts.pop_all()
        note_open(self)
        self._thread: threading.Thread | None = None
        if config.background and (config.collect_prefs or config.train_reward):
            self._thread = threading.Thread(target=self._work, name="preference-trainer", daemon=True)
            self._thread.start()

    def _open(self, parts: contextlib.ExitStack) -> None:
        config, logs = self.config, self.config.logs
        self._hold_folder(parts)
        ledger = parts.enter_context(contextlib.closing(Ledger(logs / LEDGER_NAME)))
        dataset, loaded = first_preferences(config, self.source, ledger)
        if len(dataset):
            _preferences_log.info("beginning with %s", pluralize(len(dataset), "preference"))
        self.predictor, predictor = first_predictors(config, self.source, self._network)
        keep_last(dataset, config, predictor.config.max_preferences)
        parts.callback(self.clips.close)
        # A function's UUIDs follow from the seed, and may not be those of preferences from another folder.
        seed = config.seed + (loaded << 32)
        collector = collector_of(config, self.source, self.clips, ledger, parts, seed)
        self.learning = PreferenceLearning(
            ledger,
            collector,
            dataset,
            SegmentPool(config.segment_steps, config.max_pref_interface_segs, config.seed),
            schedule_of(config, loaded + ledger.asked()),
            predictor,
            queries=config.queries,
            earlier=loaded,
            unfitted=len(dataset),
        )
        self.pacing = QueryPacing(config, self.learning, self.clips)
        self._writer = parts.enter_context(contextlib.closing(SummaryWriter(str(logs / "tensorboard"))))

    def _hold_folder(self, parts: contextlib.ExitStack) -> None:
        logs = self.config.logs
        try:
            parts.enter_context(locked_folder(logs))
        except BlockingIOError as error:
            raise ConfigError(
                f"log_dir: {logs} is in use by another wrapper; close that one, choose another log_dir, or, "
                "for several environments of one agent, use first.beside(env)"
            ) from error
        except OSError as error:
            raise ConfigError(f"log_dir: cannot make {logs}: {error.strerror}") from error

    # For the environment's side.

    def join(self) -> int:
        """One more wrapper uses this; its number."""
        self._users += 1
        self._ever += 1
        return self._ever - 1

    def leave(self) -> None:
        """One wrapper less; :meth:`close` with the last."""
        self._users -= 1
        if self._users == 0:
            note_closed(self)
            self.close()

    @property
    def pool(self) -> SegmentPool:
        """The newest segments, of which questions are made."""
        return self.learning.pool

    def transform(self, observation: Any) -> Any:
        """An observation as segments hold it."""
        function = self.config.obs_transform_func
        return observation if function is None else function(observation)

    @property
    def address(self) -> str:
        """Where people label; empty where nobody does."""
        collector = self.learning.collector
        return collector.experiment.invite_url if isinstance(collector, HumanCollector) else ""

    def answer(self, count: int | None) -> int:
        """Ask here about pairs that wait; how many were answered.

        Raises:
            ConfigError: answers are given elsewhere.
        """
        collector = self.learning.collector
        if not isinstance(collector, PromptCollector) or self.config.people != "notebook":
            raise ConfigError('answers are not given here; pass synthetic_prefs=False, people="notebook"')
        return collector.answer(count)

    def give(self, segments: Sequence[Segment]) -> None:
        """Offer new segments; never waits, except where all is done here.

        Raises:
            BackgroundError: something failed beside.
            ConfigError: this is another process than that it was made in.
        """
        self._home.require()
        if segments:
            self._patience = math.inf
        elif self.steps >= self._patience:
            self._patience *= 10
            _preferences_log.warning(
                "no segment of %s in %s: episodes are shorter, or nothing is collected",
                pluralize(self.config.segment_steps, "step"),
                pluralize(self.steps, "step"),
            )
        self._given.extend(segments)
        if self._thread is not None:
            self.check()
            if segments:
                self._wake.set()
        elif segments or self._left or self._incomplete:
            while self._turn():
                pass

    def check(self) -> None:
        """Raise :class:`BackgroundError` where the thread has failed."""
        if self._failure is not None:
            error = self._failure
            told = str(error) if isinstance(error, TeacherError) else describe_exception(error)
            raise BackgroundError(f"asking and learning in the background failed: {told}") from error

    @property
    def wants_frames(self) -> bool:
        """Whether pictures are to be taken of the steps that are made now."""
        return self.pacing.wanting and self.clips.mode == "pictures"

    @property
    def answers(self) -> int:
        """Preferences there are to learn from."""
        return len(self.learning.dataset)

    def save_preferences(self) -> Path:
        """Write all preferences there are; see :func:`~teacher.datasets.preference_files.save_preferences`.

        Where all are due and the last are still asked for beside, it waits for these.
        """
        if self._thread is not None and self._incomplete:
            self._wake.set()
            if not self._complete.wait(_LAST_ANSWERS_SECONDS):
                _preferences_log.warning(
                    "saving before the last questions are answered, for which %.0f s did not suffice; save "
                    "again later",
                    _LAST_ANSWERS_SECONDS,
                )
        path = self.config.logs / PREFERENCES_NAME
        with self._lock:
            save_preferences(
                path, self.learning.dataset, self.source.observation_space, self.source.action_space
            )
        return path

    def save_predictor(self) -> Path:
        """Write the predictor that is used now.

        Raises:
            DataError: there is none yet.
        """
        if self.predictor is None:
            raise DataError(
                f"there is no reward predictor yet, only {self.answers} of {self.config.n_initial_prefs} "
                "answers to train one; save it later"
            )
        return self._save(self.predictor, self._published)

    def close(self) -> None:
        """Stop; what was asked and answered stays in ``log_dir``.

        Raises:
            BackgroundError: something failed beside and was not reported yet.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():  # its parts are not taken away from it; it ends with the process
                _log.warning("learning did not stop within %.0f s; leaving it behind", _CLOSE_SECONDS)
                return
        with self._parts:
            if self._thread is not None and self._incomplete and self._failure is None:
                self._take_segments()
                self._ask()
            if self._published > self._saved and self.predictor is not None:
                self._save(self.predictor, self._published)
        self.check()

    # What follows runs in the thread, where there is one.

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
            self._complete.set()  # nobody waits for it in vain

    def _turn(self) -> bool:
        """Take in, ask, and learn a little; whether there is more to learn at once."""
        self._take_segments()
        if self.config.collect_prefs:
            self._ask()
        return self.config.train_reward and self._learn()

    def _take_segments(self) -> None:
        """Those that are here now; a fast environment brings others meanwhile, without an end."""
        segments = [self._given.popleft() for _ in range(len(self._given))]
        self.pacing.add(segments)
        if self.learning.predictor.follows:
            for segment in segments:
                self.learning.predictor.follow(segment)

    def _ask(self) -> None:
        """Submit what is due, and take in what was answered, also where asking fails."""
        steps = self.steps  # as they are now: more are made meanwhile
        try:
            self.pacing.ask(steps, choose=self.predictor is not None)
        finally:
            with self._lock:
                received = self.learning.receive()
        if received.only_cant_tell:
            told = only_cant_tell(received, self.learning.collector.status)
            self._warn_once(_preferences_log, "can't tell", told)
        if self.pacing.over(steps):
            self._complete.set()

    @property
    def _incomplete(self) -> bool:
        """Whether all answers are due, and the last of them not asked for."""
        return self.pacing.over(self.steps) and not self._complete.is_set()

    def _learn(self) -> bool:
        """Make some training steps, where there is something to learn from."""
        if self._left == 0:
            if len(self.learning.dataset) < self.config.n_initial_prefs:
                return False
            if self.training_steps == 0:
                self._left = self.config.n_initial_training_steps
            elif self.learning.stale:
                self._left = self.learning.predictor.config.epochs
            else:
                return False
        count = min(self._left, self.config.validation_interval)
        report = self.learning.fit(max_epochs=count, progress=self._check_stop)
        for about, problem in report.problems("reward=RewardConfig(learning_rate=...)").items():
            self._warn_once(_predictor_log, about, problem)
        if report.settled:
            _predictor_log.info(SETTLED)
        before, self.training_steps = self.training_steps, self.training_steps + count
        self._left -= count
        self._report(report.scalars)
        interval = self.config.reward_predictor_ckpt_interval
        if self.training_steps // interval > before // interval:
            self._save(self.learning.predictor, self.training_steps)
        self._publish()
        return self._left > 0

    def _check_stop(self, updates: int) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _publish(self) -> None:
        """Let a copy of the predictor be used, where the one in use is old enough."""
        first = self.training_steps >= self.config.n_initial_training_steps and self.predictor is None
        age = self.training_steps - self._published
        if not first and (self.predictor is None or age < self.config.reward_predictor_refresh_interval):
            return
        copy = new_predictor(self.config, self.source, self._network, self.learning.predictor.config)
        copy.load_state_dict(self.learning.predictor.state_dict())
        copy.env_id = self.learning.predictor.env_id
        self.predictor, self._published = copy, self.training_steps
        _log.info("rewards are predicted as of training step %d", self.training_steps)

    def _report(self, values: dict[str, float]) -> None:
        values = {**values, "labels/answered": len(self.learning.dataset)}
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, self.steps)
        self.learning.collector.report(values, self.steps, None)
        _predictor_log.info(
            "training step %d on %s: loss %.3f, held out %.3f, accuracy %.2f",
            self.training_steps,
            pluralize(len(self.learning.dataset), "answer"),
            values["predictor/loss"],
            values["predictor/validation_loss"],
            values["predictor/accuracy"],
        )

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
