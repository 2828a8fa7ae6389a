"""How many labels are due: the pace at which a run asks, counted from its beginning and never falling."""

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
"""From the share of training made, 0 to 1, to how often labels are asked then, in any unit."""

_CELLS = 10_000  # of progress, in each of which the rate is taken as linear
_ROUNDING = 1e-11  # of all labels: more than the sum over cells is off by, so that none is due a step late


@runtime_checkable
class LabelSchedule(Protocol):
    """When how many labels are due."""

    def due(self, step: int, seconds: float) -> int:
        """Labels due in all, those before training included.

        Args:
            step: environment steps of training so far.
            seconds: wall-clock seconds of training so far.
        """


@dataclass(frozen=True)
class ExponentialSchedule:
    """Labels become rarer while the agent learns: rl-teacher's ``LabelAnnealer``.

    ``pretrain + (total - pretrain) * (1 - 0.01 ** (step / num_timesteps))``, rounded down. At the end the
    formula leaves 1 % of the training labels out; those are due with the last step, so that exactly ``total``
    are asked.

    Attributes:
        pretrain: labels before training.
        total: labels in all.
        num_timesteps: environment steps of the whole training.

    Raises:
        ConfigError: more labels before training than in all.
    """

    pretrain: int
    total: int
    num_timesteps: int

    def __post_init__(self) -> None:
        _check_counts(self)

    def due(self, step: int, seconds: float) -> int:
        """See :meth:`LabelSchedule.due`; ``seconds`` do not matter."""
        if step >= self.num_timesteps:
            return self.total
        share = 1 - 0.01 ** (step / self.num_timesteps)
        return self.pretrain + int((self.total - self.pretrain) * share)


@dataclass(frozen=True)
class RateSchedule:
    """Labels at a rate that changes with the progress of training.

    What is due is the integral of the rate, scaled so that exactly ``total`` are due with the last step, and
    rounded down.

    Attributes:
        pretrain: labels before training.
        total: labels in all.
        num_timesteps: environment steps of the whole training.
        rate: finite, nowhere negative, and positive somewhere.

    Raises:
        ConfigError: the rate is not so, or there are more labels before training than in all.
    """

    pretrain: int
    total: int
    num_timesteps: int
    rate: Rate

    def __post_init__(self) -> None:
        _check_counts(self)
        _ = self._shares  # tries the rate now, not hours later in training

    def due(self, step: int, seconds: float) -> int:
        """See :meth:`LabelSchedule.due`; ``seconds`` do not matter."""
        if step >= self.num_timesteps:
            return self.total
        cell, within = divmod(_CELLS * step / self.num_timesteps, 1)
        before, after = self._shares[int(cell) : int(cell) + 2].tolist()
        share = min(before + (after - before) * within, after)  # rounding must not take a label back later
        return self.pretrain + int((self.total - self.pretrain) * min(share + _ROUNDING, 1.0))

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """The share of the labels that is due at the bounds of each cell, from 0 to 1."""
        bounds = np.linspace(0, 1, _CELLS + 1).tolist()
        try:
            rates = np.array([float(self.rate(progress)) for progress in bounds])
        except Exception as error:  # it may raise anything
            raise ConfigError(
                f"the rate of labels failed between 0 and 1: {describe_exception(error)}"
            ) from error
        if not (np.isfinite(rates).all() and rates.min() >= 0 and rates.max() > 0):
            raise ConfigError(
                "expected a rate of labels that is finite and never negative, and positive somewhere between "
                f"0 and 1; got values from {rates.min()} to {rates.max()}"
            )
        rates /= rates.max()
        integral = np.cumsum(np.concatenate([[0.0], (rates[:-1] + rates[1:]) / 2]))
        shares: NDArray[np.float64] = integral / integral[-1]
        return shares


def _check_counts(schedule: ExponentialSchedule | RateSchedule) -> None:
    """Else fewer and fewer labels would be due."""
    fits = 0 <= schedule.pretrain <= schedule.total
    refuse_all(schedule, [("pretrain", fits, f"expected 0 to total ({schedule.total})")], prefix="")


@dataclass(frozen=True)
class ConstantRate:
    """One label every few seconds of training, for as long as training goes on.

    Attributes:
        pretrain: labels before training.
        period: seconds from one label to the next, more than 0.

    Raises:
        ConfigError: the period is not so.
    """

    pretrain: int
    period: float = 3.0

    def __post_init__(self) -> None:
        fits = 0 < self.period < math.inf
        refuse_all(self, [("period", fits, "expected seconds, more than 0")], prefix="")

    def due(self, step: int, seconds: float) -> int:
        """See :meth:`LabelSchedule.due`; ``step`` does not matter."""
        return self.pretrain + int(seconds / self.period)


@dataclass(frozen=True)
class AllAtOnce:
    """All labels are due from the first step on; for a single fit.

    Attributes:
        total: labels.
    """

    total: int

    def due(self, step: int, seconds: float) -> int:
        """See :meth:`LabelSchedule.due`; neither argument matters."""
        return self.total


def named_rate(name: RateName, num_timesteps: int) -> Rate:
    """The rates that a run can be given by name, for a training of so many steps.

    ``hyperbolic`` and ``inverse_quadratic`` are those of imitation, which fall to a half over any training;
    the paper's fall to a half over 2 and 5 million steps, in proportion to ``2e6 / (T + 2e6)`` at step T on
    MuJoCo and ``5e6 / (T + 5e6)`` on Atari (Christiano et al. 2017, appendix A).
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
    """Half of what it is at first where ``progress`` is ``1 / halvings``."""
    return 1.0 / (1.0 + halvings * progress)


@dataclass(frozen=True)
class ExtendedSchedule:
    """The schedule of a run that was given more labels or more steps.

    Attributes:
        before: what was due up to ``step``.
        step: environment steps made when the run was extended.
        after: counts its steps from there.
    """

    before: LabelSchedule
    step: int
    after: LabelSchedule

    def due(self, step: int, seconds: float) -> int:
        """See :meth:`LabelSchedule.due`."""
        if step <= self.step:
            return self.before.due(step, seconds)
        return self.after.due(step - self.step, seconds)


def make_schedule(
    name: ScheduleName | None,
    pretrain: int,
    ends: Sequence[tuple[int, int | None]],
    extended_at: Sequence[int],
) -> LabelSchedule:
    """Return the schedule of a run: by steps where the number of labels is given, else by time.

    Args:
        name: of the schedule by steps; exponential by default.
        pretrain: labels before training.
        ends: environment steps and labels in all, first as the run began, then of each extension; labels are
            None where they are asked by time.
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
