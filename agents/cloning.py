"""Behavior cloning: train a policy to imitate demonstrations, before or during reinforcement learning.

The workflow follows ``pretrain`` in Stable Baselines 2 (Hill et al. 2018).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor

from agents.base import Agent
from agents.errors import (
    DemonstrationMismatchError,
    InvalidConfigError,
    NonFiniteError,
    UnsupportedSpaceError,
    one_line,
)
from agents.heads import GaussianHead
from agents.normalize import ObservationPreparation
from agents.policy import Policy
from agents.rollout import require_finite
from agents.squashed_gaussian import SquashedGaussianHead

Pairs = tuple[NDArray[Any], NDArray[Any]]
"""Raw observations ``(n, *obs)`` and actions ``(n, *act)`` in the format that the environment accepts.

Discrete actions include the space's ``start`` offset, and may also have shape ``(n, 1)``.
"""

STD_BOUNDS = (0.1, 1.0)
"""Minimum and maximum action standard deviation after cloning.

The minimum keeps some exploration; the maximum equals a new policy's initial standard deviation.
"""
_FLATTEST_SLOPE = 0.1  # of SAC's squashing; where it is flatter, errors say little about the spread
_BoxHead = GaussianHead | SquashedGaussianHead
"""Heads whose cloned actions have errors and standard deviations."""
_HINT = "use demonstrations from the environment that the policy acts in."


class CloningData(Protocol):
    """Interface of a demonstration dataset, split into training and validation data."""

    @property
    def train(self) -> Pairs:
        """Return the observations and actions to train on."""

    @property
    def validation(self) -> Pairs:
        """Return the held-out observations and actions; may be empty."""

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        """Yield one epoch's minibatches as arrays of row indices into ``train``."""


class CloningLoss(NamedTuple):
    """Training and validation losses of one epoch of :func:`clone`, averaged over transitions.

    The loss is the cross-entropy in nats for Discrete and MultiDiscrete actions, and the squared error
    averaged over action dimensions for Box actions.

    Attributes:
        train: mean loss over the epoch's transitions; a minibatch's loss is computed before the gradient
            step on that minibatch.
        validation: loss on held-out data after the epoch; NaN if there is no held-out data.
    """

    epoch: int
    train: float
    validation: float


def clone(
    agent: Agent,
    demonstrations: CloningData,
    n_epochs: int,
    learning_rate: float = 1e-3,
    val_interval: int = 1,
    patience: int | None = None,
) -> list[CloningLoss]:
    """Train the actor to imitate demonstrations, starting from its current weights.

    For Discrete actions, the loss is the cross-entropy; for MultiDiscrete actions, the sum of the components'
    cross-entropies. For Box actions, it is the squared error between the policy's mean action and the
    demonstrated action, averaged over action dimensions. Where the demonstrated action is at a bound,
    predictions beyond that bound count as correct because the environment clips them. SAC's mean actions are
    squashed, and its errors are measured in actions scaled to -1 to 1.

    After training, the standard deviations of Box actions are set to their maximum-likelihood estimates (for
    SAC, approximately), clipped to :data:`STD_BOUNDS`. Otherwise, the large initial standard deviations of an
    untrained policy would drown out the imitated behavior.

    The critic is not trained, but changes if it shares convolutional layers with the actor. Each call uses a
    new Adam optimizer; the agent's own optimizer is unchanged.

    If the agent has no observation statistics yet, they are computed from the training data, and
    reinforcement learning continues to update them. Existing statistics stay unchanged because the actor and
    the critic were trained with them. Don't call this between collecting a rollout and updating on it.

    Args:
        n_epochs: number of training epochs, at least 1.
        val_interval: number of epochs between validations; validation always runs after the last epoch.
        patience: early stopping: stop after this many consecutive validations without improvement, and
            restore the weights with the lowest validation loss. None: train for all epochs and keep the final
            weights.

    Returns:
        The losses of each epoch after which validation ran.

    Raises:
        DemonstrationMismatchError: the demonstrations don't fit the agent's spaces; the agent is unchanged.
        InvalidConfigError: an argument is out of range, or ``patience`` is given without validation data; the
            agent is unchanged.
        NonFiniteError: an observation or the loss is NaN or infinite; the agent is unchanged.
    """
    _check_numbers(n_epochs, learning_rate, val_interval, patience)
    policy, normalizer = agent.policy, agent.normalizer
    if patience is not None and not len(demonstrations.validation[0]):
        raise InvalidConfigError(
            "Early stopping (patience) needs held-out demonstrations, but there are none; hold some out."
        )
    for pairs in (demonstrations.train, demonstrations.validation):
        check_demonstrations(pairs, normalizer.shape, policy.head.space)
    statistics = normalizer.statistics.state_dict()
    if normalizer.statistics.count == 0:
        normalizer.update(demonstrations.train[0])
    train, validation = (
        _inputs_and_targets(policy, normalizer, pairs)
        for pairs in (demonstrations.train, demonstrations.validation)
    )
    optimizer = torch.optim.Adam(policy.actor.parameters(), lr=learning_rate)
    original = best = _weights(policy)
    losses: list[CloningLoss] = []
    lowest, since_lowest = math.inf, 0
    for epoch in range(1, n_epochs + 1):
        train_loss = _train_epoch(policy, optimizer, train, demonstrations.epoch())
        if not math.isfinite(train_loss):
            _restore(policy, original)
            normalizer.statistics.load_state_dict(statistics)
            raise NonFiniteError(f"The loss became {train_loss} in epoch {epoch}; lower the learning rate.")
        if epoch % val_interval and epoch < n_epochs:
            continue
        losses.append(CloningLoss(epoch, train_loss, _validate(policy, validation)))
        if patience is None:
            continue
        since_lowest += 1
        if losses[-1].validation < lowest:
            lowest, since_lowest, best = losses[-1].validation, 0, _weights(policy)
        if since_lowest == patience:
            break
    if patience is not None:
        _restore(policy, best)
    if isinstance(policy.head, _BoxHead):
        _fit_spread(policy, policy.head, *train)
    return losses


def check_demonstrations(pairs: Pairs, observation_shape: tuple[int, ...], action_space: Space[Any]) -> None:
    """Check that demonstrations fit an environment's observation shape and action space.

    Raises:
        DemonstrationMismatchError: a shape, dtype or action value doesn't fit.
        NonFiniteError: an observation is NaN or infinite.
        UnsupportedSpaceError: the action space is not Box, Discrete or MultiDiscrete.
    """
    observations, actions = pairs
    if len(observations) != len(actions):
        raise DemonstrationMismatchError(
            f"The demonstrations have {len(actions)} actions for {len(observations)} observations; "
            "pass one action per observation."
        )
    action_shape = action_space.shape
    if isinstance(action_space, spaces.Discrete):
        actions, action_shape = actions[:, None] if actions.ndim == 1 else actions, (1,)
    elif not isinstance(action_space, spaces.Box | spaces.MultiDiscrete):
        raise UnsupportedSpaceError(
            "Behavior cloning supports only Box, Discrete and MultiDiscrete actions, "
            f"not {one_line(action_space)}."
        )
    for what, array, shape in (
        ("observations", observations, observation_shape),
        ("actions", actions, action_shape),
    ):
        if array.shape[1:] != shape:
            raise DemonstrationMismatchError(
                f"Expected demonstrations with {what} of shape {shape}, got {array.shape[1:]}; {_HINT}"
            )
    if observations.dtype.kind == "f":
        require_finite("demonstrated observations (step, component)", observations)
    if isinstance(action_space, spaces.Box):
        # Integer actions are from a discrete environment, for example CartPole instead of InvertedPendulum.
        if actions.dtype.kind != "f":
            raise DemonstrationMismatchError(
                f"Expected demonstrations with actions of a float dtype, got {actions.dtype}; {_HINT}"
            )
        slack = 1e-6 * np.maximum(1, np.abs(actions))  # allows for rounding in the file
        fits = (actions >= action_space.low - slack) & (actions <= action_space.high + slack)
    else:
        counted = actions - action_space.start
        n = action_space.n if isinstance(action_space, spaces.Discrete) else action_space.nvec
        fits = (counted >= 0) & (counted < n) & (counted % 1 == 0)
    if not fits.all():
        raise DemonstrationMismatchError(
            f"Expected demonstrations with actions in {one_line(action_space)}, got {actions[~fits][0]}; "
            f"{_HINT}"
        )


def _check_numbers(n_epochs: int, learning_rate: float, val_interval: int, patience: int | None) -> None:
    for name, value in (("n_epochs", n_epochs), ("val_interval", val_interval), ("patience", patience)):
        if value is not None and value < 1:
            raise InvalidConfigError(f"{name} must be at least 1, not {value}.")
    if not 0 < learning_rate < math.inf:
        raise InvalidConfigError(f"learning_rate must be positive and finite, not {learning_rate}.")


def _inputs_and_targets(
    policy: Policy, normalizer: ObservationPreparation, pairs: Pairs
) -> tuple[Tensor, Tensor]:
    """Return two tensors: policy inputs, and target actions in the action head's format."""
    observations, actions = pairs
    space: Any = policy.head.space
    if isinstance(space, spaces.Box):
        executed = actions.clip(space.low, space.high).astype(np.float64)
        if isinstance(policy.head, SquashedGaussianHead):
            targets: NDArray[Any] = policy.head.squashed(executed)
        else:
            targets = executed.reshape(len(actions), math.prod(space.shape))
    else:
        targets = actions.reshape(len(actions), *space.shape).astype(np.int64) - space.start
    return policy.tensor(normalizer(observations)), policy.tensor(targets)


def _loss(policy: Policy, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs = policy.actor(inputs)
    if isinstance(policy.head, _BoxHead):
        return _errors(policy.head, outputs, targets).square().mean()
    log_probs, _ = policy.head.log_prob_and_entropy(outputs, targets)
    return -log_probs.mean()


def _errors(head: _BoxHead, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return predicted minus demonstrated actions, ignoring errors that clipping removes.

    The result is 0 wherever the prediction, clipped to the action bounds, equals the demonstrated action.
    """
    if isinstance(head, SquashedGaussianHead):
        return outputs.chunk(2, 1)[0].tanh() - targets
    low, high = (
        torch.as_tensor(bound.ravel(), dtype=outputs.dtype, device=outputs.device)
        for bound in (head.space.low, head.space.high)
    )
    return (outputs - targets).masked_fill(outputs.clamp(low, high) == targets, 0.0)


def _train_epoch(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    train: tuple[Tensor, Tensor],
    minibatches: Iterator[NDArray[np.intp]],
) -> float:
    """Train for one epoch and return the mean loss per transition."""
    inputs, targets = train
    total, count = 0.0, 0
    for minibatch in minibatches:
        rows = torch.from_numpy(minibatch).to(inputs.device)
        loss = _loss(policy, inputs[rows], targets[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        total, count = total + float(loss.detach()) * len(rows), count + len(rows)
    return total / count


def _validate(policy: Policy, validation: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(_loss(policy, *validation)) if len(validation[0]) else math.nan


@torch.no_grad()
def _fit_spread(policy: Policy, head: _BoxHead, inputs: Tensor, targets: Tensor) -> None:
    """Set each action dimension's standard deviation to its RMS error, clipped to :data:`STD_BOUNDS`.

    SAC's standard deviations are those before squashing: its errors are divided by the slope of the squashing
    at the mean. They depend on the observation, but start as the same everywhere.
    """
    outputs = policy.actor(inputs)
    errors = _errors(head, outputs, targets)
    if isinstance(head, SquashedGaussianHead):
        errors /= (1 - outputs.chunk(2, 1)[0].tanh().square()).clamp(min=_FLATTEST_SLOPE)
    log_stds = errors.square().mean(0).sqrt().clamp(*STD_BOUNDS).log()
    if isinstance(head, SquashedGaussianHead):
        last: Any = policy.actor[-1]
        last.weight[head.size :].zero_()
        last.bias[head.size :].copy_(log_stds)
    else:
        head.log_std.copy_(log_stds)


def _weights(policy: Policy) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.actor.parameters()]


def _restore(policy: Policy, weights: list[Tensor]) -> None:
    """Copy ``weights`` into the actor in place, because the NumPy backend may share memory with it."""
    with torch.no_grad():
        for parameter, weight in zip(policy.actor.parameters(), weights, strict=True):
            parameter.copy_(weight)
