"""Judges and scripted teachers: functions that decide which of two segments is better."""

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from teacher.data.decisions import CERTAIN, Decision
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.errors import (
    BehaviorError,
    ConfigError,
    TeacherError,
    UndecidedError,
    describe_exception,
    one_line,
)
from teacher.settings.checks import SEED, whole_number
from teacher.settings.functions import named_function
from teacher.settings.teachers import Answerer, ErrorModel, Perceived

Judge = Callable[[Segment, Segment], Decision | float]
"""Function of two segments that returns a decision, or the probability that the first one is better."""

_MAX_SKIPPED_IN_A_ROW = 1000

Value = Callable[[Segment | Trajectory], float]
"""Function that returns the score of a segment or an episode; higher is better."""


def true_return(steps: Segment | Trajectory) -> float:
    """Return the sum of the environment's rewards in a segment or an episode."""
    return float(steps.true_rewards.sum())


def oracle(first: Segment, second: Segment) -> Decision:
    """Return the decision that prefers the segment with the larger true return, or ``equal`` on a tie."""
    difference = first.true_return - second.true_return
    return "equal" if difference == 0 else "first" if difference > 0 else "second"


def goal_of(error_model: ErrorModel) -> Value:
    """Return the function that scores segments by a scripted teacher's true objective.

    This is the user's function if one is configured, else :func:`true_return`.

    Raises:
        ConfigError: the user's function does not exist.
    """
    return true_return if error_model.function is None else Behavior(error_model.function)


def value_of(error_model: ErrorModel) -> Value:
    """Return the function that a scripted teacher uses to score the segments it compares.

    If ``myopic`` or ``discount`` is set, it returns the discounted true return. Otherwise, it is the function
    from :func:`goal_of`.

    Raises:
        ConfigError: the user's function does not exist.
    """
    if error_model.myopic is not None:
        return _Discounted(error_model.myopic, from_end=True)
    if error_model.discount is not None:
        return _Discounted(error_model.discount, from_end=False)
    return goal_of(error_model)


def probability_of(answer: Decision | float, judge: str = "a judge") -> float | None:
    """Convert a judge's answer to the probability that the first segment is better.

    Returns:
        The probability; None for "can't tell".

    Raises:
        BehaviorError: the answer is neither a decision nor a probability.
    """
    if answer is None:
        return None
    try:  # a user's function may return anything
        probability = CERTAIN.get(answer, math.nan) if isinstance(answer, str) else float(answer)
    except (TypeError, ValueError, OverflowError):
        probability = math.nan
    if probability is not None and not 0 <= probability <= 1:
        raise BehaviorError(
            f"{judge} returned {one_line(answer)}, but must return {', '.join(CERTAIN)} or a probability; "
            "fix the function"
        )
    return probability


def answer_of(judge: Judge, first: Segment, second: Segment) -> float | None:
    """Call a judge and return its probability that the first segment is better; None for "can't tell".

    Raises:
        BehaviorError: the judge failed, or returned neither a decision nor a probability.
        UndecidedError: a scripted teacher skipped too many pairs in a row.
    """
    name = f"{judge.__module__}:{getattr(judge, '__qualname__', type(judge).__qualname__)}"
    try:
        answer = _closed(judge(first, second))
    except TeacherError:
        raise
    except (Exception, SystemExit) as error:  # from the user's code
        raise BehaviorError(f"{name} failed: {describe_exception(error)}; fix the function") from error
    return probability_of(answer, name)


def _closed(value: Any) -> Any:
    """Close ``value`` if it is a coroutine, to avoid a "never awaited" warning, and return it."""
    if inspect.iscoroutine(value):
        value.close()
    return value


def decision_of(probability: float | None) -> Decision:
    """Convert the probability that the first segment is better to a decision; None means ``cant_tell``."""
    if probability is None:
        return "cant_tell"
    return "equal" if probability == 0.5 else "first" if probability > 0.5 else "second"


class ScriptedTeacher:
    """Judge that compares segments by their scores and makes mistakes according to an error model.

    Random errors depend only on the seed and the two segments, so they are reproducible.

    Args:
        error_model: settings for the scoring function and the simulated errors.
        seen: items of the questions that the teacher answered in earlier processes, oldest first. Needed only
            for answers that depend on the returns of earlier items: ``skip``, ``equal``, and all kinds of
            questions but pairs.
        pool: the segments collected in training; needed only for ``collected``. While it is empty, thresholds
            depend on the returns of earlier pairs.

    Raises:
        ConfigError: the error model has ``collected``, but there is no pool.
    """

    def __init__(
        self,
        error_model: ErrorModel,
        seed: int,
        seen: Iterable[Sequence[Segment]] = (),
        pool: SegmentPool | None = None,
    ) -> None:
        if error_model.collected is not None and pool is None:
            raise ConfigError(
                "collected works only with teach -p synth, because other judges don't see which segments an "
                "agent collects; leave it out to base thresholds on the pairs judged"
            )
        self._error_model = error_model
        self._pool = pool
        self._value = value_of(error_model)
        self._skipped_in_a_row = 0
        seed = whole_number(seed, "seed", SEED)
        self._answerer = Answerer(
            error_model, seed, (self._value(segment) for items in seen for segment in items)
        )

    def __call__(self, first: Segment, second: Segment) -> Decision | float:
        """Return the decision for two segments, or the probability that the first is better.

        Raises:
            BehaviorError: the user's scoring function failed.
            UndecidedError: the teacher skipped too many pairs in a row.
        """
        key = _fingerprint((first, second))
        value = self._answerer.answer(self._value(first), self._value(second), key, self._average())
        self._note(skipped=value is None)
        return decision_of(value) if value is None or value in (0.0, 0.5, 1.0) else value

    def perceive(self, items: Sequence[Segment]) -> Perceived | None:
        """Return the teacher's view of a question of any kind, or None for "can't tell".

        Raises:
            BehaviorError, UndecidedError: same as for pairs.
        """
        returns = [self._value(item) for item in items]
        perceived = self._answerer.perceive(returns, _fingerprint(items), self._average())
        self._note(skipped=perceived is None)
        return perceived

    def _note(self, *, skipped: bool) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row == _MAX_SKIPPED_IN_A_ROW:
            raise UndecidedError(
                f"a scripted teacher with skip:{self._error_model.skip:g} gave no label for "
                f"{_MAX_SKIPPED_IN_A_ROW} questions in a row; {self.remedy}"
            )

    def _average(self) -> float | None:
        """Return the mean absolute score of the newest collected segments; None without ``collected``."""
        if self._pool is None or self._error_model.collected is None or len(self._pool) == 0:
            return None
        newest = self._pool.newest(int(self._error_model.collected))
        return float(np.mean([abs(self._value(segment)) for segment in newest]))

    @property
    def remedy(self) -> str:
        """Return advice for users whose teacher skips every question because of its ``skip`` threshold."""
        return "lower X in the teacher's skip:X; X must be negative if returns are negative"


class Behavior:
    """User-defined scoring function that maps a segment to a number; higher is better.

    It is also called with whole episodes, but only for reports. Its module is imported from ``sys.path`` or
    the current working directory.

    Args:
        name: ``module:function``.

    Raises:
        ConfigError: the function does not exist.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = named_function(name)

    def __call__(self, steps: Segment | Trajectory) -> float:
        """Call the user's function and return its result as a float.

        Raises:
            BehaviorError: the function failed or did not return a finite number.
        """
        try:
            value = _closed(self._function(steps))
        except (Exception, SystemExit) as error:
            raise BehaviorError(
                f"{self._name} failed: {describe_exception(error)}; fix the function"
            ) from error
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise BehaviorError(
                f"{self._name} returned {one_line(value)}, but must return a finite number; fix the function"
            )
        return number


class _Discounted:
    """Scores a segment by its discounted true return.

    Weights decay from 1 at the first step or, if ``from_end`` is True, backward from 1 at the last step.
    """

    def __init__(self, discount: float, *, from_end: bool) -> None:
        self._discount, self._from_end = discount, from_end

    def __call__(self, steps: Segment | Trajectory) -> float:
        weights = self._discount ** np.arange(len(steps.true_rewards))
        return float(steps.true_rewards @ (weights[::-1] if self._from_end else weights))


def _fingerprint(items: Sequence[Segment]) -> str:
    """Return a hash that identifies a sequence of segments across processes."""
    digest = hashlib.blake2b(digest_size=16)
    for segment in items:
        recipe = segment.recipe
        digest.update(f"{recipe.env_id}/{recipe.seed}/{segment.start}/".encode())
        arrays = [segment.actions]
        if recipe.seed == 0:  # unknown seed, so equal actions may have different outcomes
            last = segment.final_observation
            arrays += [segment.observations, segment.true_rewards, *([] if last is None else [last])]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
