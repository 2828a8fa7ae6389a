"""Actor-critic networks and action distributions.

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

from agents.errors import InvalidConfigError, UnsupportedSpaceError, one_line

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


class GaussianHead(nn.Module):
    """Diagonal Gaussian distribution over a Box space, with state-independent standard deviations.

    Sampled actions are unbounded; :meth:`executed` clips them to the box for the environment.
    """

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__()
        self.space = space
        self.num_outputs = math.prod(space.shape)
        self.log_std = nn.Parameter(torch.zeros(self.num_outputs))

    def perturbation(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """Draw Gaussian noise ``(*shape, num_outputs)``; ``choose(outputs + noise)`` is a sampled action."""
        noise = rng.standard_normal((*shape, self.num_outputs), dtype=np.float32)
        scaled: NDArray[np.floating[Any]] = noise * self.log_std.detach().exp().cpu().numpy()
        return scaled

    def choose(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the most likely actions ``(batch, *space.shape)`` given the actor's outputs."""
        return outputs.reshape(len(outputs), *self.space.shape)

    def executed(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Convert actions to the environment's format: clipped to the box and cast to the box's dtype."""
        clipped: NDArray[Any] = np.minimum(np.maximum(actions, self.space.low), self.space.high)
        return clipped.astype(self.space.dtype)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the joint action's log-probability and the entropy, both ``(batch,)`` and in nats."""
        standardized = (actions.reshape(outputs.shape) - outputs) * (-self.log_std).exp()
        log_scale = self.log_std.sum() + 0.5 * self.num_outputs * math.log(2 * math.pi)
        entropy = log_scale + 0.5 * self.num_outputs
        return -0.5 * standardized.square().sum(1) - log_scale, entropy.expand(len(outputs))

    def snapshot(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of the current distribution, to pass to :meth:`kl` later."""
        return outputs.detach().clone(), self.log_std.detach().clone()

    def kl(self, old: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Return the KL divergences of the joint action distributions, ``(batch,)``, in nats.

        The direction is ``KL(current || old)``.
        """
        old_means, old_log_std = old
        log_ratio = self.log_std - old_log_std
        standardized = (outputs - old_means) * (-old_log_std).exp()
        return (0.5 * ((2 * log_ratio).exp() + standardized.square() - 1) - log_ratio).sum(1)


class CategoricalHead(nn.Module):
    """Categorical distribution over a Discrete space, parameterized by logits.

    The policy's actions start at 0; the environment's actions start at ``space.start``.
    """

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        super().__init__()
        self.space = space
        self.num_outputs = int(space.n)

    def perturbation(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """Draw Gumbel noise ``(*shape, num_outputs)``; ``choose(outputs + noise)`` is a sampled action.

        The argmax of logits plus Gumbel noise follows the categorical distribution (the Gumbel-max trick,
        Maddison et al. 2014).
        """
        return rng.gumbel(size=(*shape, self.num_outputs))

    def choose(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Return the most likely actions ``(batch,)`` given the actor's outputs."""
        actions: NDArray[np.int64] = outputs.argmax(1)
        return actions

    def executed(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Convert actions to the environment's format: add ``space.start`` and cast to the space's dtype."""
        return (actions + self.space.start).astype(self.space.dtype)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action's log-probability and the entropy, both ``(batch,)`` and in nats."""
        log_probs = outputs.log_softmax(1)
        entropy = -(log_probs.exp() * log_probs).sum(1)
        return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1), entropy

    def snapshot(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of the current distribution, to pass to :meth:`kl` later."""
        return (outputs.detach().log_softmax(1),)

    def kl(self, old: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Return the KL divergences ``KL(current || old)``, ``(batch,)``, in nats."""
        (old_log_probs,) = old
        log_probs = outputs.log_softmax(1)
        return (log_probs.exp() * (log_probs - old_log_probs)).sum(1)


class MultiCategoricalHead(nn.Module):
    """Independent categorical distributions over the components of a MultiDiscrete space.

    The policy's actions start at 0; the environment's actions start at ``space.start``.
    """

    def __init__(self, space: gymnasium.spaces.MultiDiscrete) -> None:
        super().__init__()
        self.space = space
        self._sizes: list[int] = space.nvec.ravel().tolist()
        self.num_outputs = sum(self._sizes)

    def perturbation(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """Draw Gumbel noise ``(*shape, num_outputs)``; ``choose(outputs + noise)`` is a sampled action."""
        return rng.gumbel(size=(*shape, self.num_outputs))

    def choose(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Return the most likely actions ``(batch, *space.shape)`` given the actor's outputs."""
        parts = np.split(outputs, np.cumsum(self._sizes)[:-1], axis=1)
        actions: NDArray[np.int64] = np.stack([part.argmax(1) for part in parts], axis=1)
        return actions.reshape(len(outputs), *self.space.shape)

    def executed(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Convert actions to the environment's format: add ``space.start`` and cast to the space's dtype."""
        return (actions + self.space.start).astype(self.space.dtype)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the joint action's log-probability and the entropy, both ``(batch,)`` and in nats."""
        log_probs = self._log_probs(outputs)
        chosen = [
            part.gather(1, index.unsqueeze(1))
            for part, index in zip(log_probs, actions.flatten(1).T, strict=True)
        ]
        entropies = [-(part.exp() * part).sum(1) for part in log_probs]
        return torch.cat(chosen, 1).sum(1), torch.stack(entropies, 1).sum(1)

    def snapshot(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of the current distribution, to pass to :meth:`kl` later."""
        return self._log_probs(outputs.detach())

    def kl(self, old: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Return the KL divergences of the joint action distributions, ``(batch,)``, in nats.

        The direction is ``KL(current || old)``.
        """
        pairs = zip(self._log_probs(outputs), old, strict=True)
        return torch.stack([(new.exp() * (new - before)).sum(1) for new, before in pairs], 1).sum(1)

    def _log_probs(self, outputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.log_softmax(1) for part in torch.split(outputs, self._sizes, 1))


Head = GaussianHead | CategoricalHead | MultiCategoricalHead


def action_head(space: gymnasium.Space[Any]) -> Head:
    """Create the action head (distribution) for an action space.

    Raises:
        UnsupportedSpaceError: the space is not Discrete, MultiDiscrete or a floating-point Box, or it has
            zero size.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return CategoricalHead(space)
    if 0 not in (space.shape or ()):
        if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
            return GaussianHead(space)
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            return MultiCategoricalHead(space)
    raise UnsupportedSpaceError(
        "The action space must be a non-empty Box of floats, Discrete or MultiDiscrete, "
        f"not {one_line(space)}; wrap the environment."
    )


class Policy(nn.Module, abc.ABC):
    """Base class of policies, which map preprocessed observations to action distributions.

    Attributes:
        head: action distribution.
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
        """Return a function that computes the actor's outputs in NumPy.

        Call this again whenever the parameters change.
        """
        return numpy_function(self.actor, self.activation)


class OwnActorCritic(ActorCritic):
    """Actor-critic with custom networks built by a user's function (``AgentConfig.network``).

    Args:
        shape: shape of a preprocessed observation.
        action_space: a single environment's action space.
        make: function that takes the observation shape and the number of outputs, and returns a module that
            maps ``(batch, *shape)`` to ``(batch, outputs)``.
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
    """Return ``module`` after checking that it maps a batch of zeros to outputs of the head's size.

    Raises:
        InvalidConfigError: ``module`` isn't a torch module, raises an exception, or returns outputs of the
            wrong shape.
    """
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
        gain: scale factor for the orthogonal weights.
        generator: random generator for the weights.

    Returns:
        The layer.
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
    """Create an MLP with ``activation`` after each hidden layer, orthogonal weights and zero biases.

    ``sizes`` lists the number of inputs, hidden units and outputs. ``output_gain`` scales the last layer's
    weights.
    """
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        linear = orthogonal(nn.Linear(inputs, outputs, device="meta"), math.sqrt(2), generator)
        modules += [linear, ACTIVATIONS[activation].module()]
    modules.pop()
    with torch.no_grad():
        linear.weight *= output_gain / math.sqrt(2)
    return nn.Sequential(*modules)
