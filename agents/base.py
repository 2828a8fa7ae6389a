"""Interface of agents, and the part that all of them share.

Training uses only :class:`Agent`. An algorithm that learns from its own last rollout derives
from :class:`agents.on_policy.OnPolicyAgent`; one that learns from a replay buffer, from :class:`BaseAgent`.
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
from agents.rollout import Rollout

_MOST_UNITS = 4096
_STREAMS = ("rollout_rng", "minibatch_rng", "acting_rng")


@dataclass(frozen=True)
class AgentConfig:
    """Hyperparameters of every agent, named as in CleanRL.

    Attributes:
        num_steps: steps of each environment in a rollout.
        minibatch_size: transitions per gradient step, at least.
        gamma: discount factor per step.
        normalize_observations: scale each component of a vector to mean 0 and variance 1 by the observations
            so far; images are left unchanged. Without it, observations are only cast to single precision,
            which can't resolve small differences far from 0.
        normalize_rewards: divide rewards by the running standard deviation of the discounted return; useful
            for true rewards, whose scale depends on the environment.
        hidden_sizes: units of each hidden layer of actor and critic; not for images.
        activation: activation function of hidden layers; not for images.
        network: makes custom networks for actor and critic: a function of an observation's shape and a number
            of outputs that returns a torch module, ``(batch, *shape)`` to ``(batch, outputs)``.
    """

    num_steps: int = 256
    minibatch_size: int = 64
    gamma: float = 0.99
    normalize_observations: bool = True
    normalize_rewards: bool = False
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    network: MakeNetwork | None = None

    def __post_init__(self) -> None:
        self._require_share("gamma")
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))  # JSON has lists
        if not self.hidden_sizes or not all(1 <= size <= _MOST_UNITS for size in self.hidden_sizes):
            raise InvalidConfigError(
                f"Expected hidden_sizes of 1 to {_MOST_UNITS} units, one or more, got {self.hidden_sizes}."
            )
        if self.activation not in ACTIVATIONS:
            raise InvalidConfigError(
                f"Expected activation {' or '.join(ACTIVATIONS)}, got {self.activation!r}."
            )

    def _require_at_least(self, minimums: Mapping[str, float]) -> None:
        """Raise :class:`InvalidConfigError` for a value below its minimum."""
        for name, minimum in minimums.items():
            if not getattr(self, name) >= minimum:
                raise InvalidConfigError(f"Expected {name} of at least {minimum}, got {getattr(self, name)}.")

    def _require_positive(self, *names: str) -> None:
        """Raise :class:`InvalidConfigError` for a value that is given and not positive."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidConfigError(f"Expected a positive {name}, got {value}.")

    def _require_share(self, *names: str) -> None:
        """Raise :class:`InvalidConfigError` for a value outside of 0 to 1."""
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidConfigError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")


class Agent(Protocol):
    """Interface of an agent for training: collect a rollout, update on any rewards, act, save and load.

    Attributes:
        ranks: the processes that train this agent together; set before the first rollout.
        total_steps: environment steps of all ranks so far.
    """

    ranks: Ranks
    total_steps: int

    @property
    def config(self) -> AgentConfig:
        """Return the hyperparameters."""

    @property
    def policy(self) -> Policy:
        """Return the networks, whose ``state_dict`` holds everything learned except the normalization."""

    @property
    def normalizer(self) -> ObservationPreparation:
        """Return the function that converts raw observations to the policy's inputs."""

    def collect(self, on_step: Callable[[int], None] | None = None) -> Rollout:
        """Step the environments with the current policy; the first call resets them."""

    def update(self, rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        """Train on ``rollout`` with ``rewards`` ``(num_steps, num_envs)``; return metrics by name."""

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Return actions ``(batch, *act)`` for raw observations, without disturbing training."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training continues from: nested dictionaries of arrays and JSON scalars."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""

    def load_policy(self, state: Mapping[str, Any]) -> None:
        """Restore only the policy and the observation normalization from a :meth:`state_dict`."""


class BaseAgent(abc.ABC):
    """Algorithm-independent part of an agent: acting, random numbers, saving and loading.

    Args:
        policy: the networks.
        normalizer: prepares observations for them.
        seed: for all random numbers.
    """

    config: AgentConfig

    def __init__(self, policy: Policy, normalizer: ObservationPreparation, seed: int) -> None:
        self.policy = policy
        self.normalizer = normalizer
        # Separate streams, so that the number of updates or recorded videos does not change a rollout's
        # draws.
        self.rollout_rng, self.minibatch_rng, self.acting_rng = np.random.default_rng(seed).spawn(3)
        self.total_steps = 0
        """Environment steps of all ranks."""
        self.ranks = ALONE
        """Processes that train this agent together; set before the first rollout."""

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Return actions ``(batch, *act)``, in the environment's format, for raw ``(batch, *obs)``.

        Does not disturb training. ``deterministic`` takes the most likely action instead of sampling.
        """
        head = self.policy.head
        outputs = self.policy.actor_function()(self.normalizer(observations))
        if not deterministic:
            outputs = outputs + head.perturbation(self.acting_rng, (len(outputs),))
        return head.executed(head.choose(outputs))

    @property
    @abc.abstractmethod
    def _optimized(self) -> Sequence[Tensor]:
        """Return the parameters that the optimizer updates."""

    @abc.abstractmethod
    def _optimizer_state(self) -> dict[str, Any]:
        """Return arrays and JSON scalars by name."""

    @abc.abstractmethod
    def _load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`_optimizer_state`; an empty state starts over."""

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that training continues from: nested dicts of arrays and scalars."""
        return {
            "policy": to_arrays(self.policy.state_dict()),
            "optimizer": self._optimizer_state(),
            "normalizer": self.normalizer.statistics.state_dict(),
            "random": {name: getattr(self, name).bit_generator.state for name in _STREAMS},
            "total_steps": self.total_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, with new episodes in all environments.

        Raises:
            StateMismatchError: the state is from an agent with other networks or another algorithm; this
                agent is unchanged.
        """
        self._checked_policy(state)
        require_moments(state["optimizer"], self._optimized)
        self.load_policy(state)
        self._load_optimizer_state(state["optimizer"])
        for name in _STREAMS:
            getattr(self, name).bit_generator.state = state["random"][name]
        self.total_steps = int(state["total_steps"])

    def load_policy(self, state: Mapping[str, Any]) -> None:
        """Restore only the policy and the observation normalization from a :meth:`state_dict`.

        The state may be from an agent with another algorithm.

        Raises:
            StateMismatchError: the state is from an agent with other networks, not from an agent, or not
                finite; this agent is unchanged.
        """
        policy, moments = self._checked_policy(state)
        self.policy.load_state_dict(to_tensors(policy))
        self.normalizer.statistics.load_state_dict(moments)

    def _checked_policy(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters and the observations' moments in a state, if they fit this agent."""
        try:
            policy = dict(state["policy"])
            moments = {name: state["normalizer"][name] for name in ("mean", "variance", "count")}
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatchError(
                "Expected the state of an agent; use a file saved by an agent."
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
                raise StateMismatchError(
                    f"Expected finite numbers in {name} of the policy; use another policy."
                )
        return policy, moments

    @torch.no_grad()
    def _require_finite_parameters(self, before: Tensor) -> None:
        """Restore the parameters from ``before`` and raise DivergedError if an update diverged."""
        if parameters_to_vector(self.policy.parameters()).isfinite().all():
            return
        named = list(self.policy.named_parameters())
        diverged = next(name for name, parameter in named if not parameter.isfinite().all())
        sizes = [parameter.numel() for _, parameter in named]
        for (_, parameter), values in zip(named, torch.split(before, sizes), strict=True):
            parameter.copy_(values.view_as(parameter))  # in place, because some are views of one array
        self._load_optimizer_state({})
        raise DivergedError(
            f"Expected finite parameters after an update, got NaN or infinite ones in {diverged}; use a "
            "smaller ent_coef or learning rate, or smaller rewards."
        )


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copy tensors to NumPy arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Copy NumPy arrays to tensors."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def save_adam(optimizer: torch.optim.Adam) -> dict[str, Any]:
    """Copy the moments of each parameter, by its index."""
    moments = optimizer.state_dict()["state"]
    return {str(index): to_arrays(of_one) for index, of_one in moments.items()}


def load_adam(optimizer: torch.optim.Adam, state: Mapping[str, Any]) -> None:
    """Continue from :func:`save_adam`."""
    moments = {int(index): to_tensors(of_one) for index, of_one in state.items()}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def require_moments(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
    """Raise :class:`StateMismatchError` unless a :func:`save_adam` state fits these parameters."""
    expected = {str(index): tuple(parameter.shape) for index, parameter in enumerate(parameters)}
    # An optimizer without steps has no moments.
    given = {index: np.shape(moments["exp_avg"]) for index, moments in state.items()}
    if given and given != expected:
        raise StateMismatchError(
            f"Expected an optimizer of {len(expected)} parameters, got one of {len(given)} or of other "
            "shapes; use the algorithm that saved it."
        )
