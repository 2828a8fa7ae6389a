"""What is asked about an environment that is stepped elsewhere, and when."""

import logging
import math
import time
from collections.abc import Sequence

from teacher.data.ledger import Ledger
from teacher.data.segments import Segment
from teacher.errors import pluralize
from teacher.queries.asking import Submitted
from teacher.queries.learning import PreferenceLearning
from teacher.queries.schedules import ExponentialSchedule, LabelSchedule, RateSchedule
from teacher.wrapper.clips import ClipSource
from teacher.wrapper.once import WarnOnce
from teacher.wrapper.settings import WrapperConfig

_ASKED_AT_ONCE = 10  # pairs
_CANDIDATES = 2  # new segments for each that is asked about, once there is a predictor to choose by
_FEW = "few segments"  # what a warning is about

_log = logging.getLogger("teacher.wrapper.preferences")


class QueryPacing:
    """Asks about new segments while labels are due, and with the last step for all that are missing then.

    Args:
        config: how.
        learning: asks, and knows what was asked before.
        clips: what shows a segment.

    Attributes:
        wanting: whether segments for comparisons are wanting.
    """

    def __init__(
        self, config: WrapperConfig, learning: PreferenceLearning[Ledger], clips: ClipSource
    ) -> None:
        self._config, self._learning, self._clips = config, learning, clips
        self._last_step = _last_step(learning.schedule)
        self._began = time.monotonic()
        self.wanting = False
        self._unused = 0  # segments that came since the last comparison, less those in it
        self._warn_once = WarnOnce()

    def add(self, segments: Sequence[Segment]) -> None:
        """Take in new segments, those that can be shown."""
        showable = [segment for segment in segments if self._clips.can_show(segment)]
        self._learning.pool.add(showable)
        self._unused = min(self._unused + len(showable), self._learning.pool.capacity)

    def over(self, steps: int) -> bool:
        """Return whether all labels are due by now; never where people give them, who would be flooded."""
        config = self._config
        return config.collect_prefs and config.synthetic_prefs and steps >= self._last_step

    def ask(self, steps: int, *, choose: bool) -> None:
        """Submit what is due, of segments that no earlier comparison took; when all is due, of any.

        Args:
            steps: environment steps so far.
            choose: whether there is a predictor to choose pairs by.
        """
        self._warn_of_few(steps)
        if self.over(steps):
            self._ask_rest(steps, choose)
            return
        learning, state = self._learning, self._learning.collector.status.state
        missing = self._missing(steps)
        if not self._config.synthetic_prefs:
            missing = min(missing, learning.open_limit - learning.ledger.open())
        capacity = learning.pool.capacity
        count = min(missing, _ASKED_AT_ONCE, capacity // 2)
        needed = min(2 * count * (_CANDIDATES if choose else 1), capacity)
        self.wanting = state == "running" and self._unused < needed
        if count < 1 or state != "running" or self._unused < needed:
            return
        if self._submit(count, steps, choose):
            self._unused -= needed

    def _ask_rest(self, steps: int, choose: bool) -> None:
        """Ask for all that is missing, and about other pairs where a teacher could tell nothing."""
        learning = self._learning
        learning.submit_rest(lambda: self._submit(self._missing(steps), steps, choose))
        self._unused = 0
        due = self._due(steps)
        missing = due - learning.asked
        if missing > 0:
            self._warn_once(
                _log,
                "missing answers",
                f"{pluralize(missing, 'answer')} of {due} missing in the end: no further pair of "
                f"{pluralize(len(learning.pool), 'segment')} could be told apart; a larger "
                "max_pref_interface_segs gives more pairs",
            )

    def _submit(self, count: int, steps: int, choose: bool) -> Submitted:
        """Ask about so many pairs, or as many as there are."""
        learning = self._learning
        submitted = learning.submit(
            count,
            steps,
            "training" if learning.asked >= self._config.n_initial_prefs else "pretraining",
            predictor=learning.predictor if choose else None,
            shown=self._clips.showable,
        )
        if submitted:
            _log.info("asked about %s at step %d", pluralize(len(submitted), "pair"), steps)
        return submitted

    def _due(self, steps: float) -> int:
        self._learning.seconds = time.monotonic() - self._began
        return self._learning.due(int(steps))

    def _missing(self, steps: int) -> int:
        """Return how many labels are due and not asked for, of those training waits for where it does."""
        asked = self._learning.asked
        missing, initial = self._due(steps) - asked, self._config.n_initial_prefs - asked
        return min(missing, initial) if initial > 0 else missing

    def _warn_of_few(self, steps: int) -> None:
        """Say where segments that are new until the last step do not suffice for all answers."""
        if self._last_step == math.inf or _FEW in self._warn_once:  # counting takes a look into the ledger
            return
        missing = self._due(self._last_step) - self._learning.asked
        new = self._unused + int(max(0, self._last_step - steps) / self._learning.pool.length)
        if missing <= new // 2:
            return
        others = "; the others are about segments of earlier questions, asked with the last step"
        self._warn_once(
            _log,
            _FEW,
            f"new segments are too few: {pluralize(missing, 'answer')} wanted until step "
            f"{self._last_step:.0f}, and {pluralize(new, 'segment')} for them, two for each"
            f"{others if self._config.synthetic_prefs else ''}; shorten segment_length, want fewer answers "
            "(n_prefs), or make more steps (total_timesteps)",
        )


def _last_step(schedule: LabelSchedule) -> float:
    """With which all answers are due; infinity where they are due without end, or nobody knows."""
    return schedule.num_timesteps if isinstance(schedule, ExponentialSchedule | RateSchedule) else math.inf
