"""Relabeling of Stable-Baselines3's replay buffers with predicted rewards.

``ReplayBuffer`` and ``DictReplayBuffer`` store steps by time, then environment: observations as the
environment returns them (images channels-first), the final one where an episode ended; Box actions scaled to
[-1, 1]; ``dones`` for any episode end, and ``timeouts`` for ends by a time limit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.errors import ConfigError, one_line
from teacher.reward.predictor import RewardPredictor
from teacher.reward.relabeling import STEPS_AT_ONCE, relabeled

Space = spaces.Space[Any]

_NEEDED = ("observations", "actions", "rewards", "dones", "timeouts", "size")


@dataclass(frozen=True)
class ReplayFormat:
    """Format of an environment's steps in a replay buffer.

    Attributes:
        observation_space: observation space of one environment, as the agent sees it.
        action_space: action space of one environment.
        transform: turns an observation into the predictor's input; None for no change.
        scaled_actions: True if Box actions are scaled to [-1, 1].
    """

    observation_space: Space
    action_space: Space
    transform: Callable[[Any], Any] | None
    scaled_actions: bool

    def relabel(self, buffer: Any, predictor: RewardPredictor) -> int:
        """Replace the rewards of all steps in a buffer and return their number.

        Raises:
            ConfigError: the buffer is of another kind, lacks inputs of the predictor, or has other spaces.
            DataError: a predicted reward is NaN or infinite.
        """
        self._check(buffer, predictor)
        filled = buffer.size()
        rows = max(1, STEPS_AT_ONCE // buffer.rewards.shape[1])
        for start in range(0, filled, rows):
            part = slice(start, min(start + rows, filled))
            after = before = None
            if "next_state" in predictor.inputs:
                after = before = self._observations(buffer.next_observations, part)
            if "state" in predictor.inputs or before is None:  # otherwise not needed
                before = self._observations(buffer.observations, part)
            terminated = (buffer.dones[part] * (1 - buffer.timeouts[part])).ravel() > 0
            rewards = relabeled(predictor, before, self._actions(buffer.actions[part]), after, terminated)
            buffer.rewards[part] = rewards.reshape(buffer.rewards[part].shape)
        return int(filled * buffer.rewards.shape[1])

    def _check(self, buffer: Any, predictor: RewardPredictor) -> None:
        if missing := [name for name in _NEEDED if not hasattr(buffer, name)]:
            raise ConfigError(
                "expected a replay buffer of Stable-Baselines3, as model.replay_buffer of SAC, TD3, DDPG and "
                f"DQN, got {type(buffer).__name__} without {missing[0]}; other agents need no relabeling"
            )
        if hasattr(buffer, "her_ratio"):
            raise ConfigError(
                f"{type(buffer).__name__} computes its own rewards for relabeled goals, so predicted rewards "
                "would not be used; use a DictReplayBuffer"
            )
        if getattr(buffer, "optimize_memory_usage", False) and "next_state" in predictor.inputs:
            raise ConfigError(
                "a buffer with optimize_memory_usage lacks the final observations of episodes, which this "
                "predictor uses; leave that out, or pass RewardConfig(inputs='state,action')"
            )
        if "terminated" in predictor.inputs and not getattr(buffer, "handle_timeout_termination", True):
            raise ConfigError(
                "a buffer with handle_timeout_termination=False does not record truncations, which this "
                "predictor uses; leave it out, or choose other inputs (reward.inputs)"
            )
        found = getattr(buffer, "action_space", self.action_space)
        if "action" in predictor.inputs and found != self.action_space:
            raise ConfigError(
                f"expected actions of {one_line(self.action_space)} in the buffer, as this wrapper executes, "
                f"got {one_line(found)}; put wrappers of actions inside this one"
            )

    def _observations(self, kept: Any, part: slice) -> NDArray[Any]:
        """Return observations ``(n, *shape)`` as the predictor uses them."""
        if isinstance(kept, Mapping):
            return np.stack([np.asarray(self._transformed(one)) for one in self._dicts(kept, part)])
        flat = _as_returned(kept[part], self.observation_space)
        return flat if self.transform is None else np.stack([self._transformed(one) for one in flat])

    def _transformed(self, observation: Any) -> NDArray[Any]:
        return np.asarray(observation if self.transform is None else self.transform(observation))

    def _dicts(self, kept: Mapping[str, NDArray[Any]], part: slice) -> Iterator[dict[str, Any]]:
        space = self.observation_space
        if not isinstance(space, spaces.Dict) or space.spaces.keys() != kept.keys():
            raise ConfigError(
                f"expected observations of {one_line(space)} in the buffer, as this wrapper returns, got a "
                f"dict of {', '.join(kept)}; put wrappers of observations inside this one"
            )
        columns = {name: _as_returned(array[part], space[name]) for name, array in kept.items()}
        for index in range(len(next(iter(columns.values())))):
            yield {name: column[index] for name, column in columns.items()}

    def _actions(self, kept: NDArray[Any]) -> NDArray[Any]:
        """Return actions ``(n, *action_shape)`` as executed."""
        space = self.action_space
        actions: NDArray[Any] = kept.reshape(-1, *(space.shape or ()))
        if self.scaled_actions and isinstance(space, spaces.Box):
            actions = space.low + 0.5 * (actions + 1.0) * (space.high - space.low)
        return actions.astype(space.dtype)


def _as_returned(kept: NDArray[Any], space: Space) -> NDArray[Any]:
    """Reshape ``(steps, environments, *stored)`` to ``(n, *shape)`` as the environment returned them."""
    shape, found = space.shape or (), kept.shape[2:]
    if not shape and found == (1,):  # Discrete
        return kept.reshape(-1)
    flat: NDArray[Any] = kept.reshape(-1, *found)
    if found == shape:
        return flat
    if len(shape) == 3 and found == (shape[2], *shape[:2]):  # VecTransposeImage put the channels in front
        return flat.transpose(0, 2, 3, 1)
    raise ConfigError(
        f"expected observations of shape {shape} in the buffer, as this wrapper returns, got {found}; put "
        "wrappers of observations inside this one"
    )
