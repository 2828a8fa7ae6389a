"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), with Stable-Baselines3's semantics.

Each iteration follows the paper's algorithm 1:

1. ``collect`` steps the environments ``train_freq`` times, with uniform actions until ``learning_starts``.
2. ``update`` adds the transitions with their rewards to the replay buffer (:mod:`agents.replay`), and takes
   ``gradient_steps`` gradient steps (:class:`~agents.sac_step.SACStep`) on minibatches sampled from it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from agents.base import BaseAgent
from agents.errors import InvalidConfigError, UnsupportedSpaceError
from agents.graphed_sac import GraphedSACStep
from agents.normalize import EPSILON, ObservationNormalizer
from agents.numerics.moments import RunningMoments
from agents.pixels import is_image_space
from agents.replay import ReplayBuffer, RewardFunction, Transitions
from agents.rollout import Rollout, mean_metrics
from agents.sac_step import Minibatch, SACConfig, SACStep
from agents.sampling import StepSampler
from agents.squashed_gaussian import SquashedActorCritic, SquashedGaussianHead

MOST_PARTICLES = 4096
"""Maximum number of states to measure distances to; PEBBLE uses all states so far, up to about 10,000."""


def require_spaces(observations: Space[Any], actions: Space[Any]) -> None:
    """Raise :class:`UnsupportedSpaceError` if SAC does not support an environment's spaces."""
    if is_image_space(observations):
        raise UnsupportedSpaceError("SAC needs vector observations, not images; use PPO or TRPO.")
    SquashedGaussianHead(actions)


class SAC(BaseAgent):
    """Soft actor-critic agent for bounded Box actions and vector observations.

    Runs are reproducible: the same seed, configuration and environments give the same results.

    Args:
        allow_fast: on a GPU, take gradient steps as a CUDA graph (:mod:`agents.graphed_sac`).
        buffer_folder: folder for memory-mapped files of the replay buffer; None to keep it in memory.

    Raises:
        InvalidConfigError: the hyperparameters are invalid.
        UnsupportedEnvironmentError: the environment doesn't declare its autoreset mode.
        UnsupportedSpaceError: observations are images or not a Box, or actions are not a bounded Box of
            floats.
    """

    config: SACConfig
    policy: SquashedActorCritic

    def __init__(  # noqa: PLR0913 (those of all agents, and the folder)
        self,
        envs: VectorEnv[Any, Any, Any],
        config: SACConfig,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        allow_fast: bool = True,
        buffer_folder: Path | None = None,
    ) -> None:
        observations, actions = envs.single_observation_space, envs.single_action_space
        require_spaces(observations, actions)
        normalizer = ObservationNormalizer(observations, learns=config.normalize_observations)
        self._generator = torch.Generator().manual_seed(seed)
        sizes = config.hidden_sizes, config.activation
        policy = SquashedActorCritic(normalizer.size, actions, self._generator, *sizes)
        super().__init__(policy.to(device, dtype), normalizer, seed)
        self.config = config
        self.buffer = ReplayBuffer(observations, actions, config.buffer_size, buffer_folder)
        self.sampler = StepSampler(envs)
        self._state_entropy = StateEntropy()
        self._starts_randomly = True
        graphed = allow_fast and next(policy.parameters()).is_cuda
        self._step = (GraphedSACStep if graphed else SACStep)(self.policy, config)

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Return actions as :meth:`Agent.act` says; deterministic ones are squashed means."""
        head = self.policy.head
        outputs = self.policy.actor_function()(self.normalizer(observations))
        noise = None if deterministic else head.perturbation(self.acting_rng, (len(outputs),))
        return head.executed(head.choose(outputs, noise))

    def collect(self, on_step: Callable[[int], None] | None = None) -> Rollout:
        """Step every environment ``train_freq`` times. The first call resets the environments.

        Raises:
            InvalidConfigError: several processes train this agent.
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        if self.ranks.size > 1:
            raise InvalidConfigError(
                "SAC trains in a single process; start it without torchrun, or use PPO or TRPO."
            )
        if not self.sampler.started:
            self.sampler.start(self.rollout_rng)
        head, actor = self.policy.head, self.policy.actor_function()
        num_envs, num_steps = self.sampler.envs.num_envs, self.config.train_freq
        noise = head.perturbation(self.rollout_rng, (num_steps, num_envs))
        uniform = self.rollout_rng.uniform(-1.0, 1.0, (num_steps, num_envs, head.size))

        def choose(t: int, observations: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            if self._starts_randomly and self.total_steps + t * num_envs < self.config.learning_starts:
                actions: NDArray[Any] = uniform[t]
            else:
                actions = head.choose(actor(self.normalizer(observations)), noise[t])
            return actions, head.executed(actions)

        rollout, _ = self.sampler.steps(num_steps, choose, on_step)
        self.total_steps += rollout.num_valid
        return rollout

    def update(self, rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        """Add a rollout with the given ``rewards`` ``(num_steps, num_envs)`` to the buffer, and train.

        Args:
            rollout: rollout to add; dummy transitions are ignored.
            critic_epochs: ignored; critics train on relabeled transitions (:meth:`relabel`) anyway.

        Returns:
            Means over this update's gradient steps of ``critic_loss``, ``actor_loss``, ``ent_coef``, and
            ``entropy`` (in nats, of squashed actions). Empty before ``learning_starts``.

        Raises:
            ShapeError: ``rewards`` doesn't have the shape of the rollout's rewards; the agent is unchanged.
            NonFiniteError: a reward is NaN or infinite; the agent is unchanged.
            DivergedError: the update made parameters NaN or infinite. The previous parameters are restored,
                and the optimizers are reset.
        """
        self._add(rollout, rollout.checked(rewards))
        return self._train(rollout.num_valid, explores=False)

    def _add(self, rollout: Rollout, rewards: NDArray[Any]) -> None:
        """Add the valid transitions of a rollout to the buffer, and update the observation statistics."""
        valid = rollout.valid
        self.buffer.add(
            Transitions(
                rollout.observations[valid],
                rollout.executed_actions[valid],
                rollout.next_observations[valid],
                rewards[valid],
                rollout.terminated[valid],
            )
        )
        self.normalizer.update(rollout.observations[valid])

    def explore(self, rollout: Rollout) -> dict[str, float]:
        """Add a rollout to the buffer with rewards of 0, and train for one update on state entropy instead.

        Returns:
            The same metrics as :meth:`update`.
        """
        self._add(rollout, np.zeros(rollout.rewards.shape))
        return self._train(rollout.num_valid, explores=True)

    def _train(self, added: int, *, explores: bool) -> dict[str, float]:
        """Take gradient steps on minibatches from the buffer, and return mean metrics."""
        config, size = self.config, self.policy.head.size
        count = added if config.gradient_steps < 0 else config.gradient_steps
        if self.total_steps < config.learning_starts or count == 0:
            return {}
        before = parameters_to_vector(self.policy.parameters()).detach()
        drawn = self.buffer.sample(count * config.batch_size, self.minibatch_rng)
        batches = self._minibatches(drawn)
        if explores:
            batches[3] = self._state_entropies(batches[0])
        noise = self.minibatch_rng.standard_normal((count, 2, config.batch_size, size), dtype=np.float32)
        steps: list[Mapping[str, Any]] = []
        for *columns, batch_noise in zip(*batches, self.policy.tensor(noise), strict=True):
            steps.append(self._step(Minibatch(*columns), batch_noise))
        self._require_finite_parameters(before)
        return mean_metrics(steps, self.ranks)

    def _minibatches(self, drawn: Transitions) -> list[tuple[Tensor, ...]]:
        """Return the columns of :class:`Minibatch` as tensors, each split into minibatches."""
        columns = (
            self.normalizer(drawn.observations),
            self.policy.head.squashed(drawn.actions),
            self.normalizer(drawn.next_observations),
            drawn.rewards,
            drawn.terminated.astype(np.float32),
        )
        return [torch.split(self.policy.tensor(column), self.config.batch_size) for column in columns]

    def _state_entropies(self, observations: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the state entropy rewards of minibatches of prepared observations."""
        visited = self.buffer.sample(min(len(self.buffer), MOST_PARTICLES), self.minibatch_rng).observations
        particles = self.policy.tensor(self.normalizer(visited))
        return tuple(self._state_entropy(minibatch, particles) for minibatch in observations)

    def skip_random_actions(self) -> None:
        """Act with the policy from the first step, instead of with random actions until ``learning_starts``.

        Training still starts after ``learning_starts`` transitions.
        """
        self._starts_randomly = False

    def relabel(self, rewards_of: RewardFunction) -> None:
        """Replace the rewards of all transitions in the replay buffer."""
        self.buffer.relabel(rewards_of)

    def reset_critics(self) -> None:
        """Replace the critics and target critics by new ones, and reset their optimizer.

        Useful after training on a reward that is no longer wanted, as in PEBBLE (Lee et al. 2021).
        """
        self.policy.reset_critics(self._generator)
        self._step.reset_critic_optimizer()

    def _require_optimizer_state(self, state: Mapping[str, Any]) -> None:
        self._step.require_state(state)

    def _optimizer_state(self) -> dict[str, Any]:
        return self._step.state_dict()

    def _load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        self._step.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the full training state; transitions in files are flushed instead of copied."""
        return {**super().state_dict(), "buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state as :meth:`BaseAgent.load_state_dict` does; missing transitions are refused too."""
        self.buffer.load_state_dict(state["buffer"])
        super().load_state_dict(state)
        self.sampler.started = False


class StateEntropy:
    """Rewards states by their distance to the k-th nearest of the states visited so far.

    The distance is divided by its running standard deviation, as in B-Pref's code; the paper's equation 5 has
    the logarithm of the distance instead.

    Args:
        k: which neighbor to measure the distance to (PEBBLE: 5).
    """

    def __init__(self, k: int = 5) -> None:
        self._k = k
        self._statistics = RunningMoments()

    def __call__(self, states: Tensor, visited: Tensor) -> Tensor:
        """Return the reward of each state, ``(n,)``.

        Args:
            states: states to reward, ``(n, size)``.
            visited: states visited so far, ``(m, size)``; may include ``states``.
        """
        k = min(self._k + 1, len(visited))  # the nearest of the visited states is usually the state itself
        distances = torch.cdist(states, visited).kthvalue(k, dim=1).values
        self._statistics.update(distances.cpu().numpy())
        return distances / float((self._statistics.variance + EPSILON) ** 0.5)
