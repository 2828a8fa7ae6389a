"""Ensembles of arbitrary torch modules with stacked parameters, including user-defined networks."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from teacher.data.precision import SMALLEST_STD
from teacher.errors import ConfigError, describe_exception
from teacher.reward.network import FARTHEST_SHIFT, RewardNetwork, mean_and_std, signed_weights

ROWS_AT_ONCE = 256
"""Maximum rows per forward pass without gradients."""

MakeNetwork = Callable[[tuple[int, ...]], nn.Module]
"""Makes a module, ``(n, *shape)`` to ``(n,)`` or ``(n, 1)``, for the shape of one step's input."""


class ModuleEnsemble(RewardNetwork):
    """``members`` modules of the same structure, evaluated one after the other.

    In training, each member has its own minibatch.

    Args:
        make: makes one module; its random numbers come from ``generator``.
        members: number of modules.
        generator: draws the initial parameters, differently for each member, and the modules' random numbers.
        dimensions: number of dimensions of one step's input.
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
            else:  # statistics and frozen parameters
                self.register_buffer(key, numbers[name])
        # One module on the meta device, which takes each member's parameters in turn; not in the state.
        self._structure = (networks[0].to("meta"),)
        self.train(mode=False)

    def _named(self, names: Iterable[str]) -> dict[str, str]:
        """Return attribute names for the modules' parameters and buffers, distinct from existing ones."""
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
        """Return the module's inputs for rows of what :meth:`standardize` returned."""

    def train(self, mode: bool = True) -> Self:
        """Set training mode for modules such as dropout; ``False`` sets evaluation mode."""
        self._structure[0].train(mode)
        return super().train(mode)

    def learned(self) -> Sequence[Tensor]:
        """Return the parameters and the buffers that training changes, such as batch-norm statistics."""
        return [*self.parameters(), *(self.get_buffer(key) for key in self._names if key not in self.weights)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the raw reward of each step by each member.

        Args:
            inputs: ``(*batch, ...)``, shared by all members.

        Returns:
            ``(members, *batch)``.
        """
        batch = inputs.shape[: inputs.ndim - self._dimensions]
        if 0 in batch:  # not every module handles empty batches
            return torch.zeros(self._members, *batch, device=inputs.device)
        rows = inputs.reshape(-1, *inputs.shape[len(batch) :])
        rewards = [self._rewards(member, rows) for member in range(self._members)]
        return torch.stack(rewards).view(-1, *batch)

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """See :meth:`RewardNetwork.logits`."""
        with seeded(self._generator) if self.training else contextlib.nullcontext():
            rewards = [self._rewards(member, own.flatten(0, 2)) for member, own in enumerate(inputs)]
        signed = signed_weights(step_weights, inputs.shape[:4])
        return (torch.stack(rewards).view(inputs.shape[:4]) * signed).sum(dim=(2, 3))

    def _rewards(self, member: int, rows: Tensor) -> Tensor:
        """Return one member's rewards of ``(n, ...)`` inputs, ``(n,)``."""
        state = {name: self._tensor(key)[member] for key, name in self._names.items()}
        parts = (rows,) if torch.is_grad_enabled() else torch.split(rows, ROWS_AT_ONCE)
        rewards = [functional_call(self._structure[0], state, (self.numbers(part),)) for part in parts]
        return torch.cat(rewards).squeeze(-1)

    def _tensor(self, key: str) -> Tensor:
        return self.weights[key] if key in self.weights else self.get_buffer(key)


class OwnEnsemble(ModuleEnsemble):
    """Networks made by a user's function, for images (uint8, scaled to 0 to 1) or vectors.

    Parameters without ``requires_grad`` stay frozen. Vectors are standardized with the statistics of the
    first preferences only, because no known layer could compensate for a later change.

    Args:
        make: the user's function.
        shape: shape of one step's input.
        members: number of networks.
        generator: draws initial parameters and the modules' random numbers.

    Raises:
        ConfigError: the function fails, or its module does not return one reward per step.
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
        """Scale images to 0 to 1; return vectors unchanged."""
        return inputs.float().div_(255) if self._reads_images else inputs

    def standardize(self, features: Tensor) -> Tensor:
        """Standardize vectors; return images unchanged."""
        return features if self._reads_images else (features - self.input_mean) / self.input_std

    @torch.no_grad()
    def adapt(self, features: Iterable[Tensor]) -> None:
        """Set the input statistics of vectors, on the first call only."""
        if self._reads_images or self.adapted:
            return
        mean, std = mean_and_std(features)
        self.input_mean.copy_(mean)
        self.input_std.copy_(torch.where(std > SMALLEST_STD, std, 1.0))
        self.adapted.fill_(1.0)

    @torch.no_grad()
    def recenter(self, moved: Tensor) -> None:
        """See :meth:`RewardNetwork.recenter`; a mean far outside all inputs so far is reset to 0."""
        if self.adapted:
            mean = self.input_mean.double() - moved
            is_beyond = (moved != 0) & (mean.abs() > FARTHEST_SHIFT * self.input_std)
            self.input_mean.copy_(torch.where(is_beyond, 0.0, mean))

    def flatten(self) -> None:
        """Raise :class:`ConfigError`: the last layer of a user's network is unknown."""
        raise ConfigError(
            "--reward.flat_start: custom networks do not support it; initialize them flat instead"
        )


def _refusal(shape: tuple[int, ...], found: str) -> ConfigError:
    return ConfigError(
        f"custom reward network: expected a function from the shape {shape} to a torch module that returns "
        f"one number for each of n steps, got {found}"
    )


@contextlib.contextmanager
def seeded(generator: torch.Generator) -> Iterator[Any]:
    """Draw from ``generator`` whatever torch modules draw from the global generator inside the block."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
