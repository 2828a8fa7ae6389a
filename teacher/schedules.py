"""How many labels are due: the pace at which a run asks, counted from its beginning and never falling."""

from dataclasses import dataclass
from typing import Protocol


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
    """

    pretrain: int
    total: int
    num_timesteps: int

    def due(self, step: int, seconds: float) -> int:
        """See :meth:`LabelSchedule.due`; ``seconds`` do not matter."""
        if step >= self.num_timesteps:
            return self.total
        share = 1 - 0.01 ** (step / self.num_timesteps)
        return self.pretrain + int((self.total - self.pretrain) * share)


@dataclass(frozen=True)
class ConstantRate:
    """One label every few seconds of training, for as long as training goes on.

    Attributes:
        pretrain: labels before training.
        period: seconds from one label to the next.
    """

    pretrain: int
    period: float = 3.0

    def due(self, step: int, seconds: float) -> int:
        """See :meth:`LabelSchedule.due`; ``step`` does not matter."""
        return self.pretrain + int(seconds / self.period)
