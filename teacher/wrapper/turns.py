"""Turns of background learning: add segments, submit comparisons, receive labels, fit, publish, save."""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.segments import Segment
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.errors import ConfigError, DataError, pluralize
from teacher.files import locked_folder
from teacher.reward.modules import MakeNetwork
from teacher.reward.predictor import RewardPredictor
from teacher.wrapper.builder import (
    CHECKPOINTS_NAME,
    PREFERENCES_NAME,
    checkpoints,
    collector_of,
    first_predictors,
    new_predictor,
    start_learning,
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
    """Learns from preferences in short turns, run in a thread or within the wrapper's ``step``.

    Args:
        config: settings; ``segment_length`` must be set.
        source: properties of the environment that segments are recorded from.
        clips: renders clips of segments.
        network: makes a custom network for each ensemble member; None for the default networks.
        parts: ``ExitStack`` that closes the files and objects opened here.

    Attributes:
        learning: submits comparisons, receives labels and fits the predictor.
        predictor: published copy of the predictor, never modified; None until the first one is published.
        training_steps: number of completed training steps (epochs over all preferences).
        steps: number of environment steps taken.
        left: remaining training steps of the current fit.
        complete: ``threading.Event`` that is set once all labels are due, requested and received, or when
            background learning fails.
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
        self._published = self._saved = 0  # training steps of the published and of the saved predictor
        self._warn_once = WarnOnce()
        self._lock = threading.Lock()  # guards the dataset and the files
        _lock_folder(config.logs, parts)
        ledger = parts.enter_context(contextlib.closing(Ledger(config.logs / LEDGER_NAME)))
        self.predictor, predictor = first_predictors(config, source, network)
        self.learning = start_learning(config, source, ledger, predictor)
        parts.callback(clips.close)
        # A scripted teacher derives UUIDs from the seed; they must differ from those of loaded preferences.
        seed = config.seed + (self.learning.earlier << 32)
        self.learning.collector = collector_of(config, source, clips, ledger, parts, seed)
        self.pacing = QueryPacing(config, self.learning, clips)
        self._writer = parts.enter_context(
            contextlib.closing(SummaryWriter(str(config.logs / "tensorboard")))
        )

    def turn(self, segments: Sequence[Segment], check_stop: Callable[[int], None]) -> bool:
        """Add segments, submit comparisons, and train briefly; return True if training steps are left.

        Args:
            segments: new segments.
            check_stop: called after each update of a fit with the number of updates so far; may raise an
                exception to abort the fit.
        """
        self.take(segments)
        if self._config.collect_prefs:
            self.ask()
        return self._config.train_reward and self._learn(check_stop)

    def take(self, segments: Sequence[Segment]) -> None:
        """Add segments to the pool, and update the predictor's running normalization statistics, if any."""
        self.pacing.add(segments)
        if self.learning.predictor.follows:
            for segment in segments:
                self.learning.predictor.follow(segment)

    def ask(self) -> None:
        """Submit the comparisons that are due, then receive labels, even if submitting fails."""
        steps = self.steps  # copied, because the environment keeps stepping
        try:
            self.pacing.ask(steps, choose=self.predictor is not None)
        finally:
            with self._lock:
                received = self.learning.receive()
        if received.only_cant_tell:
            warning = received.warning(self.learning.collector.status)
            self._warn_once(_preferences_log, "can't tell", warning)
        if self.pacing.over(steps):
            self.complete.set()

    @property
    def incomplete(self) -> bool:
        """True if all labels are due but some have not been requested or received yet."""
        return self.pacing.over(self.steps) and not self.complete.is_set()

    def _learn(self, check_stop: Callable[[int], None]) -> bool:
        """Run some training steps if there are new labels; return True if steps are left."""
        if self.left == 0:
            if len(self.learning.dataset) < self._config.n_initial_prefs:
                return False
            if self.training_steps == 0:
                self.left = self._config.n_initial_training_steps
            elif self.learning.stale:
                self.left = self.learning.predictor.config.epochs
            else:
                return False
        # A fit of linear models ends at the optimum, so repeating it would change nothing.
        is_linear = self.learning.predictor.model == "linear"
        count = self.left if is_linear else min(self.left, self._config.validation_interval)
        report = self.learning.fit(max_epochs=count, progress=check_stop)
        for about, problem in report.problems("reward=RewardConfig(learning_rate=...)").items():
            self._warn_once(_predictor_log, about, problem)
        if report.choice:
            _predictor_log.info(report.choice)
        before, self.training_steps = self.training_steps, self.training_steps + count
        self.left -= count
        self._report(report.scalars)
        interval = self._config.reward_predictor_ckpt_interval
        if self.training_steps // interval > before // interval:
            self._save(self.learning.predictor, self.training_steps)
        self._publish()
        return self.left > 0

    def _publish(self) -> None:
        """Publish a copy of the trained predictor, if it is time for the first copy or for an update."""
        first = self.training_steps >= self._config.n_initial_training_steps and self.predictor is None
        age = self.training_steps - self._published
        if not first and (self.predictor is None or age < self._config.reward_predictor_refresh_interval):
            return
        copy = new_predictor(self._config, self._source, self._network, self.learning.predictor.config)
        copy.load_state_dict(self.learning.predictor.state_dict())
        copy.env_id = self.learning.predictor.env_id
        self.predictor, self._published = copy, self.training_steps
        _log.info("now predicting rewards with the predictor from training step %d", self.training_steps)

    def _report(self, values: dict[str, float]) -> None:
        values = {**values, "labels/answered": len(self.learning.dataset)}
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, self.steps)
        self.learning.collector.report(values, self.steps, None)
        _predictor_log.info(
            "training step %d on %s: loss %.3f, held-out loss %.3f, accuracy %.2f",
            self.training_steps,
            pluralize(len(self.learning.dataset), "label"),
            values["predictor/loss"],
            values["predictor/validation_loss"],
            values["predictor/accuracy"],
        )

    def save_preferences(self) -> Path:
        """Write all preferences to ``log_dir`` and return the file's path."""
        path, spaces = self._config.logs / PREFERENCES_NAME, self._source
        with self._lock:
            save_preferences(path, self.learning.dataset, spaces.observation_space, spaces.action_space)
        return path

    def save_predictor(self) -> Path:
        """Save the published predictor as a checkpoint and return the file's path.

        Raises:
            DataError: there is no predictor yet.
        """
        if self.predictor is None:
            raise DataError(
                f"there is no reward predictor to save yet: its training starts after "
                f"{self._config.n_initial_prefs} labels, but only {len(self.learning.dataset)} have "
                "arrived; try again later"
            )
        return self._save(self.predictor, self._published)

    def save_unsaved(self) -> None:
        """Write the published predictor if it is newer than the last one saved."""
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
