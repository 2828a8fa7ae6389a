"""Actor-critic networks, and the action distributions on top of them.

Training runs in torch. A rollout steps a handful of environments at a time, where the overhead of torch
modules outweighs the arithmetic, so there the actor's forward pass is plain NumPy on the same parameters.
For images see :mod:`agents.pixels`.
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
"""Weight ``(inputs, outputs)`` and bias ``(outputs,)``."""

ActorFunction = Callable[[NDArray[Any]], NDArray[np.floating[Any]]]
"""Maps prepared observations ``(batch, ...)`` to the head's outputs ``(batch, num_outputs)``."""

ArrayFunction = Callable[[NDArray[Any]], NDArray[np.floating[Any]]]

MakeNetwork = Callable[[tuple[int, ...], int], nn.Module]
"""Makes a module for the shape of an observation and a number of outputs."""

Activation = Literal["tanh", "relu"]


class _Activation(NamedTuple):
    """An activation function in torch and in NumPy."""

    module: Callable[[], nn.Module]
    array: ArrayFunction


ACTIVATIONS: Mapping[str, _Activation] = {
    "tanh": _Activation(nn.Tanh, np.tanh),
    "relu": _Activation(nn.ReLU, functools.partial(np.maximum, 0.0)),
}

_LayerT = TypeVar("_LayerT", nn.Linear, nn.Conv2d)


class GaussianHead(nn.Module):
    """Diagonal normal distribution over a Box, with a state-independent standard deviation.

    Actions are unbounded; only what the environment executes is clipped to the box.
    """

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__()
        self.space = space
        self.num_outputs = math.prod(space.shape)
        self.log_std = nn.Parameter(torch.zeros(self.num_outputs))

    def perturbation(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """Draw noise ``(*shape, num_outputs)`` such that ``choose(outputs + noise)`` is a sample."""
        noise = rng.standard_normal((*shape, self.num_outputs), dtype=np.float32)
        scaled: NDArray[np.floating[Any]] = noise * self.log_std.detach().exp().cpu().numpy()
        return scaled

    def choose(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the most likely actions ``(batch, *space.shape)`` given the actor's outputs."""
        return outputs.reshape(len(outputs), *self.space.shape)

    def executed(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the actions in the environment's format."""
        clipped: NDArray[Any] = np.minimum(np.maximum(actions, self.space.low), self.space.high)
        return clipped.astype(self.space.dtype)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (nats), both ``(batch,)``, of the joint action."""
        standardized = (actions.reshape(outputs.shape) - outputs) * (-self.log_std).exp()
        log_scale = self.log_std.sum() + 0.5 * self.num_outputs * math.log(2 * math.pi)
        entropy = log_scale + 0.5 * self.num_outputs
        return -0.5 * standardized.square().sum(1) - log_scale, entropy.expand(len(outputs))

    def snapshot(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the current distribution, for :meth:`kl`."""
        return outputs.detach().clone(), self.log_std.detach().clone()

    def kl(self, old: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Return the divergence of the current joint distribution from ``old`` (nats), ``(batch,)``."""
        old_means, old_log_std = old
        log_ratio = self.log_std - old_log_std
        standardized = (outputs - old_means) * (-old_log_std).exp()
        return (0.5 * ((2 * log_ratio).exp() + standardized.square() - 1) - log_ratio).sum(1)


class CategoricalHead(nn.Module):
    """Softmax distribution over a Discrete space.

    Actions count from 0 here, and from ``space.start`` in the environment.
    """

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        super().__init__()
        self.space = space
        self.num_outputs = int(space.n)

    def perturbation(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """Draw noise ``(*shape, num_outputs)`` such that ``choose(outputs + noise)`` is a sample.

        Gumbel noise: the arg max of logits perturbed by it follows their softmax (Maddison et al. 2014).
        """
        return rng.gumbel(size=(*shape, self.num_outputs))

    def choose(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Return the most likely actions ``(batch,)`` given the actor's outputs."""
        actions: NDArray[np.int64] = outputs.argmax(1)
        return actions

    def executed(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the actions in the environment's format."""
        return (actions + self.space.start).astype(self.space.dtype)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (nats), both ``(batch,)``."""
        log_probs = outputs.log_softmax(1)
        entropy = -(log_probs.exp() * log_probs).sum(1)
        return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1), entropy

    def snapshot(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the current distribution, for :meth:`kl`."""
        return (outputs.detach().log_softmax(1),)

    def kl(self, old: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Return the divergence of the current distribution from ``old`` (nats), ``(batch,)``."""
        (old_log_probs,) = old
        log_probs = outputs.log_softmax(1)
        return (log_probs.exp() * (log_probs - old_log_probs)).sum(1)


class MultiCategoricalHead(nn.Module):
    """Independent softmax distributions over the components of a MultiDiscrete space.

    Actions count from 0 here, and from ``space.start`` in the environment.
    """

    def __init__(self, space: gymnasium.spaces.MultiDiscrete) -> None:
        super().__init__()
        self.space = space
        self._sizes: list[int] = space.nvec.ravel().tolist()
        self.num_outputs = sum(self._sizes)

    def perturbation(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        """Draw Gumbel noise, as :meth:`CategoricalHead.perturbation` does, for each component."""
        return rng.gumbel(size=(*shape, self.num_outputs))

    def choose(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Return the most likely actions ``(batch, *space.shape)`` given the actor's outputs."""
        parts = np.split(outputs, np.cumsum(self._sizes)[:-1], axis=1)
        actions: NDArray[np.int64] = np.stack([part.argmax(1) for part in parts], axis=1)
        return actions.reshape(len(outputs), *self.space.shape)

    def executed(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the actions in the environment's format."""
        return (actions + self.space.start).astype(self.space.dtype)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (nats), both ``(batch,)``, of the joint action."""
        log_probs = self._log_probs(outputs)
        chosen = [
            part.gather(1, index.unsqueeze(1))
            for part, index in zip(log_probs, actions.flatten(1).T, strict=True)
        ]
        entropies = [-(part.exp() * part).sum(1) for part in log_probs]
        return torch.cat(chosen, 1).sum(1), torch.stack(entropies, 1).sum(1)

    def snapshot(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the current distribution, for :meth:`kl`."""
        return self._log_probs(outputs.detach())

    def kl(self, old: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Return the divergence of the current joint distribution from ``old`` (nats), ``(batch,)``."""
        pairs = zip(self._log_probs(outputs), old, strict=True)
        return torch.stack([(new.exp() * (new - before)).sum(1) for new, before in pairs], 1).sum(1)

    def _log_probs(self, outputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.log_softmax(1) for part in torch.split(outputs, self._sizes, 1))


Head = GaussianHead | CategoricalHead | MultiCategoricalHead


def action_head(space: gymnasium.Space[Any]) -> Head:
    """Return the distribution for an action space. Raise :class:`UnsupportedSpaceError` for others."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return CategoricalHead(space)
    if 0 not in (space.shape or ()):
        if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
            return GaussianHead(space)
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            return MultiCategoricalHead(space)
    raise UnsupportedSpaceError(
        "Expected a non-empty Box of floats, a Discrete or a MultiDiscrete action space, "
        f"got {one_line(space)}; wrap the environment."
    )


class Policy(nn.Module, abc.ABC):
    """Maps prepared observations ``(batch, ...)`` to distributions over actions.

    Attributes:
        head: the distribution over actions.
        actor: maps observations to the head's outputs ``(batch, num_outputs)``.
    """

    head: Head
    actor: nn.Sequential

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Move ``array`` to the parameters' device; floats are cast to their precision, integers are not."""
        tensor = torch.from_numpy(array)
        parameter = next(self.parameters())
        return tensor.to(parameter.device, parameter.dtype if tensor.is_floating_point() else tensor.dtype)

    @abc.abstractmethod
    def actor_function(self) -> ActorFunction:
        """Return the actor for use outside training. Call again after parameters have changed."""

    def acting_in_torch(self, observations: NDArray[Any]) -> NDArray[np.floating[Any]]:
        """Return the actor's outputs, computed by torch without gradients."""
        with torch.no_grad():
            outputs: NDArray[np.floating[Any]] = self.actor(self.tensor(observations)).cpu().numpy()
            return outputs


class ActorCritic(Policy):
    """Maps prepared observations ``(batch, ...)`` to distributions over actions and to estimated returns.

    Attributes:
        critic: maps observations, or features shared with the actor, to values ``(batch, 1)``.
    """

    critic: nn.Sequential

    def evaluate(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of ``actions``, entropies and values, each ``(batch,)``."""
        log_probs, entropy = self.head.log_prob_and_entropy(self.actor(observations), actions)
        return log_probs, entropy, self.values(observations)

    def values(self, observations: Tensor) -> Tensor:
        """Return estimated returns ``(batch,)``."""
        values: Tensor = self.critic(observations).squeeze(1)
        return values


class MLPActorCritic(ActorCritic):
    """Computes a policy and a value function with separate multi-layer perceptrons.

    All inputs are normalized, flattened observations ``(batch, observation_size)``.
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
        """Return the actor in NumPy. Call again after parameters have changed."""
        linear = [module for module in self.actor if isinstance(module, nn.Linear)]
        layers = [(m.weight.detach().cpu().numpy().T, m.bias.detach().cpu().numpy()) for m in linear]
        return functools.partial(forward, layers, ACTIVATIONS[self.activation].array)


class OwnActorCritic(ActorCritic):
    """Computes a policy and a value function with modules made by a user's function.

    Args:
        shape: of a prepared observation.
        action_space: of one environment.
        make: maps that shape and a number of outputs to a module, ``(batch, *shape)`` to ``(batch,
            outputs)``.
        seed: for their parameters.
    """

    def __init__(
        self, shape: tuple[int, ...], action_space: gymnasium.Space[Any], make: MakeNetwork, seed: int
    ) -> None:
        super().__init__()
        self.head = action_head(action_space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = nn.Sequential(_checked(make(shape, self.head.num_outputs), shape, self.head))
            self.critic = nn.Sequential(make(shape, 1))

    def actor_function(self) -> ActorFunction:
        """Return the actor for use outside training: torch without gradients."""
        return self.acting_in_torch


def _checked(module: Any, shape: tuple[int, ...], head: Head) -> nn.Module:
    """Return the module. Raise :class:`InvalidConfigError` unless it maps a batch to the head's outputs."""
    if not isinstance(module, nn.Module):
        raise InvalidConfigError(f"Expected a torch module as the policy network, got {one_line(module)}.")
    try:
        with torch.no_grad():
            found = tuple(module(torch.zeros(2, *shape)).shape)
    except Exception as error:  # a user's module may raise anything
        raise InvalidConfigError(
            f"The policy network failed on zeros of shape {(2, *shape)}: {one_line(error)}."
        ) from error
    if found != (2, head.num_outputs):
        raise InvalidConfigError(
            f"Expected a policy network with outputs of shape (2, {head.num_outputs}) for two observations, "
            f"got {found}."
        )
    return module


def forward(
    layers: list[Layer], activation: ArrayFunction, inputs: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """Apply linear ``layers`` with ``activation`` between them to inputs ``(batch, inputs)``."""
    *hidden, (weight, bias) = layers
    for w, b in hidden:
        inputs = activation(inputs @ w + b)
    return inputs @ weight + bias


def orthogonal(layer: _LayerT, gain: float, generator: torch.Generator) -> _LayerT:
    """Give a linear or convolutional layer orthogonal weights (Saxe et al. 2014) and zero biases.

    Args:
        layer: made on "meta", because torch's own initialization would draw from the global generator.
        gain: of the weights.
        generator: of the weights.
    """
    for name, parameter in list(layer.named_parameters()):  # to_empty() takes half a second to import sympy
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape, device="cpu")))
    nn.init.orthogonal_(layer.weight, gain, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _mlp(
    sizes: Sequence[int], output_gain: float, generator: torch.Generator, activation: Activation
) -> nn.Sequential:
    """Make linear layers with ``activation`` between them, orthogonal weights and zero biases."""
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        linear = orthogonal(nn.Linear(inputs, outputs, device="meta"), math.sqrt(2), generator)
        modules += [linear, ACTIVATIONS[activation].module()]
    modules.pop()
    with torch.no_grad():
        linear.weight *= output_gain / math.sqrt(2)
    return nn.Sequential(*modules)
