"""Multi-process training of one agent, on ``torch.distributed``.

R ranks with N environments each act like one process with R * N environments: every rank draws the same
random numbers and holds the same parameters, statistics and optimizer; it steps its own environments and
computes its share of each sum. Without a launcher there is a single process, and collectives do nothing.
"""

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from agents.errors import InvalidConfigError, RankLostError

# Rank 0 may wait for labelers for days before the others hear from it; a closed connection ends the wait.
_TIMEOUT = datetime.timedelta(days=3650)
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together, and their collectives.

    All ranks must call the same collectives in the same order. Each raises :class:`RankLostError` if another
    rank is gone.

    Attributes:
        rank: index of this process; 0 leads.
        size: number of processes.
        local_rank: index among the processes on this host.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def sum(self, values: NDArray[Any] | Tensor) -> None:
        """Replace contiguous ``values`` by their sum over all ranks, the same to the last bit on each."""
        if self.size == 1:
            return
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        with _losses_named():
            dist.all_reduce(tensor)

    def totals(self, *shares: float) -> list[float]:
        """Return the sums over all ranks of each rank's shares."""
        totals = np.array(shares)
        self.sum(totals)
        numbers: list[float] = totals.tolist()
        return numbers

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace the gradients of ``parameters`` by their sums over all ranks."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self.sum(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Stack the arrays of all ranks, with the same shape ``(...)`` and dtype, to ``(size, ...)``."""
        if self.size == 1:
            return array[None]
        gathered = np.empty((self.size, *array.shape), array.dtype)
        with _losses_named():
            dist.all_gather(list(torch.from_numpy(gathered).unbind()), torch.from_numpy(array.copy()))
        return gathered

    def broadcast(self, data: bytes = b"") -> bytes:
        """Return rank 0's ``data``; that of other ranks is ignored."""
        if self.size == 1:
            return data
        with _losses_named():
            length = torch.tensor(len(data))
            dist.broadcast(length, 0)
            content = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == 0:
                content.numpy()[:] = np.frombuffer(data, np.uint8)
            dist.broadcast(content, 0)
        return content.numpy().tobytes()

    def device(self, name: str) -> str:
        """Return the torch device for ``name`` on this rank: each rank of a host has its own GPU."""
        return f"cuda:{self.local_rank}" if name == "cuda" and self.size > 1 else name


ALONE = Ranks()


@contextlib.contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the other processes that ``torchrun`` started, and leave them at the end.

    CPU tensors and arrays are sent by gloo, those on a GPU by nccl.

    Raises:
        InvalidConfigError: the launcher's variables are inconsistent, or the other processes can't be
            reached.
    """
    ranks = _read_ranks()
    if ranks.size == 1:
        yield ranks
        return
    try:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise InvalidConfigError(
            f"Expected to connect {ranks.size} processes at {place}, got {str(error).splitlines()[0]}"
        ) from error
    yield ranks
    dist.destroy_process_group()  # not after an error: it could wait for lost ranks


def _read_ranks() -> Ranks:
    """Read the launcher's variables; without them, there is a single process."""
    given = {name: os.environ.get(name) for name in _VARIABLES}
    if given["RANK"] is None and given["WORLD_SIZE"] is None:
        return ALONE
    try:
        rank, size = int(given["RANK"] or ""), int(given["WORLD_SIZE"] or "")
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
    except ValueError:
        rank, size, local_rank = 0, 0, 0
    if not 0 <= rank < size or local_rank < 0 or (size > 1 and None in given.values()):
        raise InvalidConfigError(f"Expected {', '.join(_VARIABLES)} as torchrun sets them, got {given}.")
    return Ranks(rank, size, local_rank)


@contextlib.contextmanager
def _losses_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition(". ")[0].rpartition("] ")[2]
        raise RankLostError(
            f"Expected all processes of this run to continue, but one ended ({reason})."
        ) from error
