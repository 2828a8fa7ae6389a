"""Relabeling of Stable-Baselines3's replay buffers with predicted rewards.

``ReplayBuffer`` and ``DictReplayBuffer`` store arrays ``(steps, num_envs, ...)``. Observations are stored as
the environment returns them, except that images are channels-first. Where an episode ended,
``next_observations`` contains its final observation. Box actions are scaled to [-1, 1]. ``dones`` marks all
episode ends, ``timeouts`` only those due to a time limit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.errors import ConfigError, one_line
from teacher.reward.predictor import STEPS_AT_ONCE, RewardPredictor, relabeled

Space = spaces.Space[Any]

_NEEDED = ("observations", "actions", "rewards", "dones", "timeouts", "size")


@dataclass(frozen=True)
class ReplayFormat:
    """Converts the contents of a replay buffer to the predictor's inputs.

    Attributes:
        observation_space: observation space of one environment, before ``transform``.
        transform: converts an observation to the predictor's input; None for no conversion.
        scaled_actions: True if the buffer stores Box actions scaled to [-1, 1].
    """

    observation_space: Space
    action_space: Space
    transform: Callable[[Any], Any] | None
    scaled_actions: bool

    def relabel(self, buffer: Any, predictor: RewardPredictor) -> int:
        """Replace all rewards in a buffer with predicted ones and return how many were replaced."""
        self._check(buffer, predictor)
        filled = buffer.size()
        rows = max(1, STEPS_AT_ONCE // buffer.rewards.shape[1])
        for start in range(0, filled, rows):
            part = slice(start, min(start + rows, filled))
            after = before = None
            if "next_state" in predictor.inputs:
                after = before = self._observations(buffer.next_observations, part)
            if "state" in predictor.inputs or before is None:  # else a placeholder is enough
                before = self._observations(buffer.observations, part)
            terminated = (buffer.dones[part] * (1 - buffer.timeouts[part])).ravel() > 0
            rewards = relabeled(predictor, before, self._actions(buffer.actions[part]), after, terminated)
            buffer.rewards[part] = rewards.reshape(buffer.rewards[part].shape)
        return int(filled * buffer.rewards.shape[1])

    def _check(self, buffer: Any, predictor: RewardPredictor) -> None:
        if missing := [name for name in _NEEDED if not hasattr(buffer, name)]:
            raise ConfigError(
                "relabel() needs a Stable-Baselines3 replay buffer, such as the model.replay_buffer of an "
                f"SAC, TD3, DDPG or DQN model, but {type(buffer).__name__} has no attribute {missing[0]}; "
                "agents without a replay buffer don't need relabeling"
            )
        if hasattr(buffer, "her_ratio"):
            raise ConfigError(
                f"{type(buffer).__name__} recomputes rewards for relabeled goals (HER), so predicted "
                "rewards would be ignored; use a DictReplayBuffer"
            )
        if getattr(buffer, "optimize_memory_usage", False) and "next_state" in predictor.inputs:
            raise ConfigError(
                "a replay buffer with optimize_memory_usage=True doesn't store the final observations of "
                "episodes, which this predictor uses; make the buffer without that argument, or pass "
                "RewardConfig(inputs='state,action') to the wrapper"
            )
        if "terminated" in predictor.inputs and not getattr(buffer, "handle_timeout_termination", True):
            raise ConfigError(
                "a replay buffer with handle_timeout_termination=False doesn't store truncations, which this "
                "predictor uses; make the buffer without that argument, or choose different predictor inputs "
                "(reward.inputs)"
            )
        found = getattr(buffer, "action_space", self.action_space)
        if "action" in predictor.inputs and found != self.action_space:
            raise ConfigError(
                f"the buffer's action space is {one_line(found)}, but this wrapper's is "
                f"{one_line(self.action_space)}; apply action wrappers before (inside) this one"
            )

    def _observations(self, kept: Any, part: slice) -> NDArray[Any]:
        """Return the observations in the slice ``part``, after applying ``transform`` if it is set.

        The shape is ``(steps * num_envs, *transformed_shape)``.
        """
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
                f"the buffer's observations have the keys {', '.join(kept)}, but this wrapper's observation "
                f"space is {one_line(space)}; apply observation wrappers before (inside) this one"
            )
        columns = {name: _as_returned(array[part], space[name]) for name, array in kept.items()}
        for index in range(len(next(iter(columns.values())))):
            yield {name: column[index] for name, column in columns.items()}

    def _actions(self, kept: NDArray[Any]) -> NDArray[Any]:
        """Undo any scaling of stored actions; return them as ``(steps * num_envs, *action_shape)``."""
        space = self.action_space
        actions: NDArray[Any] = kept.reshape(-1, *(space.shape or ()))
        if self.scaled_actions and isinstance(space, spaces.Box):
            actions = space.low + 0.5 * (actions + 1.0) * (space.high - space.low)
        return actions.astype(space.dtype)


def _as_returned(kept: NDArray[Any], space: Space) -> NDArray[Any]:
    """Reshape stored observations to ``(steps * num_envs, *space.shape)``.

    The stored shape is ``(steps, num_envs, *stored_shape)``.
    """
    shape, found = space.shape or (), kept.shape[2:]
    if not shape and found == (1,):  # Discrete
        return kept.reshape(-1)
    flat: NDArray[Any] = kept.reshape(-1, *found)
    if found == shape:
        return flat
    if len(shape) == 3 and found == (shape[2], *shape[:2]):  # VecTransposeImage moved the channels first
        return flat.transpose(0, 2, 3, 1)
    raise ConfigError(
        f"the buffer's observations have shape {found}, but this wrapper's have shape {shape}; apply "
        "observation wrappers before (inside) this one"
    )
