"""Action heads: distributions over actions that the outputs of a policy network parameterize."""

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.errors import UnsupportedSpaceError, one_line


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
        """Return ``KL(current || old)`` of the joint action distributions, ``(batch,)``, in nats."""
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
        """Return ``KL(current || old)`` of the joint action distributions, ``(batch,)``, in nats."""
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
