"""Behavior cloning: trains a policy to imitate demonstrations, before or during reinforcement learning.

The workflow is that of ``pretrain`` in Stable Baselines 2 (Hill et al. 2018).
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
from agents.normalize import ObservationPreparation
from agents.policy import GaussianHead, Policy
from agents.rollout import require_finite

Pairs = tuple[NDArray[Any], NDArray[Any]]
"""Raw observations ``(n, *obs)``, and actions ``(n, *act)`` as executed by the environment.

Actions of a Discrete space may also be ``(n, 1)``; they count from the ``start`` of their space.
"""

STD_BOUNDS = (0.1, 1.0)
"""Bounds on a cloned policy's standard deviations: enough to explore, at most a new policy's."""
_HINT = "use demonstrations of the same environment."


class CloningData(Protocol):
    """Demonstrations to clone, split into training and validation pairs."""

    @property
    def train(self) -> Pairs:
        """Return the training pairs."""

    @property
    def validation(self) -> Pairs:
        """Return the validation pairs; may be empty."""

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        """Yield row indices of ``train`` in minibatches."""


class CloningLoss(NamedTuple):
    """Mean losses per transition: nats for choices; squared error, averaged over action dimensions, for Box.

    Attributes:
        epoch: number of epochs of this call so far.
        train: mean over the last epoch's minibatches, each before its gradient step.
        validation: after the epoch; NaN without held-out data.
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

    The loss is the cross-entropy for Discrete actions, summed over the components of MultiDiscrete ones. For
    a Box it is the squared error of the most likely action, which is zero if that action, clipped to the
    bounds, equals the demonstrated one: an expert at a bound may have meant any number beyond it. Afterwards
    the standard deviation of the actions is set to its maximum-likelihood value given these errors, within
    :data:`STD_BOUNDS`, because a new policy's would drown what was learned. The critic is not trained; a
    critic that shares its convolutions with the actor sees them change. Adam starts without moments in each
    call, and does not touch those of the agent.

    An agent that has seen no observations first adds those of ``train`` to its normalization, which
    reinforcement learning continues. The normalization of any other agent stays unchanged, because its critic
    and actor have adapted to it. Clone before a rollout is collected, not between a rollout and its update,
    which would then belong to different policies.

    Args:
        agent: the agent to train.
        demonstrations: training and validation data.
        n_epochs: passes over ``train``, at least 1.
        learning_rate: of Adam.
        val_interval: epochs between validations; the last epoch is always validated.
        patience: stop after this many validations without a new lowest loss, and keep the weights of the
            lowest one. None: train to the end and keep the last weights.

    Returns:
        The losses at each validation.

    Raises:
        DemonstrationMismatchError: they are from another environment; the agent is unchanged.
        InvalidConfigError: a number is out of range; the agent is unchanged.
        NonFiniteError: an observation or the loss is NaN or infinite; the agent is unchanged.
    """
    _check_numbers(n_epochs, learning_rate, val_interval, patience)
    policy, normalizer = agent.policy, agent.normalizer
    if patience is not None and not len(demonstrations.validation[0]):
        raise InvalidConfigError(
            "Expected held-out demonstrations for early stopping, got none; hold some out."
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
    if isinstance(policy.head, GaussianHead):
        _fit_spread(policy, policy.head, *train)
    return losses


def check_demonstrations(pairs: Pairs, observation_shape: tuple[int, ...], action_space: Space[Any]) -> None:
    """Raise :class:`DemonstrationMismatchError` unless demonstrations fit an environment's spaces.

    Args:
        pairs: the demonstrations.
        observation_shape: of the environment.
        action_space: of the environment.

    Raises:
        NonFiniteError: an observation is NaN or infinite.
        UnsupportedSpaceError: the actions are neither a Box nor Discrete nor MultiDiscrete.
    """
    observations, actions = pairs
    if len(observations) != len(actions):
        raise DemonstrationMismatchError(
            f"Expected a demonstrated action for each observation, got {len(actions)} for "
            f"{len(observations)}; use all rows of both."
        )
    action_shape = action_space.shape
    if isinstance(action_space, spaces.Discrete):
        actions, action_shape = actions[:, None] if actions.ndim == 1 else actions, (1,)
    elif not isinstance(action_space, spaces.Box | spaces.MultiDiscrete):
        raise UnsupportedSpaceError(
            f"Expected Box, Discrete or MultiDiscrete actions to clone, got {one_line(action_space)}."
        )
    for what, array, shape in (
        ("observations", observations, observation_shape),
        ("actions", actions, action_shape),
    ):
        if array.shape[1:] != shape:
            raise DemonstrationMismatchError(
                f"Expected demonstrated {what} of shape {shape}, got {array.shape[1:]}; {_HINT}"
            )
    if observations.dtype.kind == "f":
        require_finite("demonstrated observations (step, component)", observations)
    if isinstance(action_space, spaces.Box):
        # Integers of the right shape are choices, such as CartPole's given to InvertedPendulum.
        if actions.dtype.kind != "f":
            raise DemonstrationMismatchError(
                f"Expected demonstrated actions of floats, got {actions.dtype}; {_HINT}"
            )
        slack = 1e-6 * np.maximum(1, np.abs(actions))  # rounding in the file
        fits = (actions >= action_space.low - slack) & (actions <= action_space.high + slack)
    else:
        counted = actions - action_space.start
        n = action_space.n if isinstance(action_space, spaces.Discrete) else action_space.nvec
        fits = (counted >= 0) & (counted < n) & (counted % 1 == 0)
    if not fits.all():
        raise DemonstrationMismatchError(
            f"Expected demonstrated actions of {one_line(action_space)}, got {actions[~fits][0]}; {_HINT}"
        )


def _check_numbers(n_epochs: int, learning_rate: float, val_interval: int, patience: int | None) -> None:
    for name, value in (("n_epochs", n_epochs), ("val_interval", val_interval), ("patience", patience)):
        if value is not None and value < 1:
            raise InvalidConfigError(f"Expected {name} of at least 1, got {value}.")
    if not 0 < learning_rate < math.inf:
        raise InvalidConfigError(f"Expected a positive learning_rate, got {learning_rate}.")


def _inputs_and_targets(
    policy: Policy, normalizer: ObservationPreparation, pairs: Pairs
) -> tuple[Tensor, Tensor]:
    """Return normalized observations ``(n, size)``, and actions in the head's format."""
    observations, actions = pairs
    space: Any = policy.head.space
    if isinstance(space, spaces.Box):
        executed = actions.clip(space.low, space.high).astype(np.float64)
        targets: NDArray[Any] = executed.reshape(len(actions), policy.head.num_outputs)
    else:
        targets = actions.reshape(len(actions), *space.shape).astype(np.int64) - space.start
    return policy.tensor(normalizer(observations)), policy.tensor(targets)


def _loss(policy: Policy, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs = policy.actor(inputs)
    if isinstance(policy.head, GaussianHead):
        return _errors(policy.head, outputs, targets).square().mean()
    log_probs, _ = policy.head.log_prob_and_entropy(outputs, targets)
    return -log_probs.mean()


def _errors(head: GaussianHead, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the most likely actions minus those executed, treating values beyond a bound as the bound."""
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
    """Train for one epoch; return the mean loss per transition."""
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


def _fit_spread(policy: Policy, head: GaussianHead, inputs: Tensor, targets: Tensor) -> None:
    """Set the standard deviation of each action to the root of its mean squared error."""
    with torch.no_grad():
        errors = _errors(head, policy.actor(inputs), targets)
        head.log_std.copy_(errors.square().mean(0).sqrt().clamp(*STD_BOUNDS).log())


def _weights(policy: Policy) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.actor.parameters()]


def _restore(policy: Policy, weights: list[Tensor]) -> None:
    """Set the actor's weights in place: others may hold views of the same memory."""
    with torch.no_grad():
        for parameter, weight in zip(policy.actor.parameters(), weights, strict=True):
            parameter.copy_(weight)
