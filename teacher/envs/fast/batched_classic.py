"""Batched stepping of CartPole environments.

CartPole's physics is a few lines of arithmetic, so Python's overhead dominates its run time. The same
arithmetic is done below for all environments at once, in the same order as in Gymnasium's class, so results
are bit-identical. Gymnasium's own ``CartPoleVectorEnv`` is not used, because it draws all initial states from
one generator, so individual episodes could not be replayed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from teacher.envs.fast.batched import Array, BatchedVectorEnv, Outcome, plain_entry_point


def supports(env_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Return True if :class:`BatchedCartPole` can step environments with this ID and ``kwargs``."""
    return plain_entry_point(env_id, kwargs) == "gymnasium.envs.classic_control.cartpole:CartPoleEnv"


class BatchedCartPole(BatchedVectorEnv):
    """Steps many CartPole environments at once, for IDs that :func:`supports` accepts."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        super().__init__(env_fns, autoreset_mode)
        self._physical: list[Any] = [env.unwrapped for env in self.envs]
        cart = self._physical[0]
        self._limits = np.array([[cart.x_threshold], [cart.theta_threshold_radians]])
        self._state = np.zeros((4, self.num_envs))
        """Rows: cart position, cart velocity, pole angle, pole angular velocity. Columns: environments."""

    def _take_over(self, index: int) -> None:
        self._state[:, index] = self._physical[index].state

    def _simulate(self, actions: Array, stepping: NDArray[np.bool_]) -> Outcome:
        if np.count_nonzero((actions != 0) & (actions != 1)):
            raise ValueError(f"CartPole actions must be 0 or 1; got {actions.tolist()}")
        positions, velocities = self._state[::2], self._state[1::2]
        accelerations = self._accelerations(actions, theta=positions[1], theta_dot=velocities[1])
        tau = self._physical[0].tau
        positions += tau * velocities
        velocities += tau * accelerations
        terminated = np.logical_or.reduce(np.abs(positions) > self._limits, axis=0)
        return Outcome(self._state.T.astype(np.float32, order="C"), np.ones(self.num_envs), terminated)

    def _accelerations(self, actions: Array, theta: Array, theta_dot: Array) -> Array:
        """Return the cart's linear acceleration and the pole's angular acceleration, ``(2, num_envs)``."""
        cart, cos, sin = self._physical[0], np.cos(theta), np.sin(theta)
        force = np.where(actions == 1, cart.force_mag, -cart.force_mag)
        temp = (force + cart.polemass_length * np.square(theta_dot) * sin) / cart.total_mass
        pole = (cart.gravity * sin - cos * temp) / (
            cart.length * (4.0 / 3.0 - cart.masspole * np.square(cos) / cart.total_mass)
        )
        return np.array((temp - cart.polemass_length * pole * cos / cart.total_mass, pole))
