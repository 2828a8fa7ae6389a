"""Behaviors without an environment reward, as functions for ``--teacher module:function``.

Each takes a segment or an episode and returns how much of the behavior it shows. The amounts of consecutive
segments add up to that of the whole, so that per-step rewards can express them.
"""

import numpy as np

from teacher.data.steps import Steps

_HEIGHT, _PITCH = 0, 1  # in observations of hopper, walker and cheetah
_SPIN, _PENDULUM_STEP = 2, 0.05  # in observations of Gymnasium's pendulum; seconds per step
_TARGET, _FINGERTIP_FROM_TARGET = slice(4, 6), slice(8, 10)  # in observations of the reacher


def backflip(steps: Steps) -> float:
    """Return a hopper's backward rotation, weighted by the height of its torso, in radian meters.

    Forward rotation is negative. A flip in the air at a height of 1 m counts 2 pi. Without the weight,
    rolling on the ground would count as much.
    """
    before, after = steps.observations, steps.next_observations
    height = (before[:, _HEIGHT] + after[:, _HEIGHT]) / 2
    return float(height @ (before[:, _PITCH] - after[:, _PITCH]))


def counter_clockwise(steps: Steps) -> float:
    """Return the angle by which a reacher's fingertip moves counter-clockwise around the center, in radians.

    Seen from above, as in its clips. The target does not matter.
    """
    observations = np.concatenate([steps.observations, steps.next_observations[-1:]])
    tip = observations[:, _TARGET] + observations[:, _FINGERTIP_FROM_TARGET]
    angle = np.unwrap(np.arctan2(tip[:, 1], tip[:, 0]))
    return float(angle[-1] - angle[0])


def headstand(steps: Steps) -> float:
    """Return the number of steps for which a cheetah stands on its head, weighted by how upright it is.

    The weight is the sine of its forward pitch: 1 with its nose straight down, 0 on its feet or on its back,
    -1 on its hind legs.
    """
    return float(np.sin(steps.observations[:, _PITCH]).sum())


def windmill(steps: Steps) -> float:
    """Return the angle by which Gymnasium's pendulum turns counter-clockwise in its clips, in radians."""
    return float(steps.next_observations[:, _SPIN].sum(dtype=np.float64) * _PENDULUM_STEP)
