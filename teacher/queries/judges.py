"""Judges and scripted teachers: functions that decide which of two segments is better."""

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from teacher.data.decisions import CERTAIN, Decision
from teacher.data.segments import Segment, SegmentPair
from teacher.envs.trajectory import Trajectory
from teacher.errors import BehaviorError, TeacherError, UndecidedError, describe_exception, one_line
from teacher.settings.checks import SEED, whole_number
from teacher.settings.functions import named_function
from teacher.settings.teachers import Answerer, ErrorModel

Judge = Callable[[Segment, Segment], Decision | float]
"""Returns the better segment, or the probability that the first is better."""

_MAX_SKIPPED_IN_A_ROW = 1000

Value = Callable[[Segment | Trajectory], float]
"""Returns the value of the steps of a segment or an episode; larger is better."""


def true_return(steps: Segment | Trajectory) -> float:
    """Return the sum of the environment's rewards."""
    return float(steps.true_rewards.sum())


def oracle(first: Segment, second: Segment) -> Decision:
    """Prefer the segment with the larger true return; equal returns are ``equal``."""
    difference = first.true_return - second.true_return
    return "equal" if difference == 0 else "first" if difference > 0 else "second"


def goal_of(error_model: ErrorModel) -> Value:
    """Return a teacher's value function: its configured function, or else the true return.

    Raises:
        ConfigError: the function does not exist.
    """
    return true_return if error_model.function is None else Behavior(error_model.function)


def value_of(error_model: ErrorModel) -> Value:
    """Return the value a teacher perceives: its value function, or the discounted true return if configured.

    Raises:
        ConfigError: the function does not exist.
    """
    if error_model.myopic is not None:
        return _Discounted(error_model.myopic, from_end=True)
    if error_model.discount is not None:
        return _Discounted(error_model.discount, from_end=False)
    return goal_of(error_model)


def probability_of(answer: Decision | float, judge: str = "a judge") -> float | None:
    """Convert a judge's label to the probability that the first is better; None for "can't tell".

    Raises:
        BehaviorError: it is not a valid label; the message names ``judge``.
    """
    if answer is None:
        return None
    try:  # a user's function may return anything
        probability = CERTAIN.get(answer, math.nan) if isinstance(answer, str) else float(answer)
    except (TypeError, ValueError, OverflowError):
        probability = math.nan
    if probability is not None and not 0 <= probability <= 1:
        raise BehaviorError(
            f"expected {', '.join(CERTAIN)} or a probability from {judge}, got {one_line(answer)}; fix it"
        )
    return probability


def answer_of(judge: Judge, first: Segment, second: Segment) -> float | None:
    """Return the probability that the first is better according to a judge; None for "can't tell".

    Raises:
        BehaviorError: the judge failed or returned an invalid label; the message names it.
        UndecidedError: a scripted teacher skipped too many pairs in a row.
    """
    name = f"{judge.__module__}:{getattr(judge, '__qualname__', type(judge).__qualname__)}"
    try:
        answer = _closed(judge(first, second))
    except TeacherError:
        raise
    except (Exception, SystemExit) as error:  # from the user's code
        raise BehaviorError(f"{name} failed: {describe_exception(error)}; fix it") from error
    return probability_of(answer, name)


def _closed(value: Any) -> Any:
    """Close ``value`` if it is a coroutine, to avoid a "never awaited" warning; return it."""
    if inspect.iscoroutine(value):
        value.close()
    return value


def decision_of(probability: float | None) -> Decision:
    """Return the decision that a probability stands for."""
    if probability is None:
        return "cant_tell"
    return "equal" if probability == 0.5 else "first" if probability > 0.5 else "second"


class ScriptedTeacher:
    """A :data:`Judge` with a configured error model; its errors depend only on the seed and the two segments.

    Args:
        error_model: the errors it makes.
        seed: for its errors.
        seen: pairs it has labeled before, oldest first; needed if it has thresholds.
    """

    def __init__(self, error_model: ErrorModel, seed: int, seen: Iterable[SegmentPair] = ()) -> None:
        self._error_model = error_model
        self._value = value_of(error_model)
        self._skipped_in_a_row = 0
        seed = whole_number(seed, "seed", SEED)
        self._answerer = Answerer(
            error_model, seed, (self._value(segment) for pair in seen for segment in pair)
        )

    def __call__(self, first: Segment, second: Segment) -> Decision | float:
        """Return the decision, or the probability that the first segment is better.

        Raises:
            BehaviorError: a user's function failed.
            UndecidedError: the teacher skipped too many pairs in a row.
        """
        key = _fingerprint(first, second)
        value = self._answerer.answer(self._value(first), self._value(second), key)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if value is None else 0
        if self._skipped_in_a_row == _MAX_SKIPPED_IN_A_ROW:
            raise UndecidedError(
                f"expected labels, but a teacher with skip:{self._error_model.skip:g} gave none for "
                f"{_MAX_SKIPPED_IN_A_ROW} pairs in a row; {self.remedy}"
            )
        return decision_of(value) if value is None or value in (0.0, 0.5, 1.0) else value

    @property
    def remedy(self) -> str:
        """Return advice if it skips every pair, which only its threshold can cause."""
        return "lower the teacher's skip:X, below 0 if returns are negative"


class Behavior:
    """A user's function ``module:function`` from steps to a number; larger is better.

    Modules are found on Python's path and in the current folder. The function is called with segments and,
    for reports only, with whole episodes.

    Raises:
        ConfigError: the function does not exist.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = named_function(name)

    def __call__(self, steps: Segment | Trajectory) -> float:
        """Return the function's value. Raise :class:`BehaviorError` unless it is a finite number."""
        try:
            value = _closed(self._function(steps))
        except (Exception, SystemExit) as error:
            raise BehaviorError(f"{self._name} failed: {describe_exception(error)}; fix it") from error
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise BehaviorError(f"expected a finite number from {self._name}, got {one_line(value)}; fix it")
        return number


class _Discounted:
    """True return with weights that decay by ``discount`` per step from the start or the end."""

    def __init__(self, discount: float, *, from_end: bool) -> None:
        self._discount, self._from_end = discount, from_end

    def __call__(self, steps: Segment | Trajectory) -> float:
        weights = self._discount ** np.arange(len(steps.true_rewards))
        return float(steps.true_rewards @ (weights[::-1] if self._from_end else weights))


def _fingerprint(first: Segment, second: Segment) -> str:
    """Return a key that identifies a pair in every process."""
    digest = hashlib.blake2b(digest_size=16)
    for segment in (first, second):
        recipe = segment.recipe
        digest.update(f"{recipe.env_id}/{recipe.seed}/{segment.start}/".encode())
        arrays = [segment.actions]
        if recipe.seed == 0:  # unknown seed: outcomes distinguish episodes with equal actions
            last = segment.final_observation
            arrays += [segment.observations, segment.true_rewards, *([] if last is None else [last])]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
