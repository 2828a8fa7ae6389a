"""Goal functions for behaviors that no environment rewards, for ``--teacher module:function``.

Each takes a segment or an episode and returns the amount of the behavior in it. The amounts of consecutive
segments add up to that of the whole, so that a per-step reward can represent them.
"""

import numpy as np

from teacher.data.steps import Steps

_HEIGHT, _PITCH = 0, 1  # in observations of Hopper, Walker2d and HalfCheetah
_SPIN, _PENDULUM_STEP = 2, 0.05  # in observations of Pendulum, and its seconds per step
_TARGET, _FINGERTIP_FROM_TARGET = slice(4, 6), slice(8, 10)  # in observations of Reacher


def backflip(steps: Steps) -> float:
    """Measure a hopper's backward rotation, weighted by its torso's height, in radian meters.

    Forward rotation is negative. A flip in the air at a height of 1 m gives 2 pi. Without the height, rolling
    on the ground would count as much.
    """
    before, after = steps.observations, steps.next_observations
    height = (before[:, _HEIGHT] + after[:, _HEIGHT]) / 2
    return float(height @ (before[:, _PITCH] - after[:, _PITCH]))


def counter_clockwise(steps: Steps) -> float:
    """Measure the angle that a reacher's fingertip moves around the center, in radians.

    Counter-clockwise is positive, seen from above as in its clips. The target does not matter.
    """
    observations = np.concatenate([steps.observations, steps.next_observations[-1:]])
    tip = observations[:, _TARGET] + observations[:, _FINGERTIP_FROM_TARGET]
    angle = np.unwrap(np.arctan2(tip[:, 1], tip[:, 0]))
    return float(angle[-1] - angle[0])


def headstand(steps: Steps) -> float:
    """Count the steps that a cheetah stands on its head, each weighted by the sine of its forward pitch.

    The sine is 1 with its nose straight down, 0 on its feet or on its back, and -1 on its hind legs.
    """
    return float(np.sin(steps.observations[:, _PITCH]).sum())


def windmill(steps: Steps) -> float:
    """Measure the radians that Gymnasium's pendulum turns counter-clockwise, as seen in its clips."""
    return float(steps.next_observations[:, _SPIN].sum(dtype=np.float64) * _PENDULUM_STEP)
