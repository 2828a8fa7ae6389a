"""What agents that learn from their own rollouts share: collecting, preparing, saving."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from agents.batch import Batch
from agents.critic import Critic
from agents.distributed import ALONE
from agents.errors import DivergedError, InvalidConfigError, ShapeError, StateMismatchError
from agents.normalize import ObservationNormalizer, ObservationPreparation, RewardScaler
from agents.pixels import ImageActorCritic, ImagePreparation, is_image_space
from agents.policy import ActorCritic, TanhActorCritic
from agents.rollout import Rollout, generalized_advantages, require_finite
from agents.sampling import RolloutSampler
from agents.states import require_moments, to_arrays, to_tensors

_STREAMS = ("rollout_rng", "minibatch_rng", "acting_rng")


@dataclass(frozen=True)
class OnPolicyConfig:
    """Hyperparameters of every agent here, named as in CleanRL.

    Attributes:
        num_steps: steps of each environment in a rollout.
        minibatch_size: transitions per gradient step, at least.
        gamma: discount factor per step.
        gae_lambda: bias against variance in the advantages: 0 is one-step, 1 Monte Carlo.
        normalize_observations: bring each component of a vector to mean 0 and variance 1, by what was seen so
            far; images are left as they are. Without it, observations are cast to single precision as they
            are, which tells those far from 0 apart no more.
        normalize_rewards: divide rewards by the running standard deviation of the discounted return; for true
            rewards, whose scale is the environment's own.
        ent_coef: weight of the mean entropy of the policy (nats) beside advantages of standard deviation 1.
    """

    num_steps: int = 256
    minibatch_size: int = 64
    gamma: float = 0.99
    gae_lambda: float = 0.95
    normalize_observations: bool = True
    normalize_rewards: bool = False
    ent_coef: float = 0.0

    def __post_init__(self) -> None:
        # Four steps hold at least two valid transitions: an advantage needs company to be normalised.
        require_at_least(self, {"num_steps": 4, "minibatch_size": 1, "ent_coef": 0})
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidConfigError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")


def require_at_least(config: OnPolicyConfig, minimums: Mapping[str, float]) -> None:
    """Raise :class:`InvalidConfigError` for a value below its minimum."""
    for name, minimum in minimums.items():
        if not getattr(config, name) >= minimum:
            raise InvalidConfigError(f"Expected {name} of at least {minimum}, got {getattr(config, name)}.")


def require_positive(config: OnPolicyConfig, *names: str) -> None:
    """Raise :class:`InvalidConfigError` for a value that is given and not positive."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise InvalidConfigError(f"Expected a positive {name}, got {value}.")


class OnPolicyAgent(abc.ABC):
    """An agent that learns on vector environments: collect, update, and so on.

    Observations of ``uint8`` in two to four dimensions are images, seen by a convolutional network; all
    others are flattened and normalised.

    All randomness comes from ``seed``: the same seed, configuration and environments give the same run.

    Args:
        envs: to collect from.
        config: hyperparameters.
        seed: of everything random.
        device: of the networks.
        dtype: of the networks.

    Raises:
        UnsupportedSpaceError: observations are no Box, or empty; or actions are neither a Box of floats,
            Discrete nor MultiDiscrete.
    """

    config: OnPolicyConfig
    shares_trunk: ClassVar[bool]
    """Whether the actor and the critic of images look through the same convolutions."""
    _fused: bool
    """Whether batches are trained on as arrays, not as tensors."""

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        config: OnPolicyConfig,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.normalizer, policy = _preparation_and_policy(
            envs, generator, normalize=config.normalize_observations, share_trunk=self.shares_trunk
        )
        self.policy = policy.to(device, dtype)
        self.reward_scaler = RewardScaler(envs.num_envs, config.gamma)
        # Apart, so that neither the number of updates nor of recorded videos changes what a rollout draws.
        self.rollout_rng, self.minibatch_rng, self.acting_rng = np.random.default_rng(seed).spawn(3)
        self.sampler = RolloutSampler(envs, self.policy, self.normalizer)
        self.total_steps = 0
        """Environment steps of all ranks."""
        self.ranks = ALONE
        """The processes that train this agent together; to be set before the first rollout."""

    def collect(self, on_step: Callable[[int], None] | None = None) -> Rollout:
        """Step the environments with the present policy; the first call resets them.

        Args:
            on_step: called after each step of all environments with the number of those made.

        Raises:
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        if not self.sampler.started:
            self.sampler.start(self.rollout_rng, self.ranks)
            self.reward_scaler.restart(self.sampler.envs.num_envs)
        rollout = self.sampler.collect(self.config.num_steps, self.rollout_rng, self.ranks, on_step)
        self.total_steps += int(self.ranks.gather(np.array(rollout.num_valid)).sum())
        return rollout

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Actions ``(batch, *act)``, as the environment takes them, for raw observations ``(batch, *obs)``.

        Does not disturb training. ``deterministic`` takes the most likely action in place of a random one.
        """
        head = self.policy.head
        outputs = self.policy.actor_function()(self.normalizer(observations))
        if not deterministic:
            outputs = outputs + head.perturbation(self.acting_rng, (len(outputs),))
        return head.executed(head.choose(outputs))

    def update(self, rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        """Train on ``rollout`` with the given ``rewards`` ``(num_steps, num_envs)``.

        Dummy transitions, and whatever reward they are given, have no influence. The rollout's observations
        enter the normalisation only afterwards.

        Args:
            rollout: of the present policy.
            rewards: in place of the rollout's own.
            critic_epochs: passes over the rollout in which the critic alone is trained, before advantages are
                estimated with it: for rewards that mean something else than those it knows.

        Returns:
            What the algorithm reports (in nats where it is about probabilities), and ``explained_variance``,
            the share of the returns' variance that the rollout's values foresaw.

        Raises:
            NonFiniteError: a reward is NaN or infinite; the agent is unchanged.
            DivergedError: the parameters came to be NaN or infinite; they are as before, and the optimizer
                begins anew.
        """
        rewards = self._prepared_rewards(rollout, rewards)
        before = parameters_to_vector(self.policy.parameters()).detach()  # a copy
        if critic_epochs:
            rollout = self._with_new_values(rollout, rewards, critic_epochs)
        valid = rollout.valid
        batch, advantages, returns = self._batch(rollout, rewards)
        metrics = self._train(batch)
        self._require_finite_parameters(before)
        self.normalizer.update(rollout.observations[valid], self.ranks)
        unexplained, variance = advantages.var(), returns.var()
        metrics["explained_variance"] = float(1.0 - unexplained / variance) if variance > 0 else 0.0
        return metrics

    @torch.no_grad()
    def _require_finite_parameters(self, before: Tensor) -> None:
        """Go back to the parameters from before where an update diverged, so that they can be saved."""
        if parameters_to_vector(self.policy.parameters()).isfinite().all():
            return
        named = list(self.policy.named_parameters())
        diverged = next(name for name, parameter in named if not parameter.isfinite().all())
        sizes = [parameter.numel() for _, parameter in named]
        for (_, parameter), values in zip(named, torch.split(before, sizes), strict=True):
            parameter.copy_(values.view_as(parameter))  # into its place, because some are views of one array
        self._load_optimizer_state({})
        raise DivergedError(
            f"Expected finite parameters after an update, got NaN or infinite ones in {diverged}; use a "
            "smaller ent_coef or learning rate, or smaller rewards."
        )

    def _with_new_values(self, rollout: Rollout, rewards: NDArray[np.float64], epochs: int) -> Rollout:
        """Train the critic alone; the rollout with what it says then.

        Returns reach beyond the rollout by the critic's own values, so they are estimated anew in each epoch.
        """
        critic = self._critic_alone()
        for _ in range(epochs):
            batch, _, _ = self._batch(rollout, rewards)
            if self._fused:
                batch = batch.numpy()
            for minibatch in batch.minibatches(self.config.minibatch_size, self.minibatch_rng):
                critic.step(minibatch, self.ranks)
            rollout = self.sampler.revalued(rollout)
        return rollout

    def _batch(
        self, rollout: Rollout, rewards: NDArray[np.float64]
    ) -> tuple[Batch, NDArray[np.float64], NDArray[np.float64]]:
        """The valid transitions to train on, and the advantages and returns of those of all ranks."""
        advantages = generalized_advantages(rollout, rewards, self.config.gamma, self.config.gae_lambda)
        returns = advantages + rollout.values
        valid, tensor = rollout.valid, self.policy.tensor
        all_advantages, all_returns, own = self._of_all_ranks(advantages, returns, valid)
        batch = Batch(
            observations=tensor(self.normalizer(rollout.observations[valid])),
            actions=tensor(rollout.actions[valid]),
            log_probs=tensor(rollout.log_probs[valid]),
            values=tensor(rollout.values[valid]),
            returns=tensor(returns[valid]),
            advantages=tensor(all_advantages),
            own=own,
        )
        return batch, all_advantages, all_returns

    def _of_all_ranks(
        self, advantages: NDArray[np.float64], returns: NDArray[np.float64], valid: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Advantages and returns of all valid transitions, by time, then environment, and which are our own.

        All are ``(num_steps, num_envs)`` of this rank; what comes back is ``(size,)``.
        """
        gathered = self.ranks.gather(np.stack([advantages, returns, valid]))
        num_steps, num_envs = valid.shape
        # (rank, column, time, environment) to (column, time, environment of all ranks)
        columns = gathered.transpose(1, 2, 0, 3).reshape(3, num_steps, self.ranks.size * num_envs)
        of_all = columns[2].astype(bool)
        rank_of = np.arange(self.ranks.size).repeat(num_envs)
        own = np.broadcast_to(rank_of == self.ranks.rank, of_all.shape)
        return columns[0][of_all], columns[1][of_all], own[of_all]

    @abc.abstractmethod
    def _train(self, batch: Batch) -> dict[str, float]:
        """Change the policy, and say how it went."""

    @abc.abstractmethod
    def _critic_alone(self) -> Critic:
        """Trains the critic and nothing else."""

    @property
    @abc.abstractmethod
    def _optimized(self) -> Sequence[Tensor]:
        """The parameters that the optimizer moves."""

    @abc.abstractmethod
    def _optimizer_state(self) -> dict[str, Any]:
        """Arrays and JSON scalars by name."""

    @abc.abstractmethod
    def _load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`_optimizer_state`."""

    def _prepared_rewards(self, rollout: Rollout, rewards: NDArray[Any]) -> NDArray[np.float64]:
        """Checked, 0 where the rollout is not valid, and scaled where the configuration says so."""
        if rewards.shape != rollout.rewards.shape:
            raise ShapeError(f"Expected rewards of shape {rollout.rewards.shape}, got {rewards.shape}.")
        rewards = np.where(rollout.valid, rewards, 0.0)
        require_finite("rewards (step, environment)", rewards)
        if self.config.normalize_rewards:
            rewards = self.reward_scaler(rewards, rollout.ended, rollout.valid, self.ranks)
        return rewards

    def state_dict(self) -> dict[str, Any]:
        """All that training continues from, as copies: nested dictionaries of arrays and JSON scalars."""
        return {
            "policy": to_arrays(self.policy.state_dict()),
            "optimizer": self._optimizer_state(),
            "normalizer": self.normalizer.statistics.state_dict(),
            "reward_scaler": self.reward_scaler.state_dict(),
            "random": {name: getattr(self, name).bit_generator.state for name in _STREAMS},
            "total_steps": self.total_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, with new episodes in all environments.

        Raises:
            StateMismatchError: the state is of an agent with other networks or of another algorithm; this
                agent is unchanged.
        """
        self._checked_policy(state)
        require_moments(state["optimizer"], self._optimized)
        self.load_policy(state)
        self._load_optimizer_state(state["optimizer"])
        self.reward_scaler.load_state_dict(state["reward_scaler"])
        for name in _STREAMS:
            getattr(self, name).bit_generator.state = state["random"][name]
        self.total_steps = int(state["total_steps"])
        self.sampler.started = False

    def load_policy(self, state: Mapping[str, Any]) -> None:
        """Start from the policy and the observation normalisation of a :meth:`state_dict`, and nothing else.

        That may be of an agent of another algorithm.

        Raises:
            StateMismatchError: the state is of an agent with other networks, not of an agent at all, or not
                finite; this agent is unchanged.
        """
        policy, moments = self._checked_policy(state)
        self.policy.load_state_dict(to_tensors(policy))
        self.normalizer.statistics.load_state_dict(moments)

    def _checked_policy(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parameters and the moments of the observations in a state, if they fit this agent."""
        try:
            policy = dict(state["policy"])
            moments = {name: state["normalizer"][name] for name in ("mean", "variance", "count")}
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatchError(
                "Expected the state of an agent; use one that an agent saved."
            ) from error
        statistics = self.normalizer.statistics
        expected = {**self.policy.state_dict(), "mean": statistics.mean, "variance": statistics.variance}
        given = {**policy, "mean": moments["mean"], "variance": moments["variance"]}
        ours, theirs = (
            {name: tuple(np.shape(array)) for name, array in arrays.items()} for arrays in (expected, given)
        )
        if ours != theirs:
            differing = sorted({name for name, _ in ours.items() ^ theirs.items()})
            ours, theirs = ({n: shapes[n] for n in differing if n in shapes} for shapes in (ours, theirs))
            raise StateMismatchError(
                f"Expected a policy of shapes {ours}, got {theirs}; use the environment it was trained on."
            )
        for name, array in given.items():
            if np.asarray(array).dtype.kind != "f" or not np.isfinite(array).all():
                raise StateMismatchError(f"Expected finite numbers in {name} of the policy; use another one.")
        return policy, moments


def _preparation_and_policy(
    envs: VectorEnv[Any, Any, Any], generator: torch.Generator, *, normalize: bool, share_trunk: bool
) -> tuple[ObservationPreparation, ActorCritic]:
    """The policy for what the environments show, and what its observations go through before."""
    observations, actions = envs.single_observation_space, envs.single_action_space
    if is_image_space(observations):
        images = ImagePreparation(observations)
        return images, ImageActorCritic(images.image_shape, actions, generator, share_trunk=share_trunk)
    normalizer = ObservationNormalizer(observations, learns=normalize)
    return normalizer, TanhActorCritic(normalizer.size, actions, generator)
