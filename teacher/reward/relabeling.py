"""Rewards of steps that were made before, such as those in a replay buffer, in parts that fit into memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.data.steps import StepsBatch
from teacher.reward.predictor import RewardPredictor

STEPS_AT_ONCE = 2**14


def relabeled(
    predictor: RewardPredictor,
    observations: NDArray[Any],
    actions: NDArray[Any],
    next_observations: NDArray[Any] | None = None,
    terminated: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Return what a predictor says now of ``n`` steps, ``(n,)``, however many.

    Args:
        predictor: what to ask.
        observations: ``(n, *observation_shape)``, raw, before the steps.
        actions: ``(n, *action_shape)``, as executed.
        next_observations: ``(n, *observation_shape)``, raw, after the steps, at the end of an episode its
            final one; may be None where ``next_state`` is not among the predictor's inputs.
        terminated: ``(n,)``, whether the environment ended the episode, rather than a time limit; may be None
            where that is not among its inputs.

    Raises:
        ConfigError: an input is not given.
        DataError: the steps are of another environment, or their rewards are no finite numbers.
    """
    rewards = np.empty(len(observations))
    for start in range(0, len(rewards), STEPS_AT_ONCE):
        part = slice(start, start + STEPS_AT_ONCE)
        after = None if next_observations is None else next_observations[part]
        ends = None if terminated is None else terminated[part]
        rewards[part] = predictor.step_rewards(StepsBatch(observations[part], actions[part], after, ends))
    return rewards
