"""Batched stepping of MuJoCo environments, with all observations and rewards computed in numpy.

When Gymnasium's v5 environments with small models are stepped one by one, Python takes as long as the
physics. Here, only the physics is stepped per environment. The rules below replicate the arithmetic of the v5
classes and of :class:`~teacher.envs.families.FamilyRules` in the same order and with the same dtypes.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from teacher.envs.families import plain_class, resolve_env_id

Array = NDArray[Any]


class Outcome(NamedTuple):
    """Results of one step of ``n`` environments; each array has ``n`` rows."""

    observations: Array
    rewards: Array
    terminated: Array


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


class Simulation(NamedTuple):
    """The ``mujoco.MjModel`` and ``mujoco.MjData`` of one environment."""

    model: Any
    data: Any


class Physics:
    """Steps independent simulations in several threads; each free thread takes the next simulation.

    MuJoCo releases the GIL while it simulates. The caller's thread also steps simulations, and then waits
    only for helpers that have started, so a helper that gets no CPU time does not delay a step.
    """

    def __init__(self, simulations: Sequence[Simulation], frame_skip: int, workers: int) -> None:
        import mujoco  # noqa: PLC0415 - optional package

        self._mj_step = mujoco.mj_step
        self._simulations = simulations
        self._controls = [simulation.data.ctrl for simulation in simulations]
        self._frame_skip = frame_skip
        self._pending: deque[Simulation] = deque()
        self._helpers = [_Helper(self._work) for _ in range(workers - 1)]

    def step(self, controls: NDArray[Any], indices: Sequence[int]) -> None:
        """Step the simulations at ``indices``; leave the others unchanged.

        Args:
            controls: array of shape ``(num_simulations, nu)``; rows that are not in ``indices`` are ignored.

        Raises:
            mujoco.FatalError: a simulation failed in any of the threads.
        """
        for index in indices:
            self._controls[index][:] = controls[index]
        self._pending.extend([self._simulations[index] for index in indices])
        for helper in self._helpers:
            helper.wake()
        try:
            self._work()
        finally:
            self._pending.clear()  # not empty after an error
            for helper in self._helpers:
                helper.wait()

    def close(self) -> None:
        """Stop the helper threads."""
        for helper in self._helpers:
            helper.close()
        self._helpers = []

    def _work(self) -> None:
        while True:
            try:
                model, data = self._pending.popleft()
            except IndexError:
                return
            self._mj_step(model, data, self._frame_skip)


class _Helper:
    """Thread that runs ``work`` once for each call to :meth:`wake`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._busy = threading.Lock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wakes.put(True)

    def wait(self) -> None:
        """If ``work`` is running, wait until it returns; if it failed, re-raise its exception."""
        with self._busy:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        self._wakes.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._wakes.get():
            with self._busy:
                try:
                    self._work()
                except BaseException as error:  # re-raised by wait()
                    self._error = error


def supports(env_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Return True if :class:`BatchedMujoco` can step the environments of ``make_env(env_id, kwargs)``.

    Their class must have a rule. There must be a step limit, and no additional wrappers or other ``kwargs``.
    """
    spec = gym.registry.get(resolve_env_id(env_id))
    if spec is None or spec.additional_wrappers or set(kwargs) - {"max_episode_steps"}:
        return False
    horizon = kwargs.get("max_episode_steps", spec.max_episode_steps)
    return horizon is not None and horizon > 0 and plain_class(spec) in RULES


class BatchedMujoco(SyncVectorEnv[Any, Any]):
    """``SyncVectorEnv`` that steps many MuJoCo environments at once, with bit-identical results.

    It doesn't call the environments' ``step`` methods; resets still go through them and their wrappers.

    Args:
        env_fns: functions that each make the same environment with ``make_env``, for an ID that
            :func:`supports` accepts, optionally wrapped in ``SeededResets``.
        workers: number of simulation threads, including the caller's thread.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]], workers: int = 1) -> None:
        super().__init__(env_fns)
        self._horizon: int = self.envs[0].get_wrapper_attr("_max_episode_steps")
        self._elapsed = np.zeros(self.num_envs, np.int64)
        self._reset_once = False
        physical: list[Any] = [env.unwrapped for env in self.envs]
        self._v5 = physical[0]
        self._rule = RULES[f"{type(self._v5).__module__}:{type(self._v5).__qualname__}"]
        self._dt: float = self._v5.dt
        first = self.envs[0]
        self._family_rule = first.get_wrapper_attr("rule") if first.has_wrapper_attr("rule") else None
        # Views of MuJoCo's state.
        self._qpos: list[Array] = [env.data.qpos for env in physical]
        self._qvel: list[Array] = [env.data.qvel for env in physical]
        self._x = np.zeros(self.num_envs)  # before a step; MuJoCo stores all other state
        simulations = [Simulation(env.model, env.data) for env in physical]
        self._physics = Physics(simulations, self._v5.frame_skip, min(workers, self.num_envs))

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments."""
        outcome = super().reset(seed=seed, options=options)
        self._elapsed[:] = 0
        self._x = self._gathered(self._qpos)[:, 0].copy()
        self._reset_once = True
        return outcome

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments at once, with the same results as ``SyncVectorEnv.step``."""
        actions = np.asarray(actions)
        self._check_may_step(actions)
        resetting = self._autoreset_envs
        observations, rewards, terminated = self._simulate(actions, ~resetting)
        self._elapsed += 1
        truncated = self._elapsed >= self._horizon
        infos: dict[str, Any] = {}
        if resetting.any():
            for index in np.flatnonzero(resetting).tolist():
                infos = self._begin_episode(index, observations, infos)
            rewards[resetting], terminated[resetting], truncated[resetting] = 0.0, False, False
        self._autoreset_envs = terminated | truncated
        return observations, rewards, terminated, truncated, infos

    def _check_may_step(self, actions: Array) -> None:
        if not self._reset_once:
            raise gym.error.ResetNeeded("call reset() before the first step()")
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions must have shape {self.action_space.shape}, not {actions.shape}")

    def _begin_episode(self, index: int, observations: Array, infos: dict[str, Any]) -> dict[str, Any]:
        observations[index], info = self.envs[index].reset()
        self._elapsed[index], self._x[index] = 0, self._qpos[index][0]
        return self._add_info(infos, info, index)

    def _simulate(self, actions: Array, stepping: NDArray[np.bool_]) -> Outcome:
        """Step the environments selected by the mask ``stepping``; the caller ignores the other rows."""
        self._physics.step(actions, np.flatnonzero(stepping).tolist())
        qpos, qvel = self._gathered(self._qpos), self._gathered(self._qvel)
        velocity, self._x = (qpos[:, 0] - self._x) / self._dt, qpos[:, 0].copy()
        outcome = self._rule(self._v5, Motion(actions, velocity, qpos, qvel))
        if self._family_rule is None:
            return outcome
        # The rule indexes one environment's data by component, so each component must be a row here.
        rewards = self._family_rule(outcome.rewards, SimpleNamespace(qpos=qpos.T))
        return Outcome(outcome.observations, rewards, np.zeros(self.num_envs, np.bool_))

    def _gathered(self, views: list[Array]) -> Array:
        return np.concatenate(views).reshape(self.num_envs, -1)

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads and close the environments."""
        if hasattr(self, "_physics"):
            self._physics.close()
        super().close_extras(**kwargs)
