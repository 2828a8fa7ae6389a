"""Label schedules: how many labels are due in total, at each point of a run; never decreasing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from teacher.errors import ConfigError, describe_exception
from teacher.settings.checks import refuse_all
from teacher.settings.config import RateName, ScheduleName

Rate = Callable[[float], float]
"""Returns the rate of labels, in any unit, at a fraction of training from 0 to 1."""

_CELLS = 10_000  # of training progress; the rate is linear within each
_ROUNDING = 1e-11  # of all labels; exceeds the rounding error of the sum, so that no label is due a step late


@runtime_checkable
class LabelSchedule(Protocol):
    """Number of labels due, as a function of time."""

    def due(self, step: int, seconds: float) -> int:
        """Return how many labels are due in total, including those before training.

        Args:
            step: environment steps of training so far.
            seconds: wall-clock seconds of training so far.
        """


@dataclass(frozen=True)
class ExponentialSchedule:
    """Labels become rarer as the agent learns: rl-teacher's ``LabelAnnealer``.

    ``pretrain + (total - pretrain) * (1 - 0.01 ** (step / num_timesteps))``, rounded down. The formula leaves
    out 1 % of the training labels; these are due at the last step, so that exactly ``total`` are asked.

    Attributes:
        pretrain: labels before training.
        total: labels in total.
        num_timesteps: environment steps of the whole training.

    Raises:
        ConfigError: there are more labels before training than in total.
    """

    pretrain: int
    total: int
    num_timesteps: int

    def __post_init__(self) -> None:
        _check_counts(self)

    def due(self, step: int, seconds: float) -> int:
        """Return how many labels are due by ``step``; ``seconds`` are ignored."""
        if step >= self.num_timesteps:
            return self.total
        share = 1 - 0.01 ** (step / self.num_timesteps)
        return self.pretrain + int((self.total - self.pretrain) * share)


@dataclass(frozen=True)
class RateSchedule:
    """Labels at a rate that changes with the progress of training.

    The number due is the integral of the rate, scaled so that exactly ``total`` are due at the last step, and
    rounded down.

    Attributes:
        pretrain: labels before training.
        total: labels in total.
        num_timesteps: environment steps of the whole training.
        rate: finite, never negative, and positive somewhere.

    Raises:
        ConfigError: the rate is invalid, or there are more labels before training than in total.
    """

    pretrain: int
    total: int
    num_timesteps: int
    rate: Rate

    def __post_init__(self) -> None:
        _check_counts(self)
        _ = self._shares  # evaluate the rate now, not hours into training

    def due(self, step: int, seconds: float) -> int:
        """Return how many labels are due by ``step``; ``seconds`` are ignored."""
        if step >= self.num_timesteps:
            return self.total
        cell, within = divmod(_CELLS * step / self.num_timesteps, 1)
        before, after = self._shares[int(cell) : int(cell) + 2].tolist()
        share = min(before + (after - before) * within, after)  # rounding must never reduce the number due
        return self.pretrain + int((self.total - self.pretrain) * min(share + _ROUNDING, 1.0))

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Return the fraction of labels due at the bounds of each cell, from 0 to 1."""
        bounds = np.linspace(0, 1, _CELLS + 1).tolist()
        try:
            rates = np.array([float(self.rate(progress)) for progress in bounds])
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(
                f"the label rate failed between 0 and 1: {describe_exception(error)}"
            ) from error
        if not (np.isfinite(rates).all() and rates.min() >= 0 and rates.max() > 0):
            raise ConfigError(
                "expected a label rate that is finite and never negative, and positive somewhere between "
                f"0 and 1; got values from {rates.min()} to {rates.max()}"
            )
        rates /= rates.max()
        integral = np.cumsum(np.concatenate([[0.0], (rates[:-1] + rates[1:]) / 2]))
        shares: NDArray[np.float64] = integral / integral[-1]
        return shares


def _check_counts(schedule: ExponentialSchedule | RateSchedule) -> None:
    """Raise ConfigError unless 0 <= pretrain <= total, so that the number due never decreases."""
    fits = 0 <= schedule.pretrain <= schedule.total
    refuse_all(schedule, [("pretrain", fits, f"expected 0 to total ({schedule.total})")], prefix="")


@dataclass(frozen=True)
class ConstantRate:
    """One label every few seconds of training, for as long as training continues.

    Attributes:
        pretrain: labels before training.
        period: seconds between labels, more than 0.

    Raises:
        ConfigError: the period is not positive and finite.
    """

    pretrain: int
    period: float = 3.0

    def __post_init__(self) -> None:
        fits = 0 < self.period < math.inf
        refuse_all(self, [("period", fits, "expected more than 0 seconds")], prefix="")

    def due(self, step: int, seconds: float) -> int:
        """Return how many labels are due after ``seconds``; ``step`` is ignored."""
        return self.pretrain + int(seconds / self.period)


@dataclass(frozen=True)
class AllAtOnce:
    """All labels are due from the first step; for a single fit.

    Attributes:
        total: labels in total.
    """

    total: int

    def due(self, step: int, seconds: float) -> int:
        """Return ``total``; both arguments are ignored."""
        return self.total


def named_rate(name: RateName, num_timesteps: int) -> Rate:
    """Return the label rate with this name, for a training of ``num_timesteps`` steps.

    ``hyperbolic`` and ``inverse_quadratic`` are imitation's; they fall to one half by the end of any
    training. The paper's rates fall to one half over 2 and 5 million steps: they are proportional to ``2e6 /
    (T + 2e6)`` at step T on MuJoCo and ``5e6 / (T + 5e6)`` on Atari (Christiano et al. 2017, appendix A).
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
    """Return a rate that starts at 1 and falls to one half at ``progress = 1 / halvings``."""
    return 1.0 / (1.0 + halvings * progress)


@dataclass(frozen=True)
class ExtendedSchedule:
    """Schedule of a run that was extended with more labels or steps.

    Attributes:
        before: schedule up to ``step``.
        step: environment steps at the extension.
        after: schedule from there on; its steps count from ``step``.
    """

    before: LabelSchedule
    step: int
    after: LabelSchedule

    def due(self, step: int, seconds: float) -> int:
        """Return how many labels are due, from the schedule that applies at ``step``."""
        if step <= self.step:
            return self.before.due(step, seconds)
        return self.after.due(step - self.step, seconds)


def make_schedule(
    name: ScheduleName | None,
    pretrain: int,
    ends: Sequence[tuple[int, int | None]],
    extended_at: Sequence[int],
) -> LabelSchedule:
    """Return the schedule of a run: by steps if the number of labels is given, else by time.

    Args:
        name: of the schedule by steps; exponential by default.
        pretrain: labels before training.
        ends: environment steps and labels in total, first of the original run, then of each extension; labels
            are None if they are scheduled by time.
        extended_at: environment steps made at each extension.
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
