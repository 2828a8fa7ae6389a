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
    """Relabel ``n`` stored steps: return the predictor's current rewards, ``(n,)``.

    Args:
        predictor: the reward predictor.
        observations: ``(n, *observation_shape)``, unnormalized observation at the start of each step.
        actions: ``(n, *action_shape)``, actions passed to the environment.
        next_observations: ``(n, *observation_shape)``, unnormalized observation that each step returned; for
            an episode's last step, its final observation, not the first one after the reset. Required only if
            ``next_state`` is one of the predictor's inputs.
        terminated: ``(n,)``, Gymnasium's ``terminated`` flag (not ``truncated``) of each step. Required only
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
