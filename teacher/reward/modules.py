"""Ensembles of arbitrary torch modules, including user-defined networks, with stacked parameters."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from agents.numerics.moments import SMALLEST_STD
from teacher.errors import ConfigError, describe_exception
from teacher.reward.network import FARTHEST_SHIFT, RewardNetwork, mean_and_std, signed_weights, split_rows

ROWS_AT_ONCE = 256
"""Maximum number of steps in a forward pass without gradients."""

MakeNetwork = Callable[[tuple[int, ...]], nn.Module]
"""Function that takes the shape of one step's input and returns a module that computes rewards.

The module maps ``(n, *shape)`` to ``(n,)`` or ``(n, 1)``.
"""


class ModuleEnsemble(RewardNetwork):
    """Ensemble of torch modules with the same architecture, evaluated one after another.

    Args:
        make: factory for one module; called after torch's global random generator is seeded.
        generator: random generator for initial parameters, which differ between members, and for random
            numbers in training, such as dropout masks.
        dimensions: number of axes (``ndim``) of one step's input.
    """

    def __init__(
        self, make: Callable[[], nn.Module], members: int, generator: torch.Generator, dimensions: int
    ) -> None:
        super().__init__()
        self._members = members
        self._generator = generator
        self._dimensions = dimensions
        with seeded(generator):
            networks = [make() for _ in range(members)]
        numbers = dict[str, Tensor]()
        for stacked in stack_module_state(networks):
            numbers |= stacked
        self._names = self._named(numbers)
        self.weights = nn.ParameterDict()
        for key, name in self._names.items():
            if numbers[name].requires_grad:
                self.weights[key] = nn.Parameter(numbers[name])
            else:  # buffers, such as running statistics, and frozen parameters
                self.register_buffer(key, numbers[name])
        # A module without data, called with each member's parameters in turn. The tuple keeps it out of the
        # state.
        self._structure = (networks[0].to("meta"),)
        self.train(mode=False)

    def _named(self, names: Iterable[str]) -> dict[str, str]:
        """Choose attribute names for parameters and buffers; return the original names, keyed by new name."""
        taken = {*dir(self), *dir(nn.ParameterDict), *type(self).__annotations__, "weights"}
        keys = dict[str, str]()
        for name in names:
            key = name.replace(".", "_")
            while key in taken:
                key += "_"
            taken.add(key)
            keys[key] = name
        return keys

    @abstractmethod
    def numbers(self, inputs: Tensor) -> Tensor:
        """Convert standardized inputs ``(n, ...)`` to the float tensor that a module takes as input."""

    def train(self, mode: bool = True) -> Self:
        """Set all members to training mode, or to evaluation mode if ``mode`` is False."""
        self._structure[0].train(mode)
        return super().train(mode)

    def learned(self) -> Sequence[Tensor]:
        """Return the members' stacked parameters and buffers, such as batch-norm statistics."""
        return [*self.parameters(), *(self.get_buffer(key) for key in self._names if key not in self.weights)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return each member's raw reward ``(members, *batch)`` for standardized inputs ``(*batch, ...)``."""
        batch = inputs.shape[: inputs.ndim - self._dimensions]
        if 0 in batch:  # not every module handles empty batches
            return torch.zeros(self._members, *batch, device=inputs.device)
        rows = inputs.reshape(-1, *inputs.shape[len(batch) :])
        rewards = [self._rewards(member, rows) for member in range(self._members)]
        return torch.stack(rewards).view(-1, *batch)

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Return each member's preference logit: the first segment's return minus the second segment's."""
        with seeded(self._generator) if self.training else contextlib.nullcontext():
            rewards = [self._rewards(member, own.flatten(0, 2)) for member, own in enumerate(inputs)]
        signed = signed_weights(step_weights, inputs.shape[:4])
        return (torch.stack(rewards).view(inputs.shape[:4]) * signed).sum(dim=(2, 3))

    def _rewards(self, member: int, rows: Tensor) -> Tensor:
        state = {name: self._tensor(key)[member] for key, name in self._names.items()}
        parts = (rows,) if torch.is_grad_enabled() else split_rows(rows, ROWS_AT_ONCE)
        rewards = [functional_call(self._structure[0], state, (self.numbers(part),)) for part in parts]
        return torch.cat(rewards).squeeze(-1)

    def _tensor(self, key: str) -> Tensor:
        return self.weights[key] if key in self.weights else self.get_buffer(key)


class OwnEnsemble(ModuleEnsemble):
    """Ensemble of reward networks built by a user-supplied factory.

    The networks get images with values from 0 to 1, or standardized feature vectors. The standardization
    statistics are computed in the first fit and then frozen, because RL-Teacher can't know which layer of a
    custom network would have to compensate for a change. Parameters with ``requires_grad=False`` are not
    trained.

    Args:
        shape: shape of one step's input; if it has three dimensions, the input is an image.

    Raises:
        ConfigError: the factory fails, or the module that it returns has no trainable parameters or does not
            output one reward per step.
    """

    input_mean: Tensor
    input_std: Tensor
    adapted: Tensor

    def __init__(
        self, make: MakeNetwork, shape: tuple[int, ...], members: int, generator: torch.Generator
    ) -> None:
        try:
            super().__init__(lambda: make(shape), members, generator, len(shape))
        except (Exception, SystemExit) as error:  # from the user's code
            raise _refusal(shape, describe_exception(error)) from error
        if not self.weights:
            raise _refusal(shape, "a module without trainable parameters")
        self._reads_images = len(shape) == 3
        self.register_buffer("input_mean", torch.zeros(shape[-1]))
        self.register_buffer("input_std", torch.ones(shape[-1]))
        self.register_buffer("adapted", torch.zeros(1))
        example = torch.zeros(2, *shape, dtype=torch.uint8 if self._reads_images else torch.float32)
        try:
            with torch.no_grad():
                rewards = self(example)
        except (Exception, SystemExit) as error:  # from the user's code
            raise _refusal(shape, describe_exception(error)) from error
        if rewards.shape != (members, 2):
            raise _refusal(shape, f"a reward of shape {tuple(rewards.shape[1:])} for two steps")

    def numbers(self, inputs: Tensor) -> Tensor:
        """Scale images to the range 0 to 1; return vectors unchanged."""
        return inputs.float().div_(255) if self._reads_images else inputs

    def standardize(self, features: Tensor) -> Tensor:
        """Standardize vectors; return images unchanged."""
        return features if self._reads_images else (features - self.input_mean) / self.input_std

    @torch.no_grad()
    def adapt(self, features: Iterable[Tensor]) -> None:
        """Compute the statistics for standardizing vectors; do nothing if they were already computed."""
        if self._reads_images or self.adapted:
            return
        mean, std = mean_and_std(features)
        self.input_mean.copy_(mean)
        self.input_std.copy_(torch.where(std > SMALLEST_STD, std, 1.0))
        self.adapted.fill_(1.0)

    @torch.no_grad()
    def recenter(self, moved: Tensor) -> None:
        """Subtract ``moved`` from the input mean, to compensate for subtracting ``moved`` from the features.

        If the resulting mean is more than ``FARTHEST_SHIFT`` standard deviations from 0, it is reset to 0.
        """
        if self.adapted:
            mean = self.input_mean.double() - moved
            is_beyond = (moved != 0) & (mean.abs() > FARTHEST_SHIFT * self.input_std)
            self.input_mean.copy_(torch.where(is_beyond, 0.0, mean))


def _refusal(shape: tuple[int, ...], found: str) -> ConfigError:
    return ConfigError(
        f"custom reward network: expected a function that takes the input shape {shape} and returns a torch "
        f"module with one output per step, got {found}"
    )


@contextlib.contextmanager
def seeded(generator: torch.Generator) -> Iterator[Any]:
    """Return a context manager that seeds torch's global random generator from ``generator``.

    The global generator's previous state is restored on exit.
    """
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
