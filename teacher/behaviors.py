"""Goal functions for behaviors that no environment rewards, for use with ``--teacher module:function``.

Each function scores a segment or an episode. An episode's score is the sum of its segments' scores, so a
per-step reward can represent it.
"""

import numpy as np

from teacher.data.steps import Steps

_HEIGHT, _PITCH = 0, 1  # indices in the observations of Hopper, Walker2d and HalfCheetah
_SPIN, _PENDULUM_STEP = 2, 0.05  # index in Pendulum's observations; seconds per Pendulum step
_TARGET, _FINGERTIP_FROM_TARGET = slice(4, 6), slice(8, 10)  # indices in Reacher's observations


def backflip(steps: Steps) -> float:
    """Return the hopper's backward rotation in radians, weighted by its torso's height in meters.

    Forward rotation counts as negative. One flip at a height of 1 m scores 2 pi. The weight makes a flip in
    the air score higher than a roll on the ground.
    """
    before, after = steps.observations, steps.next_observations
    height = (before[:, _HEIGHT] + after[:, _HEIGHT]) / 2
    return float(height @ (before[:, _PITCH] - after[:, _PITCH]))


def counter_clockwise(steps: Steps) -> float:
    """Return the angle in radians that the reacher's fingertip travels around the center.

    Counterclockwise is positive, as seen in the clips, which are filmed from above. The reacher's target is
    ignored.
    """
    observations = np.concatenate([steps.observations, steps.next_observations[-1:]])
    tip = observations[:, _TARGET] + observations[:, _FINGERTIP_FROM_TARGET]
    angle = np.unwrap(np.arctan2(tip[:, 1], tip[:, 0]))
    return float(angle[-1] - angle[0])


def headstand(steps: Steps) -> float:
    """Return the sine of the cheetah's forward pitch, summed over all steps.

    The sine is 1 when the nose points straight down, 0 when the cheetah is on its feet or back, and -1 when
    it is upright on its hind legs.
    """
    return float(np.sin(steps.observations[:, _PITCH]).sum())


def windmill(steps: Steps) -> float:
    """Return the net counterclockwise rotation of Gymnasium's pendulum in radians, as seen in the clips.

    Clockwise rotation counts as negative.
    """
    return float(steps.next_observations[:, _SPIN].sum(dtype=np.float64) * _PENDULUM_STEP)
