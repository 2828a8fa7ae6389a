"""Learning from preferences beside an environment that another program steps.

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

_SEGMENTS_QUEUED = 1000  # newest, where they come faster than they are taken
_SEGMENTS_WAITED_FOR = 50
_IDLE_SECONDS = 0.1
_CLOSE_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 60.0  # more than the fit takes that they wait for

_log = logging.getLogger("teacher.wrapper")
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
        """What asks, receives and fits."""
        return self._turns.learning

    @property
    def predictor(self) -> RewardPredictor | None:
        """What rewards are to be predicted with now; None where there is none yet."""
        return self._turns.predictor

    @property
    def training_steps(self) -> int:
        """Passes through all preferences so far."""
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
        elif segments or self._turns.left or self._turns.incomplete:
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
        return self._turns.pacing.wanting and self.clips.mode == "pictures"

    @property
    def answers(self) -> int:
        """Preferences there are to learn from."""
        return len(self.learning.dataset)

    def save_preferences(self) -> Path:
        """Write all preferences there are; see :func:`~teacher.datasets.preference_files.save_preferences`.

        Where all are due and the last are still asked for beside, it waits for these.
        """
        if self._thread is not None and self._turns.incomplete:
            self._wake.set()
            if not self._turns.complete.wait(_LAST_ANSWERS_SECONDS):
                _preferences_log.warning(
                    "saving before the last questions are answered, for which %.0f s did not suffice; save "
                    "again later",
                    _LAST_ANSWERS_SECONDS,
                )
        return self._turns.save_preferences()

    def save_predictor(self) -> Path:
        """Write the predictor that is used now.

        Raises:
            DataError: there is none yet.
        """
        return self._turns.save_predictor()

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
            if self._thread is not None and self._turns.incomplete and self._failure is None:
                self._turns.take(self._given_now())
                self._turns.ask()
            self._turns.save_unsaved()
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
            self._turns.complete.set()  # nobody waits for it in vain

    def _turn(self) -> bool:
        """Make one turn; returns whether there is more to learn at once."""
        return self._turns.turn(self._given_now(), self._check_stop)

    def _given_now(self) -> list[Segment]:
        """Take the segments that are here now; a fast environment brings others meanwhile, without an end."""
        return [self._given.popleft() for _ in range(len(self._given))]

    def _check_stop(self, updates: int) -> None:
        if self._stop.is_set():
            raise _StoppedError
