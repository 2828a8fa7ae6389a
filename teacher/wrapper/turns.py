"""The turns of learning beside an agent: take in segments, ask, receive, fit, publish, save."""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.errors import ConfigError, DataError, pluralize
from teacher.files import locked_folder
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
from teacher.wrapper.once import WarnOnce
from teacher.wrapper.pacing import QueryPacing
from teacher.wrapper.recording import Source
from teacher.wrapper.settings import WrapperConfig

_CHECKPOINTS_KEPT = 5

_log = logging.getLogger("teacher.wrapper")
_predictor_log = logging.getLogger("teacher.wrapper.predictor")
_preferences_log = logging.getLogger("teacher.wrapper.preferences")


class LearningTurns:
    """Learns from preferences in turns, whichever thread makes them.

    Args:
        config: fitted to the environment.
        source: where segments come from.
        clips: what shows a segment.
        network: makes each member of the predictor, instead of the project's networks.
        parts: closes what is opened here.

    Attributes:
        learning: asks, receives and fits.
        predictor: what rewards are predicted with now, never changed afterwards; None before there is one.
        training_steps: passes through all preferences so far.
        steps: environment steps so far.
        left: training steps still to be made now.
        complete: set when all labels were due, asked for and received.
    """

    def __init__(
        self,
        config: WrapperConfig,
        source: Source,
        clips: ClipSource,
        network: MakeNetwork | None,
        parts: contextlib.ExitStack,
    ) -> None:
        self._config, self._source, self._network = config, source, network
        self.training_steps = self.steps = self.left = 0
        self.complete = threading.Event()
        self._published = self._saved = 0  # training steps of the predictor in use, and of that on the disk
        self._warn_once = WarnOnce()
        self._lock = threading.Lock()  # for the dataset and the files that are written of it
        _hold_folder(config.logs, parts)
        ledger = parts.enter_context(contextlib.closing(Ledger(config.logs / LEDGER_NAME)))
        dataset, loaded = first_preferences(config, source, ledger)
        if len(dataset):
            _preferences_log.info("beginning with %s", pluralize(len(dataset), "preference"))
        self.predictor, predictor = first_predictors(config, source, network)
        keep_last(dataset, config, predictor.config.max_preferences)
        parts.callback(clips.close)
        # A function's UUIDs follow from the seed, and may not be those of preferences from another folder.
        seed = config.seed + (loaded << 32)
        collector = collector_of(config, source, clips, ledger, parts, seed)
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
        self.pacing = QueryPacing(config, self.learning, clips)
        self._writer = parts.enter_context(
            contextlib.closing(SummaryWriter(str(config.logs / "tensorboard")))
        )

    def turn(self, segments: Sequence[Segment], check_stop: Callable[[int], None]) -> bool:
        """Take in segments, ask, and learn a little; returns whether there is more to learn at once.

        Args:
            segments: new ones.
            check_stop: called within a fit with the updates made; what it raises ends the fit.
        """
        self.take(segments)
        if self._config.collect_prefs:
            self.ask()
        return self._config.train_reward and self._learn(check_stop)

    def take(self, segments: Sequence[Segment]) -> None:
        """Take in new segments."""
        self.pacing.add(segments)
        if self.learning.predictor.follows:
            for segment in segments:
                self.learning.predictor.follow(segment)

    def ask(self) -> None:
        """Submit what is due, and receive labels, also where asking fails."""
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
            self.complete.set()

    @property
    def incomplete(self) -> bool:
        """Whether all labels are due, and the last of them not asked for."""
        return self.pacing.over(self.steps) and not self.complete.is_set()

    def _learn(self, check_stop: Callable[[int], None]) -> bool:
        """Make some training steps, where there is something to learn from."""
        if self.left == 0:
            if len(self.learning.dataset) < self._config.n_initial_prefs:
                return False
            if self.training_steps == 0:
                self.left = self._config.n_initial_training_steps
            elif self.learning.stale:
                self.left = self.learning.predictor.config.epochs
            else:
                return False
        count = min(self.left, self._config.validation_interval)
        report = self.learning.fit(max_epochs=count, progress=check_stop)
        for about, problem in report.problems("reward=RewardConfig(learning_rate=...)").items():
            self._warn_once(_predictor_log, about, problem)
        if report.settled:
            _predictor_log.info(SETTLED)
        before, self.training_steps = self.training_steps, self.training_steps + count
        self.left -= count
        self._report(report.scalars)
        interval = self._config.reward_predictor_ckpt_interval
        if self.training_steps // interval > before // interval:
            self._save(self.learning.predictor, self.training_steps)
        self._publish()
        return self.left > 0

    def _publish(self) -> None:
        """Let a copy of the predictor be used, where the one in use is old enough."""
        first = self.training_steps >= self._config.n_initial_training_steps and self.predictor is None
        age = self.training_steps - self._published
        if not first and (self.predictor is None or age < self._config.reward_predictor_refresh_interval):
            return
        copy = new_predictor(self._config, self._source, self._network, self.learning.predictor.config)
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

    def save_preferences(self) -> Path:
        """Write all preferences there are."""
        path, spaces = self._config.logs / PREFERENCES_NAME, self._source
        with self._lock:
            save_preferences(path, self.learning.dataset, spaces.observation_space, spaces.action_space)
        return path

    def save_predictor(self) -> Path:
        """Write the predictor that is used now.

        Raises:
            DataError: there is none yet.
        """
        if self.predictor is None:
            raise DataError(
                f"there is no reward predictor yet, only {len(self.learning.dataset)} of "
                f"{self._config.n_initial_prefs} answers to train one; save it later"
            )
        return self._save(self.predictor, self._published)

    def save_unsaved(self) -> None:
        """Write the predictor that is used now, if it is newer than the last one written."""
        if self._published > self._saved and self.predictor is not None:
            self._save(self.predictor, self._published)

    def _save(self, predictor: RewardPredictor, training_steps: int) -> Path:
        folder = self._config.logs / CHECKPOINTS_NAME
        folder.mkdir(exist_ok=True)
        path = folder / f"predictor-{training_steps:08d}.npz"
        with self._lock:
            save_predictor(path, predictor, self._source.observation_space, self._source.action_space)
            self._saved = max(self._saved, training_steps)
            for old in checkpoints(folder)[:-_CHECKPOINTS_KEPT]:
                old.unlink()
        return path


def _hold_folder(logs: Path, parts: contextlib.ExitStack) -> None:
    try:
        parts.enter_context(locked_folder(logs))
    except BlockingIOError as error:
        raise ConfigError(
            f"log_dir: {logs} is in use by another wrapper; close that one, choose another log_dir, or, "
            "for several environments of one agent, use first.beside(env)"
        ) from error
    except OSError as error:
        raise ConfigError(f"log_dir: cannot make {logs}: {error.strerror}") from error
