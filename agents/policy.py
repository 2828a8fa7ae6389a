"""Actor-critic networks.

Training uses torch. Rollouts run the MLP actor's forward pass in NumPy with the same parameters, because
with only a few environments, torch's overhead would take longer than the arithmetic. Networks for images
are in :mod:`agents.pixels`.
"""

import abc
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.errors import InvalidConfigError, one_line
from agents.heads import Head, action_head

Layer = tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]
"""Weight ``(inputs, outputs)`` and bias ``(outputs,)`` of a linear layer."""

ActorFunction = Callable[[NDArray[Any]], NDArray[np.floating[Any]]]
"""Maps preprocessed observations ``(batch, ...)`` to actor outputs ``(batch, num_outputs)``."""

ArrayFunction = Callable[[NDArray[Any]], NDArray[np.floating[Any]]]

MakeNetwork = Callable[[tuple[int, ...], int], nn.Module]
"""Function that builds a network module from an observation shape and a number of outputs."""

Activation = Literal["tanh", "relu"]


class _Activation(NamedTuple):
    """Torch and NumPy implementations of an activation function."""

    module: Callable[[], nn.Module]
    array: ArrayFunction


ACTIVATIONS: Mapping[str, _Activation] = {
    "tanh": _Activation(nn.Tanh, np.tanh),
    "relu": _Activation(nn.ReLU, functools.partial(np.maximum, 0.0)),
}

_LayerT = TypeVar("_LayerT", nn.Linear, nn.Conv2d)


class Policy(nn.Module, abc.ABC):
    """Base class of policies, which map preprocessed observations to action distributions.

    Attributes:
        actor: network that maps preprocessed observations ``(batch, ...)`` to the head's inputs,
            ``(batch, num_outputs)``.
    """

    head: Head
    actor: nn.Sequential

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Return ``array`` as a tensor on the parameters' device; floats get the parameters' dtype."""
        tensor = torch.from_numpy(array)
        parameter = next(self.parameters())
        return tensor.to(parameter.device, parameter.dtype if tensor.is_floating_point() else tensor.dtype)

    @abc.abstractmethod
    def actor_function(self) -> ActorFunction:
        """Return a function that computes the actor's outputs without gradients, for rollouts and acting.

        Call this again whenever the parameters change.
        """

    def acting_in_torch(self, observations: NDArray[Any]) -> NDArray[np.floating[Any]]:
        """Compute the actor's outputs ``(batch, num_outputs)`` in torch without gradients."""
        with torch.no_grad():
            outputs: NDArray[np.floating[Any]] = self.actor(self.tensor(observations)).cpu().numpy()
            return outputs


class ActorCritic(Policy):
    """Base class of policies with a critic that estimates state values.

    Attributes:
        critic: network that maps preprocessed observations, or features shared with the actor, to value
            estimates ``(batch, 1)``.
    """

    critic: nn.Sequential

    def evaluate(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-probabilities of ``actions``, the policy's entropies, and the value estimates.

        Each tensor is ``(batch,)``; log-probabilities and entropies are in nats.
        """
        log_probs, entropy = self.head.log_prob_and_entropy(self.actor(observations), actions)
        return log_probs, entropy, self.values(observations)

    def values(self, observations: Tensor) -> Tensor:
        """Return the critic's value estimates ``(batch,)``."""
        values: Tensor = self.critic(observations).squeeze(1)
        return values


class MLPActorCritic(ActorCritic):
    """Actor-critic with separate multi-layer perceptrons for the actor and the critic.

    Inputs are preprocessed (flattened) observations ``(batch, observation_size)``.
    """

    def __init__(
        self,
        observation_size: int,
        action_space: gymnasium.Space[Any],
        generator: torch.Generator,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
    ) -> None:
        super().__init__()
        self.head = action_head(action_space)
        self.activation = activation
        sizes = [observation_size, *hidden_sizes]
        self.actor = _mlp([*sizes, self.head.num_outputs], 0.01, generator, activation)
        self.critic = _mlp([*sizes, 1], 1.0, generator, activation)

    def actor_function(self) -> ActorFunction:
        """Return a function that computes the actor's outputs in NumPy."""
        return numpy_function(self.actor, self.activation)


class OwnActorCritic(ActorCritic):
    """Actor-critic with custom networks built by a user's function (``AgentConfig.network``).

    Args:
        seed: seed for torch's global generator while the networks are built.

    Raises:
        InvalidConfigError: the actor isn't a torch module, raises an exception, or returns outputs of the
            wrong shape.
    """

    def __init__(
        self, shape: tuple[int, ...], action_space: gymnasium.Space[Any], make: MakeNetwork, seed: int
    ) -> None:
        super().__init__()
        self.head = action_head(action_space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = nn.Sequential(_require_actor(make(shape, self.head.num_outputs), shape, self.head))
            self.critic = nn.Sequential(make(shape, 1))

    def actor_function(self) -> ActorFunction:
        """Return a function that computes the actor's outputs in torch without gradients."""
        return self.acting_in_torch


def _require_actor(module: Any, shape: tuple[int, ...], head: Head) -> nn.Module:
    """Return ``module`` after checking that it maps a batch of zeros to outputs of the head's size."""
    if not isinstance(module, nn.Module):
        raise InvalidConfigError(f"The policy network must be a torch module, not {one_line(module)}.")
    try:
        with torch.no_grad():
            found = tuple(module(torch.zeros(2, *shape)).shape)
    except Exception as error:  # a user's module may raise anything
        raise InvalidConfigError(
            f"The policy network failed on zeros of shape {(2, *shape)}: {one_line(error)}."
        ) from error
    if found != (2, head.num_outputs):
        raise InvalidConfigError(
            f"For two observations, the policy network must return outputs of shape (2, {head.num_outputs}), "
            f"not {found}; use the number of outputs that is passed to the function that builds it."
        )
    return module


def numpy_function(mlp: nn.Sequential, activation: Activation) -> ActorFunction:
    """Return a function that computes an MLP's outputs in NumPy, with its current parameters."""
    linear = [module for module in mlp if isinstance(module, nn.Linear)]
    layers = [(m.weight.detach().cpu().numpy().T, m.bias.detach().cpu().numpy()) for m in linear]
    return functools.partial(forward, layers, ACTIVATIONS[activation].array)


def forward(
    layers: list[Layer], activation: ArrayFunction, inputs: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """Compute an MLP's outputs for inputs ``(batch, inputs)``; ``activation`` follows each hidden layer."""
    *hidden, (weight, bias) = layers
    for w, b in hidden:
        inputs = activation(inputs @ w + b)
    return inputs @ weight + bias


def orthogonal(layer: _LayerT, gain: float, generator: torch.Generator) -> _LayerT:
    """Initialize a linear or convolutional layer with orthogonal weights and zero biases.

    Orthogonal initialization is from Saxe et al. (2014).

    Args:
        layer: layer created on the "meta" device, so that torch doesn't initialize it from its global random
            generator. Its parameters are replaced with new ones on the CPU.
    """
    for name, parameter in list(layer.named_parameters()):  # to_empty() would import sympy, half a second
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape, device="cpu")))
    nn.init.orthogonal_(layer.weight, gain, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _mlp(
    sizes: Sequence[int], output_gain: float, generator: torch.Generator, activation: Activation
) -> nn.Sequential:
    """Create an MLP with ``activation`` after each hidden layer, orthogonal weights and zero biases."""
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        linear = orthogonal(nn.Linear(inputs, outputs, device="meta"), math.sqrt(2), generator)
        modules += [linear, ACTIVATIONS[activation].module()]
    modules.pop()
    with torch.no_grad():
        linear.weight *= output_gain / math.sqrt(2)
    return nn.Sequential(*modules)
