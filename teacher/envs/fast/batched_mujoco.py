"""Batched stepping of MuJoCo environments, with all observations and rewards computed in numpy.

When Gymnasium's v5 environments with small models are stepped one by one, Python takes as long as the
physics. Here, only the physics is stepped per environment. The rules below replicate the arithmetic of the v5
classes and of :class:`~teacher.envs.families.FamilyRules` in the same order and with the same dtypes.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from teacher.envs.families import find_family_rules
from teacher.envs.fast.batched import Array, BatchedVectorEnv, Outcome, plain_entry_point
from teacher.envs.fast.physics import Physics, Simulation


class Motion(NamedTuple):
    """Actions and physics results of one step of ``n`` environments, with one row per environment.

    Attributes:
        actions: actions of the step, in the caller's dtype, shape ``(n, nu)``.
        velocity: mean x velocity of the root during the step, in m/s, shape ``(n,)``.
        qpos: generalized positions after the step, shape ``(n, nq)``.
        qvel: generalized velocities after the step, shape ``(n, nv)``.
    """

    actions: Array
    velocity: Array
    qpos: Array
    qvel: Array


# The first argument is any one of the v5 environments: all have the same weights and ranges.
Rule = Callable[[Any, Motion], Outcome]


def _half_cheetah(env: Any, motion: Motion) -> Outcome:
    return Outcome(_observed(motion.qpos[:, 1:], motion.qvel), _progress(env, motion), _never(motion))


def _swimmer(env: Any, motion: Motion) -> Outcome:
    return Outcome(_observed(motion.qpos[:, 2:], motion.qvel), _progress(env, motion), _never(motion))


def _hopper(env: Any, motion: Motion) -> Outcome:
    state = np.concatenate((motion.qpos[:, 2:], motion.qvel), axis=1)
    bounded = _within(state, env._healthy_state_range).all(axis=1)
    return _stand_or_fall(env, motion, bounded & _is_upright(env, motion))


def _walker2d(env: Any, motion: Motion) -> Outcome:
    return _stand_or_fall(env, motion, _is_upright(env, motion))


def _stand_or_fall(env: Any, motion: Motion, healthy: Array) -> Outcome:
    rewards = env._forward_reward_weight * motion.velocity + healthy * env._healthy_reward
    return Outcome(
        _observed(motion.qpos[:, 1:], np.clip(motion.qvel, -10, 10)),
        rewards - _control_cost(env, motion),
        ~healthy & env._terminate_when_unhealthy,
    )


def _is_upright(env: Any, motion: Motion) -> Array:
    height, angle = motion.qpos[:, 1], motion.qpos[:, 2]
    return _within(height, env._healthy_z_range) & _within(angle, env._healthy_angle_range)


def _observed(positions: Array, velocities: Array) -> Array:
    return np.concatenate((positions, velocities), axis=1)


def _progress(env: Any, motion: Motion) -> Array:
    rewards: Array = env._forward_reward_weight * motion.velocity - _control_cost(env, motion)
    return rewards


def _control_cost(env: Any, motion: Motion) -> Array:
    cost: Array = env._ctrl_cost_weight * np.add.reduce(np.square(motion.actions), axis=1)
    return cost


def _never(motion: Motion) -> Array:
    return np.zeros(len(motion.actions), np.bool_)


def _within(values: Array, limits: tuple[float, float]) -> Array:
    low, high = limits
    inside: Array = (low < values) & (values < high)
    return inside


# Rules by entry point of the class. No rule uses contact forces, so mj_rnePostConstraint is not called.
RULES: Mapping[str, Rule] = {
    "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv": _half_cheetah,
    "gymnasium.envs.mujoco.hopper_v5:HopperEnv": _hopper,
    "gymnasium.envs.mujoco.swimmer_v5:SwimmerEnv": _swimmer,
    "gymnasium.envs.mujoco.walker2d_v5:Walker2dEnv": _walker2d,
}


def supports(env_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Return True if :class:`BatchedMujoco` can step environments with this ID and ``kwargs``."""
    return plain_entry_point(env_id, kwargs) in RULES


class BatchedMujoco(BatchedVectorEnv):
    """Steps many MuJoCo environments at once, for IDs that :func:`supports` accepts.

    Args:
        workers: number of simulation threads, including the caller's thread.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        workers: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        super().__init__(env_fns, autoreset_mode)
        physical: list[Any] = [env.unwrapped for env in self.envs]
        self._v5 = physical[0]
        self._rule = RULES[f"{type(self._v5).__module__}:{type(self._v5).__qualname__}"]
        self._dt: float = self._v5.dt
        self._family = find_family_rules(self.envs[0])
        # Views of MuJoCo's state.
        self._qpos: list[Array] = [env.data.qpos for env in physical]
        self._qvel: list[Array] = [env.data.qvel for env in physical]
        self._x = np.zeros(self.num_envs)
        simulations = [Simulation(env.model, env.data) for env in physical]
        self._physics = Physics(simulations, self._v5.frame_skip, min(workers, self.num_envs))

    def _take_over(self, index: int) -> None:
        self._x[index] = self._qpos[index][0]  # MuJoCo stores all other state

    def _simulate(self, actions: Array, stepping: NDArray[np.bool_]) -> Outcome:
        self._physics.step(actions, np.flatnonzero(stepping).tolist())
        qpos, qvel = self._gathered(self._qpos), self._gathered(self._qvel)
        velocity, self._x = (qpos[:, 0] - self._x) / self._dt, qpos[:, 0].copy()
        outcome = self._rule(self._v5, Motion(actions, velocity, qpos, qvel))
        if self._family is None:
            return outcome
        # The rule indexes one environment's data by component, so each component must be a row here.
        rewards = self._family.rule(outcome.rewards, SimpleNamespace(qpos=qpos.T))
        return Outcome(outcome.observations, rewards, np.zeros(self.num_envs, np.bool_))

    def _gathered(self, views: list[Array]) -> Array:
        return np.concatenate(views).reshape(self.num_envs, -1)

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads and close the environments."""
        if hasattr(self, "_physics"):
            self._physics.close()
        super().close_extras(**kwargs)
