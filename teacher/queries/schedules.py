"""Label schedules: the cumulative number of labels due at each point in a run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from teacher.errors import ConfigError, describe_exception
from teacher.settings.checks import refuse
from teacher.settings.config import RateName, ScheduleName

Rate = Callable[[float], float]
"""Function that maps training progress, from 0 to 1, to the label rate, up to a constant factor."""

_CELLS = 10_000  # intervals of training progress, within which the rate is interpolated linearly
_ROUNDING = 1e-11  # share of all labels, above the rounding error of the sum, so that no label is due late


@runtime_checkable
class LabelSchedule(Protocol):
    """Protocol for label schedules, which determine how many labels are due at each point in training."""

    def due(self, step: int, seconds: float) -> int:
        """Return the cumulative number of labels due, including those due before training.

        Args:
            seconds: wall-clock seconds spent on training.
        """


@dataclass(frozen=True)
class ExponentialSchedule:
    """Schedule with an exponentially decaying label rate, like rl-teacher's ``LabelAnnealer``.

    ``pretrain + (total - pretrain) * (1 - 0.01 ** (step / num_timesteps))`` labels are due, rounded down.
    At the last step, this formula gives only 99% of the ``total - pretrain`` training labels. The remaining
    1% become due then, so that exactly ``total`` labels are requested.

    Attributes:
        pretrain: number of labels due before training.
        total: total number of labels, including ``pretrain``.
        num_timesteps: total number of environment steps of training.

    Raises:
        ConfigError: ``pretrain`` is negative or exceeds ``total``.
    """

    pretrain: int
    total: int
    num_timesteps: int

    def __post_init__(self) -> None:
        _check_counts(self)

    def due(self, step: int, seconds: float) -> int:
        """Return the cumulative number of labels due by ``step``; ``seconds`` is ignored."""
        if step >= self.num_timesteps:
            return self.total
        share = 1 - 0.01 ** (step / self.num_timesteps)
        return self.pretrain + int((self.total - self.pretrain) * share)


@dataclass(frozen=True)
class RateSchedule:
    """Schedule with a label rate that depends on training progress.

    The number of labels due is ``pretrain`` plus the integral of the rate, rescaled so that exactly ``total``
    are due at the last step, and rounded down.

    Attributes:
        pretrain: number of labels due before training.
        total: total number of labels, including ``pretrain``.
        num_timesteps: total number of environment steps of training.
        rate: function that maps training progress, from 0 to 1, to the label rate, up to a constant factor;
            the rate must be finite, nonnegative and not zero everywhere.

    Raises:
        ConfigError: the rate is invalid, or ``pretrain`` is negative or exceeds ``total``.
    """

    pretrain: int
    total: int
    num_timesteps: int
    rate: Rate

    def __post_init__(self) -> None:
        _check_counts(self)
        _ = self._shares  # evaluate the rate now, so that errors appear before training

    def due(self, step: int, seconds: float) -> int:
        """Return the cumulative number of labels due by ``step``; ``seconds`` is ignored."""
        if step >= self.num_timesteps:
            return self.total
        cell, within = divmod(_CELLS * step / self.num_timesteps, 1)
        before, after = self._shares[int(cell) : int(cell) + 2].tolist()
        share = min(before + (after - before) * within, after)  # so that rounding never reduces the result
        return self.pretrain + int((self.total - self.pretrain) * min(share + _ROUNDING, 1.0))

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Return the cumulative fraction of labels due at each interval boundary, ``(_CELLS + 1,)``."""
        bounds = np.linspace(0, 1, _CELLS + 1).tolist()
        try:
            rates = np.array([float(self.rate(progress)) for progress in bounds])
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(
                "the label rate function failed for a training progress from 0 to 1: "
                f"{describe_exception(error)}; fix the function"
            ) from error
        if not (np.isfinite(rates).all() and rates.min() >= 0 and rates.max() > 0):
            raise ConfigError(
                "the label rate must be finite and never negative, and positive at some point in training; "
                f"got values from {rates.min()} to {rates.max()}; fix the rate function"
            )
        rates /= rates.max()
        integral = np.cumsum(np.concatenate([[0.0], (rates[:-1] + rates[1:]) / 2]))
        shares: NDArray[np.float64] = integral / integral[-1]
        return shares


def _check_counts(schedule: ExponentialSchedule | RateSchedule) -> None:
    """Raise ConfigError unless 0 <= pretrain <= total, so that the number of labels due never decreases."""
    if not 0 <= schedule.pretrain <= schedule.total:
        refuse(schedule, [("pretrain", f"expected 0 to total ({schedule.total})")], prefix="")


@dataclass(frozen=True)
class ConstantRate:
    """Schedule with one label every ``period`` seconds of training and no limit on the total.

    Attributes:
        pretrain: number of labels due before training.
        period: seconds between labels; must be positive.

    Raises:
        ConfigError: the period is not positive and finite.
    """

    pretrain: int
    period: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.period < math.inf:
            refuse(self, [("period", "expected more than 0 seconds")], prefix="")

    def due(self, step: int, seconds: float) -> int:
        """Return the cumulative number of labels due after ``seconds``; ``step`` is ignored."""
        return self.pretrain + int(seconds / self.period)


@dataclass(frozen=True)
class AllAtOnce:
    """Schedule with all labels due at the first step, for a single fit.

    Attributes:
        total: total number of labels.
    """

    total: int

    def due(self, step: int, seconds: float) -> int:
        """Return ``total``; both arguments are ignored."""
        return self.total


def named_rate(name: RateName, num_timesteps: int) -> Rate:
    """Return the label rate function with this name, for a run of ``num_timesteps`` environment steps.

    ``hyperbolic`` and ``inverse_quadratic`` come from the imitation library; they fall to half their initial
    rate by the end of training, regardless of its length. ``paper_mujoco`` and ``paper_atari`` fall to half
    their initial rate after 2 and 5 million steps, respectively: at step T, they are proportional to
    ``2e6 / (T + 2e6)`` and ``5e6 / (T + 5e6)`` (Christiano et al. 2017, appendix A).
    """
    match name:
        case "constant":
            return lambda progress: 1.0
        case "hyperbolic":
            return partial(_hyperbola, 1.0)
        case "inverse_quadratic":
            return lambda progress: 1.0 / (1.0 + progress**2)
        case "paper_mujoco":
            return partial(_hyperbola, num_timesteps / 2e6)
        case "paper_atari":
            return partial(_hyperbola, num_timesteps / 5e6)


def _hyperbola(halvings: float, progress: float) -> float:
    """Return the rate relative to its initial value: ``1 / (1 + halvings * progress)``.

    ``halvings`` is the length of training divided by the time until the rate first halves.
    """
    return 1.0 / (1.0 + halvings * progress)


@dataclass(frozen=True)
class ExtendedSchedule:
    """Schedule of a run that was extended with more labels or steps.

    Attributes:
        before: schedule up to ``step``.
        step: environment step at which the run was extended.
        after: schedule after ``step``; its steps are counted from ``step``.
    """

    before: LabelSchedule
    step: int
    after: LabelSchedule

    def due(self, step: int, seconds: float) -> int:
        """Return the cumulative number of labels due by ``step``, using the schedule in effect then."""
        if step <= self.step:
            return self.before.due(step, seconds)
        return self.after.due(step - self.step, seconds)


def make_schedule(
    name: ScheduleName | None,
    pretrain: int,
    ends: Sequence[tuple[int, int | None]],
    extended_at: Sequence[int],
) -> LabelSchedule:
    """Return a run's label schedule, based on steps if a total number of labels is set, else on time.

    Args:
        name: name of the step-based schedule; None means ``exponential``.
        pretrain: number of labels due before training.
        ends: cumulative ``(environment steps, labels)`` at the end of the original run and of each extension;
            ``labels`` is None for time-based schedules.
        extended_at: environment step at which each extension starts.
    """
    (num_timesteps, total), *later = ends
    if ends[-1][1] is None:
        return ConstantRate(pretrain)
    schedule = _by_steps(name, pretrain, total or 0, num_timesteps)
    for step, (num_timesteps, total) in zip(extended_at, later, strict=True):
        after = _by_steps(name, schedule.due(step, 0.0), total or 0, num_timesteps - step)
        schedule = ExtendedSchedule(schedule, step, after)
    return schedule


def _by_steps(name: ScheduleName | None, pretrain: int, total: int, num_timesteps: int) -> LabelSchedule:
    if name is None or name == "exponential":
        return ExponentialSchedule(pretrain, total, num_timesteps)
    return RateSchedule(pretrain, total, num_timesteps, named_rate(name, num_timesteps))
