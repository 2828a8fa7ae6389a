"""Reward prediction for many stored steps, such as a replay buffer's, in chunks to limit memory."""

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
    """Return the predictor's current rewards ``(n,)`` for ``n`` stored steps.

    Args:
        predictor: the reward predictor.
        observations: ``(n, *observation_shape)``, unnormalized observations before the steps.
        actions: ``(n, *action_shape)``, actions passed to the environment.
        next_observations: ``(n, *observation_shape)``, unnormalized observations after the steps, including
            each episode's final observation. Required only if ``next_state`` is one of the predictor's
            inputs.
        terminated: ``(n,)``, True where the environment, not a time limit, ended the episode. Required only
            if ``terminated`` is one of the predictor's inputs.

    Raises:
        ConfigError: a required input is missing.
        DataError: the steps do not match the predictor's spaces, or rewards are NaN or infinite.
    """
    rewards = np.empty(len(observations))
    for start in range(0, len(rewards), STEPS_AT_ONCE):
        part = slice(start, start + STEPS_AT_ONCE)
        after = None if next_observations is None else next_observations[part]
        ends = None if terminated is None else terminated[part]
        rewards[part] = predictor.step_rewards(StepsBatch(observations[part], actions[part], after, ends))
    return rewards
