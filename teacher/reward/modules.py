"""Ensembles of any torch module, their parameters side by side; also of a user's own."""

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
"""Where nothing has to be kept for gradients."""

MakeNetwork = Callable[[tuple[int, ...]], nn.Module]
"""From the shape of what is read of a step to a module, ``(n, *shape)`` numbers to ``(n,)`` or ``(n, 1)``."""


class ModuleEnsemble(RewardNetwork):
    """``members`` modules of one structure, evaluated one after the other.

    In training each has its own minibatch.

    Args:
        make: makes one; its random numbers are ``generator``'s.
        members: how many.
        generator: draws the initial parameters, differently for each member, and what modules draw.
        dimensions: of what is read of one step.
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
            else:  # statistics, and parameters that are to stay as they are
                self.register_buffer(key, numbers[name])
        # One network without numbers, which takes on each member's; not a part, so not in the state.
        self._structure = (networks[0].to("meta"),)
        self.train(mode=False)

    def _named(self, names: Iterable[str]) -> dict[str, str]:
        """What the modules call their numbers, by names that are no others' here."""
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
        """What a module is given, of rows of what :meth:`standardize` made."""

    def train(self, mode: bool = True) -> Self:
        """Turn on what modules do only in training, such as dropout; ``False`` turns it off."""
        self._structure[0].train(mode)
        return super().train(mode)

    def learned(self) -> Sequence[Tensor]:
        """The parameters, and what goes along with them, such as statistics of batch normalization."""
        return [*self.parameters(), *(self.get_buffer(key) for key in self._names if key not in self.weights)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Raw reward of each step by each member.

        Args:
            inputs: ``(*batch, ...)``, the same for all members.

        Returns:
            ``(members, *batch)``.
        """
        batch = inputs.shape[: inputs.ndim - self._dimensions]
        if 0 in batch:  # of which not every module can make something
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
        """``(n, ...)`` to ``(n,)`` rewards by one member."""
        state = {name: self._tensor(key)[member] for key, name in self._names.items()}
        parts = (rows,) if torch.is_grad_enabled() else torch.split(rows, ROWS_AT_ONCE)
        rewards = [functional_call(self._structure[0], state, (self.numbers(part),)) for part in parts]
        return torch.cat(rewards).squeeze(-1)

    def _tensor(self, key: str) -> Tensor:
        return self.weights[key] if key in self.weights else self.get_buffer(key)


class OwnEnsemble(ModuleEnsemble):
    """Networks that a user's function makes, of images (bytes, given as 0 to 1) or of vectors.

    Parameters that ask for no gradient stay as they are. Vectors are standardized with the statistics of the
    first preferences, because nothing is known of the layers that could take up a change.

    Args:
        make: the user's function.
        shape: of what is read of a step.
        members: how many.
        generator: as for :class:`ModuleEnsemble`.

    Raises:
        ConfigError: the function fails, or makes what gives no reward of a step.
    """

    input_mean: Tensor
    input_std: Tensor
    adapted: Tensor

    def __init__(
        self, make: MakeNetwork, shape: tuple[int, ...], members: int, generator: torch.Generator
    ) -> None:
        try:
            super().__init__(lambda: make(shape), members, generator, len(shape))
        except (Exception, SystemExit) as error:  # of the user's
            raise _refusal(shape, describe_exception(error)) from error
        if not self.weights:
            raise _refusal(shape, "one without parameters to learn")
        self._reads_images = len(shape) == 3
        self.register_buffer("input_mean", torch.zeros(shape[-1]))
        self.register_buffer("input_std", torch.ones(shape[-1]))
        self.register_buffer("adapted", torch.zeros(1))
        example = torch.zeros(2, *shape, dtype=torch.uint8 if self._reads_images else torch.float32)
        try:
            with torch.no_grad():
                rewards = self(example)
        except (Exception, SystemExit) as error:  # of the user's
            raise _refusal(shape, describe_exception(error)) from error
        if rewards.shape != (members, 2):
            raise _refusal(shape, f"a reward of shape {tuple(rewards.shape[1:])} of two steps")

    def numbers(self, inputs: Tensor) -> Tensor:
        """See :class:`ModuleEnsemble`."""
        return inputs.float().div_(255) if self._reads_images else inputs

    def standardize(self, features: Tensor) -> Tensor:
        """Vectors in deviations from their mean; images as they are."""
        return features if self._reads_images else (features - self.input_mean) / self.input_std

    @torch.no_grad()
    def adapt(self, features: Iterable[Tensor]) -> None:
        """Take over the statistics of vectors, the first time."""
        if self._reads_images or self.adapted:
            return
        mean, std = mean_and_std(features)
        self.input_mean.copy_(mean)
        self.input_std.copy_(torch.where(std > SMALLEST_STD, std, 1.0))
        self.adapted.fill_(1.0)

    @torch.no_grad()
    def recenter(self, moved: Tensor) -> None:
        """See :meth:`RewardNetwork.recenter`; from far beyond all it saw it begins anew."""
        if self.adapted:
            mean = self.input_mean.double() - moved
            is_beyond = (moved != 0) & (mean.abs() > FARTHEST_SHIFT * self.input_std)
            self.input_mean.copy_(torch.where(is_beyond, 0.0, mean))

    def flatten(self) -> None:
        """Raise :class:`ConfigError`: which layer comes last is not known."""
        raise ConfigError("--reward.flat_start: not with a network of your own, which may begin so by itself")


def _refusal(shape: tuple[int, ...], found: str) -> ConfigError:
    return ConfigError(
        f"the predictor's network: expected a function from the shape {shape} to a torch module that gives "
        f"each of n steps a number, got {found}"
    )


@contextlib.contextmanager
def seeded(generator: torch.Generator) -> Iterator[Any]:
    """Let a generator decide what torch's modules, which draw from a global one, draw inside."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
