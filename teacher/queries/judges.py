"""Who says which of two segments is better, where no person does: functions of the segments themselves."""

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
"""Which is better, or the probability that the first one is."""

_MAX_SKIPPED_IN_A_ROW = 1000

Value = Callable[[Segment | Trajectory], float]
"""How good the steps of a segment or an episode are."""


def true_return(steps: Segment | Trajectory) -> float:
    """Sum of the environment's reward."""
    return float(steps.true_rewards.sum())


def oracle(first: Segment, second: Segment) -> Decision:
    """Prefers the larger sum of true reward; equal sums are equal."""
    difference = first.true_return - second.true_return
    return "equal" if difference == 0 else "first" if difference > 0 else "second"


def goal_of(error_model: ErrorModel) -> Value:
    """What a teacher wants more of: the value of its function, else the true return.

    Raises:
        ConfigError: there is no such function.
    """
    return true_return if error_model.function is None else Behavior(error_model.function)


def value_of(error_model: ErrorModel) -> Value:
    """What a teacher sees of it: its goal, discounted where it is myopic.

    Raises:
        ConfigError: there is no such function.
    """
    if error_model.myopic is not None:
        return _Discounted(error_model.myopic, from_end=True)
    if error_model.discount is not None:
        return _Discounted(error_model.discount, from_end=False)
    return goal_of(error_model)


def probability_of(answer: Decision | float, judge: str = "a judge") -> float | None:
    """The probability that the first is better, which an answer says; None where nobody can tell.

    Raises:
        BehaviorError: it is no answer; the judge is named so.
    """
    if answer is None:
        return None
    try:  # it is a function of the user's that answers, and may say anything
        probability = CERTAIN.get(answer, math.nan) if isinstance(answer, str) else float(answer)
    except (TypeError, ValueError, OverflowError):
        probability = math.nan
    if probability is not None and not 0 <= probability <= 1:
        raise BehaviorError(
            f"expected {', '.join(CERTAIN)} or a probability from {judge}, got {one_line(answer)}; mend it"
        )
    return probability


def answer_of(judge: Judge, first: Segment, second: Segment) -> float | None:
    """The same of what a judge says of two segments.

    Raises:
        BehaviorError: the judge, which is named, failed, or said what is no answer.
        UndecidedError: a scripted teacher could tell no pair of very many apart.
    """
    name = f"{judge.__module__}:{getattr(judge, '__qualname__', type(judge).__qualname__)}"
    try:
        answer = _closed(judge(first, second))
    except TeacherError:
        raise
    except (Exception, SystemExit) as error:  # of the user's
        raise BehaviorError(f"{name} failed: {describe_exception(error)}; mend it") from error
    return probability_of(answer, name)


def _closed(value: Any) -> Any:
    """The same; what an async function returns is closed, else it warns that nobody awaited it."""
    if inspect.iscoroutine(value):
        value.close()
    return value


def decision_of(probability: float | None) -> Decision:
    """The reverse: the outcome that a probability stands for."""
    if probability is None:
        return "cant_tell"
    return "equal" if probability == 0.5 else "first" if probability > 0.5 else "second"


class ScriptedTeacher:
    """A :data:`Judge` that errs as configured; its errors follow from the seed and the two segments.

    Args:
        error_model: how it errs.
        seed: of its errors.
        seen: pairs it has answered before, oldest first; needed where it has thresholds.
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
        """See :data:`Judge`.

        Raises:
            BehaviorError: a function of the user's failed.
            UndecidedError: the teacher could tell no pair of very many apart.
        """
        key = _fingerprint(first, second)
        value = self._answerer.answer(self._value(first), self._value(second), key)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if value is None else 0
        if self._skipped_in_a_row == _MAX_SKIPPED_IN_A_ROW:
            raise UndecidedError(
                f"expected answers, but a teacher with skip:{self._error_model.skip:g} gave none to "
                f"{_MAX_SKIPPED_IN_A_ROW} pairs in a row; {self.remedy}"
            )
        return decision_of(value) if value is None or value in (0.0, 0.5, 1.0) else value

    @property
    def remedy(self) -> str:
        """What helps where it can tell nothing apart, for which only its threshold can be the reason."""
        return "lower skip:X of the teacher, below 0 where returns are negative"


class Behavior:
    """A function of the user's, ``module:function``, from steps to a number: the larger, the better.

    Modules are found where Python finds them, and in the current folder. It is called with segments and, for
    reports only, with whole episodes.

    Raises:
        ConfigError: there is no such function.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = named_function(name)

    def __call__(self, steps: Segment | Trajectory) -> float:
        """The function's value. Raises :class:`BehaviorError` where that is no finite number."""
        try:
            value = _closed(self._function(steps))
        except (Exception, SystemExit) as error:
            raise BehaviorError(f"{self._name} failed: {describe_exception(error)}; mend it") from error
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise BehaviorError(f"expected a finite number from {self._name}, got {one_line(value)}; mend it")
        return number


class _Discounted:
    """The true return with each step weighed ``discount`` for every step between it and one end."""

    def __init__(self, discount: float, *, from_end: bool) -> None:
        self._discount, self._from_end = discount, from_end

    def __call__(self, steps: Segment | Trajectory) -> float:
        weights = self._discount ** np.arange(len(steps.true_rewards))
        return float(steps.true_rewards @ (weights[::-1] if self._from_end else weights))


def _fingerprint(first: Segment, second: Segment) -> str:
    """Tells a pair from all others, in every process."""
    digest = hashlib.blake2b(digest_size=16)
    for segment in (first, second):
        recipe = segment.recipe
        digest.update(f"{recipe.env_id}/{recipe.seed}/{segment.start}/".encode())
        arrays = [segment.actions]
        if recipe.seed == 0:  # not known: what came of the actions tells episodes apart that acted alike
            last = segment.final_observation
            arrays += [segment.observations, segment.true_rewards, *([] if last is None else [last])]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
