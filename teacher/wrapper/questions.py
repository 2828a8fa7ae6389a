"""What is asked about an environment that is stepped elsewhere, and when."""

import contextlib
import logging
import math
import time
from collections.abc import Sequence

from teacher.data.decisions import Phase
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import UndecidedError, counted
from teacher.queries.learner import PreferenceLearner
from teacher.queries.schedules import ExponentialSchedule, LabelSchedule, RateSchedule
from teacher.queries.selection import select_pairs
from teacher.wrapper.beginnings import schedule_of
from teacher.wrapper.clips import Films
from teacher.wrapper.settings import WrapperConfig
from teacher.wrapper.warned import Warnings

_ASKED_AT_ONCE = 10  # pairs
_CANDIDATES = 2  # new segments for each that is asked about, once there is a predictor to choose by
_FEW = "few segments"  # what a warning is about
_LAST_ROUNDS = 20  # of questions in place of those that a teacher could tell nothing about

_log = logging.getLogger("teacher.wrapper.preferences")


class Questions:
    """Asks about new segments while answers are due, and with the last step for all that are missing then.

    Args:
        config: how.
        learner: who is asked, and what was asked before.
        films: what shows a segment.
        loaded: answers there were before the first of the learner's ledger.

    Attributes:
        pool: the newest segments, which may be asked about.
        wanting: whether segments for questions are wanting.
    """

    def __init__(self, config: WrapperConfig, learner: PreferenceLearner, films: Films, loaded: int) -> None:
        self._config, self._learner, self._films, self._loaded = config, learner, films, loaded
        self._schedule, self._not_due = schedule_of(config, self._asked)
        self._last_step = _last_step(self._schedule)
        self._began = time.monotonic()
        self.pool = SegmentPool(config.segment_steps, config.max_pref_interface_segs, config.seed)
        self.wanting = False
        self._unused = 0  # segments that came since the last question, less those in it
        self._warnings = Warnings()

    def add(self, segments: Sequence[Segment]) -> None:
        """Take in new segments, those that can be shown."""
        showable = [segment for segment in segments if self._films.can_show(segment)]
        self.pool.add(showable)
        self._unused = min(self._unused + len(showable), self.pool.capacity)

    def over(self, steps: int) -> bool:
        """Whether all answers are due by now; never where people give them, who would be flooded."""
        config = self._config
        return config.collect_prefs and config.synthetic_prefs and steps >= self._last_step

    def ask(self, steps: int, *, choose: bool) -> None:
        """Submit what is due, of segments that no earlier question took; when all is due, of any.

        Args:
            steps: environment steps so far.
            choose: whether there is a predictor to choose pairs by.
        """
        self._warn_of_few(steps)
        if self.over(steps):
            self._ask_rest(steps, choose)
            return
        learner, state = self._learner, self._learner.collector.status.state
        missing = self._missing(steps)
        if not self._config.synthetic_prefs:
            missing = min(missing, learner.open_cap - learner.ledger.open())
        count = min(missing, _ASKED_AT_ONCE, self.pool.capacity // 2)
        needed = min(2 * count * (_CANDIDATES if choose else 1), self.pool.capacity)
        self.wanting = state == "running" and self._unused < needed
        if count < 1 or state != "running" or self._unused < needed:
            return
        if self._submit(count, steps, choose):
            self._unused -= needed

    def _ask_rest(self, steps: int, choose: bool) -> None:
        """Ask for all that is missing, and about other pairs where a teacher could tell nothing."""
        with contextlib.suppress(UndecidedError):  # it answered what it could, and that is kept
            for _ in range(_LAST_ROUNDS):
                if not self._submit(self._missing(steps), steps, choose):
                    break
        self._unused = 0
        missing = self._due(steps) - self._asked
        if missing > 0:
            self._warnings.once(
                _log,
                "missing answers",
                f"{counted(missing, 'answer')} of {self._due(steps)} missing in the end: no further pair of "
                f"{counted(len(self.pool), 'segment')} could be told apart; a larger max_pref_interface_segs "
                "gives more pairs",
            )

    def _submit(self, count: int, steps: int, choose: bool) -> bool:
        """Ask about so many pairs, or as many as there are; whether there were any."""
        learner = self._learner
        pairs = select_pairs(self.pool, count, self._config.queries, learner.predictor if choose else None)
        if pairs:
            shown = [(self._films.showable(first), self._films.showable(second)) for first, second in pairs]
            phase: Phase = "training" if self._asked >= self._config.n_initial_prefs else "pretraining"
            learner.collector.submit(shown, phase, steps)
            _log.info("asked about %s at step %d", counted(len(pairs), "pair"), steps)
        return bool(pairs)

    @property
    def _asked(self) -> int:
        return self._loaded + self._learner.ledger.asked()

    def _due(self, steps: float) -> int:
        return self._schedule.due(int(steps), time.monotonic() - self._began) + self._not_due

    def _missing(self, steps: int) -> int:
        """How many answers are due and not asked for, of those that training waits for where these are."""
        asked = self._asked
        missing, initial = self._due(steps) - asked, self._config.n_initial_prefs - asked
        return min(missing, initial) if initial > 0 else missing

    def _warn_of_few(self, steps: int) -> None:
        """Say where segments that are new until the last step do not suffice for all answers."""
        if self._last_step == math.inf or _FEW in self._warnings:  # counting takes a look into the ledger
            return
        missing = self._due(self._last_step) - self._asked
        new = self._unused + int(max(0, self._last_step - steps) / self.pool.length)
        if missing <= new // 2:
            return
        others = "; the others are about segments of earlier questions, asked with the last step"
        self._warnings.once(
            _log,
            _FEW,
            f"new segments are too few: {counted(missing, 'answer')} wanted until step "
            f"{self._last_step:.0f}, and {counted(new, 'segment')} for them, two for each"
            f"{others if self._config.synthetic_prefs else ''}; shorten segment_length, want fewer answers "
            "(n_prefs), or make more steps (total_timesteps)",
        )


def _last_step(schedule: LabelSchedule) -> float:
    """With which all answers are due; infinity where they are due without end, or nobody knows."""
    return schedule.num_timesteps if isinstance(schedule, ExponentialSchedule | RateSchedule) else math.inf
