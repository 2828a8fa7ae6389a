"""Pacing of the wrapper's comparisons: when to submit them, how many, and with which segments."""

import logging
import math
import time
from collections.abc import Callable, Sequence

from teacher.data.segments import Segment
from teacher.errors import Topics, pluralize
from teacher.queries.learning import PreferenceLearning, Submitted
from teacher.queries.schedules import ExponentialSchedule, LabelSchedule, RateSchedule
from teacher.wrapper.settings import WrapperConfig

_ASKED_AT_ONCE = 10  # maximum questions per submission
_CANDIDATES = 2  # new segments to wait for per submitted segment if the predictor selects
_FEW = "few segments"  # topic of a warning

_log = logging.getLogger("teacher.wrapper.preferences")


class QueryPacing:
    """Submits comparisons of new segments as labels become due, according to the label schedule.

    With a scripted teacher, submits all remaining comparisons at the last step.

    Args:
        shown: returns what people are shown of a segment.

    Attributes:
        wanting: True while due comparisons are waiting for new segments.
    """

    def __init__(
        self, config: WrapperConfig, learning: PreferenceLearning, shown: Callable[[Segment], Segment]
    ) -> None:
        self._config, self._learning, self._shown = config, learning, shown
        self._last_step = _last_step(learning.schedule)
        self._began = time.monotonic()
        self.wanting = False
        self._unused = 0  # new segments that no comparison has used
        self._warned = Topics()

    def add(self, segments: Sequence[Segment]) -> None:
        """Add new segments to the pool."""
        self._learning.pool.add(segments)
        self._unused = min(self._unused + len(segments), self._learning.pool.capacity)

    def over(self, steps: int) -> bool:
        """Return True if all remaining comparisons should be submitted at step ``steps``.

        This is the case if the labels come from a scripted teacher and all are due by then. Always False
        with human labelers, who shouldn't get all remaining comparisons at once.
        """
        config = self._config
        return config.collect_prefs and config.synthetic_prefs and steps >= self._last_step

    def ask(self, steps: int, *, choose: bool) -> None:
        """Submit the comparisons that are due.

        Until all labels are due, questions consist of new segments only.

        Args:
            choose: True to select questions with the predictor, False to select them at random.
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
        size = learning.size
        count = min(missing, _ASKED_AT_ONCE, capacity // size)
        needed = min(size * count * (_CANDIDATES if choose else 1), capacity)
        self.wanting = state == "running" and self._unused < needed
        if count < 1 or state != "running" or self._unused < needed:
            return
        if self._submit(count, steps, choose):
            self._unused -= needed

    def _ask_rest(self, steps: int, choose: bool) -> None:
        """Submit all remaining questions; replace those that the teacher can't answer."""
        learning = self._learning
        learning.submit_rest(lambda: self._submit(self._missing(steps), steps, choose))
        self._unused = 0
        due = self._due(steps)
        missing = due - learning.asked
        if missing > 0 and self._warned.is_new("missing answers"):
            _log.warning(
                f"{missing:,} of {pluralize(due, 'label')} are missing at the end: the teacher can't "
                "tell apart the two segments of any remaining pair among the last "
                f"{pluralize(len(learning.pool), 'segment')}; raise "
                "max_pref_interface_segs to get more pairs",
            )

    def _submit(self, count: int, steps: int, choose: bool) -> Submitted:
        learning = self._learning
        submitted = learning.submit(
            count,
            steps,
            "training" if learning.asked >= self._config.n_initial_prefs else "pretraining",
            predictor=learning.predictor if choose else None,
            shown=self._shown,
        )
        if submitted:
            _log.info("submitted %s at step %d", pluralize(len(submitted), "comparison"), steps)
        return submitted

    def _due(self, steps: float) -> int:
        self._learning.seconds = time.monotonic() - self._began
        return self._learning.due(int(steps))

    def _missing(self, steps: int) -> int:
        """Return how many comparisons are due but not yet submitted.

        Until all initial comparisons have been submitted, only those count.
        """
        asked = self._learning.asked
        missing, initial = self._due(steps) - asked, self._config.n_initial_prefs - asked
        return min(missing, initial) if initial > 0 else missing

    def _warn_of_few(self, steps: int) -> None:
        """Warn if there won't be enough new segments by the last step for all the labels due."""
        if self._last_step == math.inf or _FEW in self._warned:  # before _due(), which reads the ledger
            return
        missing = self._due(self._last_step) - self._learning.asked
        new = self._unused + int(max(0, self._last_step - steps) / self._learning.pool.length)
        size = self._learning.size
        if missing <= new // size:
            return
        others = "; the remaining comparisons will reuse earlier segments at the last step"
        self._warned.add(_FEW)
        _log.warning(
            f"too few new segments: {pluralize(missing, 'label')} will be due by step {self._last_step:.0f} "
            f"and need {pluralize(size, 'segment')} each, but there will be only {pluralize(new, 'segment')}"
            f"{others if self._config.synthetic_prefs else ''}; shorten segment_length, lower n_prefs, or "
            "raise total_timesteps",
        )


def _last_step(schedule: LabelSchedule) -> float:
    """Return the step by which all labels are due; infinity if the schedule has no such step."""
    return schedule.num_timesteps if isinstance(schedule, ExponentialSchedule | RateSchedule) else math.inf
