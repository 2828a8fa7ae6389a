"""Agent interface that training code uses, and a base class with code shared by all algorithms.

Training code uses only the :class:`Agent` protocol. On-policy algorithms subclass
:class:`agents.on_policy.OnPolicyAgent`; off-policy algorithms subclass :class:`BaseAgent`.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from agents.distributed import ALONE, Ranks
from agents.errors import DivergedError, InvalidConfigError, StateMismatchError
from agents.normalize import ObservationPreparation
from agents.policy import ACTIVATIONS, Activation, MakeNetwork, Policy
from agents.replay import RewardFunction
from agents.rollout import Rollout

_MOST_UNITS = 4096
_STREAMS = ("rollout_rng", "minibatch_rng", "acting_rng")


@dataclass(frozen=True)
class AgentConfig:
    """Hyperparameters common to all agents, named as in CleanRL.

    Attributes:
        gamma: discount factor per step.
        normalize_observations: scale each component of vector observations to mean 0 and variance 1, using
            running statistics. Images are not scaled. If False, observations are only cast to float32, so
            nearby large values may become equal.
        hidden_sizes: number of units in each hidden layer of the actor and the critic; not used for images.
        activation: activation function of the hidden layers; not used for images.
        network: function that builds a custom network, called once for the actor and once for the critic. It
            takes the observation shape and the number of outputs, and returns a torch module that maps
            ``(batch, *shape)`` to ``(batch, outputs)``. None: use the built-in networks.
    """

    gamma: float = 0.99
    normalize_observations: bool = True
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    network: MakeNetwork | None = None

    def __post_init__(self) -> None:
        self._require_share("gamma")
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))  # a list if read from JSON
        if not self.hidden_sizes or not all(1 <= size <= _MOST_UNITS for size in self.hidden_sizes):
            raise InvalidConfigError(
                "hidden_sizes must list one or more layer sizes, each from 1 to "
                f"{_MOST_UNITS}, not {self.hidden_sizes}."
            )
        if self.activation not in ACTIVATIONS:
            raise InvalidConfigError(
                f"activation must be {' or '.join(ACTIVATIONS)}, not {self.activation!r}."
            )

    @property
    def rollout_steps(self) -> int:
        """Return the number of steps per environment in each rollout."""
        raise NotImplementedError

    def _require_at_least(self, minimums: Mapping[str, float]) -> None:
        """Raise :class:`InvalidConfigError` if any of the named fields is NaN or below its minimum."""
        for name, minimum in minimums.items():
            if not getattr(self, name) >= minimum:
                raise InvalidConfigError(f"{name} must be at least {minimum}, not {getattr(self, name)}.")

    def _require_positive(self, *names: str) -> None:
        """Raise :class:`InvalidConfigError` unless each of the named fields is positive or None."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidConfigError(f"{name} must be positive, not {value}.")

    def _require_share(self, *names: str) -> None:
        """Raise :class:`InvalidConfigError` if any of the named fields is NaN or outside ``[0, 1]``."""
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidConfigError(f"{name} must be between 0 and 1, not {getattr(self, name)}.")


class Agent(Protocol):
    """Interface between agents and the training loop.

    An agent collects rollouts, updates its policy, acts, and saves and loads its state.

    Attributes:
        ranks: process group for distributed training of this agent; set it before the first rollout.
        total_steps: total number of environment steps taken, summed over all ranks.
    """

    ranks: Ranks
    total_steps: int

    @property
    def config(self) -> AgentConfig:
        """Return the hyperparameters."""

    @property
    def policy(self) -> Policy:
        """Return the policy module; its ``state_dict`` contains all learned parameters."""

    @property
    def normalizer(self) -> ObservationPreparation:
        """Return the callable that converts raw observations to policy inputs."""

    def collect(self, on_step: Callable[[int], None] | None = None) -> Rollout:
        """Collect a rollout with the current policy. The first call resets the environments."""

    def update(self, rollout: Any, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        """Train on a rollout with ``rewards`` ``(num_steps, num_envs)``, and return metrics keyed by name.

        ``critic_epochs`` is the number of critic-only training epochs to run first; off-policy agents ignore
        it.
        """

    def relabel(self, rewards_of: RewardFunction) -> None:
        """Replace the rewards of all stored transitions, if this agent stores any."""

    def skip_random_actions(self) -> None:
        """Act with the policy from the first step, if this agent would start with random actions."""

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Return actions ``(batch, *act)`` for raw observations.

        If ``deterministic``, returns the most likely actions instead of samples. Uses a separate random
        number generator, so calling this method doesn't affect training.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the full training state as nested dicts of arrays and JSON scalars."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the full training state returned by :meth:`state_dict`."""

    def load_policy(self, state: Mapping[str, Any]) -> None:
        """Load only the policy parameters and observation normalization statistics from a state dict."""


class BaseAgent(abc.ABC):
    """Base class of all agents: acts, owns the random number generators, and saves and loads state."""

    config: AgentConfig

    def __init__(self, policy: Policy, normalizer: ObservationPreparation, seed: int) -> None:
        self.policy = policy
        self.normalizer = normalizer
        # With separate generators, minibatch shuffling and video recording don't change the random numbers
        # drawn for rollouts.
        self.rollout_rng, self.minibatch_rng, self.acting_rng = np.random.default_rng(seed).spawn(3)
        self.total_steps = 0
        """Total number of environment steps taken, summed over all ranks."""
        self.ranks = ALONE
        """Process group for distributed training of this agent; set it before the first rollout."""

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Return actions ``(batch, *act)`` for raw observations ``(batch, *obs)``."""
        head = self.policy.head
        outputs = self.policy.actor_function()(self.normalizer(observations))
        if not deterministic:
            outputs = outputs + head.perturbation(self.acting_rng, (len(outputs),))
        return head.executed(head.choose(outputs))

    def relabel(self, rewards_of: RewardFunction) -> None:  # noqa: B027 (optional)
        """Do nothing: by default, agents store no transitions."""

    def skip_random_actions(self) -> None:  # noqa: B027 (optional)
        """Do nothing: by default, agents act with their policy from the first step."""

    @abc.abstractmethod
    def _require_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Raise :class:`StateMismatchError` if a state of :meth:`_optimizer_state` doesn't fit this agent."""

    @abc.abstractmethod
    def _optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state as a dict of arrays and JSON scalars."""

    @abc.abstractmethod
    def _load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`_optimizer_state`; an empty dict resets the optimizer."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the full training state as nested dicts of arrays and scalars."""
        return {
            "policy": to_arrays(self.policy.state_dict()),
            "optimizer": self._optimizer_state(),
            "normalizer": self.normalizer.statistics.state_dict(),
            "random": {name: getattr(self, name).bit_generator.state for name in _STREAMS},
            "total_steps": self.total_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the full training state returned by :meth:`state_dict`.

        Episodes in progress are not saved: subclasses start new episodes in all environments.

        Raises:
            StateMismatchError: the state is from an agent with different networks or a different algorithm;
                this agent is unchanged.
        """
        self._checked_policy(state)
        self._require_optimizer_state(state["optimizer"])
        self.load_policy(state)
        self._load_optimizer_state(state["optimizer"])
        for name in _STREAMS:
            getattr(self, name).bit_generator.state = state["random"][name]
        self.total_steps = int(state["total_steps"])

    def load_policy(self, state: Mapping[str, Any]) -> None:
        """Load only the policy parameters and observation normalization statistics from a state dict.

        ``state`` is the return value of an agent's :meth:`state_dict`. That agent may use a different
        algorithm.

        Raises:
            StateMismatchError: the state isn't from an agent, doesn't fit this agent's networks, or contains
                NaN or infinite values; this agent is unchanged.
        """
        policy, moments = self._checked_policy(state)
        self.policy.load_state_dict(to_tensors(policy))
        self.normalizer.statistics.load_state_dict(moments)

    def _checked_policy(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the policy parameters and observation statistics in ``state``."""
        try:
            policy = dict(state["policy"])
            moments = {name: state["normalizer"][name] for name in ("mean", "variance", "count")}
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatchError(
                "The saved state has no policy or no observation statistics; use a file saved by an agent."
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
                f"The saved policy's parameter shapes are {theirs}, but this agent needs {ours}; "
                "use the environment and network settings that the policy was trained with."
            )
        for name, array in given.items():
            if np.asarray(array).dtype.kind != "f" or not np.isfinite(array).all():
                raise StateMismatchError(
                    f"The saved policy's {name} has values that are NaN, infinite or not floats; load a "
                    "different policy."
                )
        return policy, moments

    @torch.no_grad()
    def _require_finite_parameters(self, before: Tensor) -> None:
        """Raise :class:`DivergedError` if an update made parameters NaN or infinite.

        Before raising, restores the parameters from the flat vector ``before`` and resets the optimizer.
        """
        if parameters_to_vector(self.policy.parameters()).isfinite().all():
            return
        named = list(self.policy.named_parameters())
        diverged = next(name for name, parameter in named if not parameter.isfinite().all())
        sizes = [parameter.numel() for _, parameter in named]
        for (_, parameter), values in zip(named, torch.split(before, sizes), strict=True):
            parameter.copy_(values.view_as(parameter))  # in place: the NumPy backend shares this memory
        self._load_optimizer_state({})
        raise DivergedError(
            f"Training diverged: an update made {diverged} NaN or infinite. The previous parameters were "
            "restored; use a smaller ent_coef or learning rate, or smaller rewards."
        )


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Convert a dict of tensors to a dict of NumPy arrays (copies) with the same keys."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Convert a dict of NumPy arrays to a dict of tensors (copies) with the same keys."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def save_adam(optimizer: torch.optim.Adam) -> dict[str, Any]:
    """Return copies of Adam's step count and moments, keyed by parameter index."""
    moments = optimizer.state_dict()["state"]
    return {str(index): to_arrays(tensors) for index, tensors in moments.items()}


def load_adam(optimizer: torch.optim.Adam, state: Mapping[str, Any]) -> None:
    """Restore the optimizer state returned by :func:`save_adam`."""
    moments = {int(index): to_tensors(arrays) for index, arrays in state.items()}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def require_moments(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
    """Raise :class:`StateMismatchError` if ``state``, from :func:`save_adam`, doesn't fit ``parameters``.

    An empty state, saved before the first step, always fits.
    """
    expected = {str(index): tuple(parameter.shape) for index, parameter in enumerate(parameters)}
    # Empty if the optimizer has made no step yet.
    given = {index: np.shape(moments["exp_avg"]) for index, moments in state.items()}
    if given and given != expected:
        raise StateMismatchError(
            f"The saved optimizer state's parameter tensors ({len(given)}) differ from this agent's "
            f"({len(expected)}) in number or shape; use the algorithm that saved the state."
        )
