"""Policy of soft actor-critic: a squashed Gaussian actor, twin critics and their targets."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.errors import UnsupportedSpaceError, one_line
from agents.policy import ACTIVATIONS, Activation, ActorFunction, Policy, numpy_function

LOG_STD_BOUNDS = (-20.0, 2.0)
EPSILON = 1e-6  # keeps the logarithm of the squashing's derivative finite, as in Stable-Baselines3


class SquashedGaussianHead(nn.Module):
    """Diagonal Gaussian squashed by tanh and scaled to a Box, with state-dependent standard deviations.

    The actor's outputs are the means and the logarithms of the standard deviations, ``(batch, 2 * size)``.
    Actions are between -1 and 1 until :meth:`executed` scales them to the box.

    Raises:
        UnsupportedSpaceError: the space is not a bounded, non-empty Box of floats.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        if (
            not isinstance(space, gymnasium.spaces.Box)
            or not np.issubdtype(space.dtype, np.floating)
            or 0 in space.shape
            or not space.is_bounded()
        ):
            raise UnsupportedSpaceError(
                f"SAC needs a bounded Box of floats as the action space, not {one_line(space)}; use PPO or "
                "TRPO, or wrap the environment."
            )
        self.space = space
        self.size = math.prod(space.shape)
        self.num_outputs = 2 * self.size
        self._center = (space.high.astype(np.float64) + space.low) / 2
        self._half = (space.high.astype(np.float64) - space.low) / 2

    def perturbation(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Draw standard Gaussian noise ``(*shape, size)`` for :meth:`choose`."""
        return rng.standard_normal((*shape, self.size), dtype=np.float32)

    def choose(self, outputs: NDArray[Any], noise: NDArray[Any] | None = None) -> NDArray[np.floating[Any]]:
        """Return squashed actions ``(batch, size)``: the mode, or samples if ``noise`` is given."""
        means, log_stds = np.split(outputs, 2, axis=1)
        if noise is not None:
            means = means + np.exp(log_stds.clip(*LOG_STD_BOUNDS)) * noise
        actions: NDArray[np.floating[Any]] = np.tanh(means)
        return actions

    def executed(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Scale squashed actions to the box, ``(batch, *space.shape)``, in its dtype."""
        scaled = actions.reshape(len(actions), *self.space.shape) * self._half + self._center
        return scaled.clip(self.space.low, self.space.high).astype(self.space.dtype)

    def squashed(self, executed: NDArray[Any]) -> NDArray[np.float64]:
        """Scale executed actions back to ``(batch, size)`` between -1 and 1; constant components are 0."""
        half = np.where(self._half > 0, self._half, 1.0)
        return ((executed - self._center) / half).reshape(len(executed), self.size)

    def sample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return squashed actions ``(batch, size)`` and their log-probabilities ``(batch,)``.

        Differentiable with respect to ``outputs`` (reparameterization). The log-probabilities include the
        derivative of the squashing (Haarnoja et al. 2018, appendix C).
        """
        means, log_stds = outputs.chunk(2, dim=1)
        log_stds = log_stds.clamp(*LOG_STD_BOUNDS)
        actions = torch.tanh(means + log_stds.exp() * noise)
        gaussian = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
        log_probs = gaussian - torch.log(1 - actions.square() + EPSILON)
        return actions, log_probs.sum(1)


class TwinCritic(nn.Module):
    """Two Q-functions with the same layer sizes, computed together.

    Layers have weights ``(inputs, 2, outputs)`` (the first), ``(2, inputs, outputs)`` (hidden ones), and
    ``(2, 1, inputs)`` (the last), so that each layer of both networks is one matrix product.

    Args:
        sizes: numbers of inputs and of units in each hidden layer.
        generator: random generator of the initial weights, uniform within 1 / sqrt(inputs) as in torch.
    """

    def __init__(self, sizes: Sequence[int], activation: Activation, generator: torch.Generator) -> None:
        super().__init__()
        self.activation = activation
        self._activate = ACTIVATIONS[activation].module()
        shapes: list[tuple[int, ...]] = [(sizes[0], 2, sizes[1])]
        shapes += [(2, inputs, outputs) for inputs, outputs in itertools.pairwise(sizes[1:])]
        shapes += [(2, 1, sizes[-1])]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, shape in zip(sizes, shapes, strict=True):
            outputs = 1 if len(self.weights) == len(shapes) - 1 else shape[2]
            for parameters, size in ((self.weights, shape), (self.biases, (2, 1, outputs))):
                parameters.append(_uniform(size, inputs, generator))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both Q-values ``(2, batch)`` of prepared observations and squashed actions."""
        inputs = torch.cat([observations, actions], 1)
        weight, bias = self.weights[0], self.biases[0]
        joined = torch.addmm(bias.flatten(), inputs, weight.flatten(1))
        hidden = self._activate(joined.view(len(inputs), 2, -1).transpose(0, 1))
        for weight, bias in list(zip(self.weights, self.biases, strict=True))[1:-1]:
            hidden = self._activate(torch.baddbmm(bias, hidden, weight))
        values: Tensor = (hidden * self.weights[-1]).sum(2) + self.biases[-1].squeeze(2)
        return values


class SquashedActorCritic(Policy):
    """Squashed Gaussian actor, twin critics and slowly updated target critics."""

    head: SquashedGaussianHead  # type: ignore[assignment]

    def __init__(
        self,
        observation_size: int,
        action_space: gymnasium.Space[Any],
        generator: torch.Generator,
        hidden_sizes: Sequence[int],
        activation: Activation,
    ) -> None:
        super().__init__()
        self.head = SquashedGaussianHead(action_space)
        self.activation = activation
        sizes = [observation_size, *hidden_sizes]
        self.actor = _mlp([*sizes, self.head.num_outputs], activation, generator)
        sizes[0] += self.head.size
        self._critic_arguments = sizes, activation
        self.critic = TwinCritic(sizes, activation, generator)
        self.target = TwinCritic(sizes, activation, generator)
        self.target.load_state_dict(self.critic.state_dict())
        self.target.requires_grad_(requires_grad=False)

    def reset_critics(self, generator: torch.Generator) -> None:
        """Draw new critics, in place, and copy them to the targets."""
        new = TwinCritic(*self._critic_arguments, generator)
        for critic in (self.critic, self.target):
            critic.load_state_dict(new.state_dict())

    def actor_function(self) -> ActorFunction:
        """Return a function that computes the actor's outputs in NumPy."""
        return numpy_function(self.actor, self.activation)


def _uniform(shape: Sequence[int], inputs: int, generator: torch.Generator) -> nn.Parameter:
    """Create a layer's parameter, uniform within 1 / sqrt(inputs) as by default in torch."""
    return nn.Parameter(torch.empty(*shape).uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator))


def _mlp(sizes: Sequence[int], activation: Activation, generator: torch.Generator) -> nn.Sequential:
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        linear = nn.Linear(inputs, outputs, device="meta")
        for name in ("weight", "bias"):
            setattr(linear, name, _uniform(getattr(linear, name).shape, inputs, generator))
        modules += [linear, ACTIVATIONS[activation].module()]
    return nn.Sequential(*modules[:-1])
