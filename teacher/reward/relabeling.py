"""Rewards of earlier steps, such as those in a replay buffer, computed in parts that fit into memory."""

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
    """Return the predictor's current rewards of ``n`` steps, ``(n,)``, for any ``n``.

    Args:
        predictor: gives the rewards.
        observations: ``(n, *observation_shape)``, raw, before the steps.
        actions: ``(n, *action_shape)``, as executed.
        next_observations: ``(n, *observation_shape)``, raw, after the steps, with final observations at ends
            of episodes; may be None if ``next_state`` is not among the predictor's inputs.
        terminated: ``(n,)``, True where the environment, not a time limit, ended the episode; may be None if
            it is not among the predictor's inputs.

    Raises:
        ConfigError: an input is missing.
        DataError: the steps are from another environment, or their rewards are NaN or infinite.
    """
    rewards = np.empty(len(observations))
    for start in range(0, len(rewards), STEPS_AT_ONCE):
        part = slice(start, start + STEPS_AT_ONCE)
        after = None if next_observations is None else next_observations[part]
        ends = None if terminated is None else terminated[part]
        rewards[part] = predictor.step_rewards(StepsBatch(observations[part], actions[part], after, ends))
    return rewards
