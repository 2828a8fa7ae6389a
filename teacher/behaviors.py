"""Behaviors that no environment rewards, as functions for ``--teacher module:function``.

Each takes a segment or an episode and returns how much of the behavior it shows. The amounts of consecutive
segments add up to that of the whole, so that a reward of single steps can account for them.
"""

import numpy as np

from teacher.data.steps import Steps

_HEIGHT, _PITCH = 0, 1  # of a hopper's, a walker's or a cheetah's observation
_SPIN, _PENDULUM_STEP = 2, 0.05  # of Gymnasium's pendulum's, and the seconds that a step of it lasts
_TARGET, _FINGERTIP_FROM_TARGET = slice(4, 6), slice(8, 10)  # of a reacher's


def backflip(steps: Steps) -> float:
    """Measure a hopper's backward rotation, each bit of it times its torso's height; in radian meters.

    Forward rotation is negative. A flip in the air at a height of 1 m is worth 2 pi. If height did not count,
    rolling on the ground would do.
    """
    before, after = steps.observations, steps.next_observations
    height = (before[:, _HEIGHT] + after[:, _HEIGHT]) / 2
    return float(height @ (before[:, _PITCH] - after[:, _PITCH]))


def counter_clockwise(steps: Steps) -> float:
    """Measure radians by which a reacher's fingertip goes round the center, counter-clockwise positive.

    Seen from above, as its clips show it. The target does not matter.
    """
    observations = np.concatenate([steps.observations, steps.next_observations[-1:]])
    tip = observations[:, _TARGET] + observations[:, _FINGERTIP_FROM_TARGET]
    angle = np.unwrap(np.arctan2(tip[:, 1], tip[:, 0]))
    return float(angle[-1] - angle[0])


def headstand(steps: Steps) -> float:
    """Count the steps for which a cheetah stands on its head, each by how upright it is then.

    That is the sine of its forward pitch: 1 with its nose straight down, 0 on its feet or on its back, -1 on
    its hind legs.
    """
    return float(np.sin(steps.observations[:, _PITCH]).sum())


def windmill(steps: Steps) -> float:
    """Measure radians by which Gymnasium's pendulum turns counter-clockwise, as its clips show it."""
    return float(steps.next_observations[:, _SPIN].sum(dtype=np.float64) * _PENDULUM_STEP)
