"""Multi-process training of one agent with ``torch.distributed``.

Training with R processes (ranks) that have N environments each is equivalent to training with a single
process that has R * N environments. All ranks draw the same random numbers and have identical parameters,
statistics and optimizer states. Each rank steps its own environments and computes its share of every sum.
If the process was not started by ``torchrun``, it trains alone and collective operations do nothing.
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

# Rank 0 may wait for labels for days while the others wait for it. If it dies, its closed connection ends the
# wait.
_TIMEOUT = datetime.timedelta(days=3650)
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process's rank, and collective operations on its process group.

    All ranks must call the same collective operations in the same order. Each operation raises
    :class:`RankLostError` if another rank's process has ended.

    Attributes:
        rank: index of this process; rank 0 is the leader.
        size: world size, the number of processes in the group.
        local_rank: index of this process among this run's processes on the same host.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def sum(self, values: NDArray[Any] | Tensor) -> None:
        """All-reduce ``values`` in place: sum them elementwise over all ranks.

        The array or tensor must be contiguous. The result is bitwise identical on all ranks.
        """
        if self.size == 1:
            return
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        with _report_lost_rank():
            dist.all_reduce(tensor)

    def totals(self, *shares: float) -> list[float]:
        """Return each argument summed over all ranks."""
        totals = np.array(shares)
        self.sum(totals)
        numbers: list[float] = totals.tolist()
        return numbers

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """All-reduce the gradients of ``parameters`` in place: sum them over all ranks."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self.sum(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All-gather ``array``: return all ranks' arrays, stacked along a new first axis, ``(size, ...)``.

        ``array`` must have the same shape ``(...)`` and dtype on all ranks.
        """
        if self.size == 1:
            return array[None]
        gathered = np.empty((self.size, *array.shape), array.dtype)
        with _report_lost_rank():
            dist.all_gather(list(torch.from_numpy(gathered).unbind()), torch.from_numpy(array.copy()))
        return gathered

    def broadcast(self, data: bytes = b"") -> bytes:
        """Return rank 0's ``data`` on all ranks; other ranks' ``data`` is ignored."""
        if self.size == 1:
            return data
        with _report_lost_rank():
            length = torch.tensor(len(data))
            dist.broadcast(length, 0)
            content = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == 0:
                content.numpy()[:] = np.frombuffer(data, np.uint8)
            dist.broadcast(content, 0)
        return content.numpy().tobytes()

    def device(self, name: str) -> str:
        """Return the torch device that this rank should use, given the configured device ``name``.

        If there are several ranks, ``"cuda"`` becomes ``"cuda:<local_rank>"``, so that each rank on a host
        has its own GPU.
        """
        return f"cuda:{self.local_rank}" if name == "cuda" and self.size > 1 else name


ALONE = Ranks()


@contextlib.contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Initialize the process group of ``torchrun``'s processes, and yield this process's :class:`Ranks`.

    The process group is destroyed when the ``with`` block exits normally. After an exception, it isn't
    destroyed, because that could hang.

    Collective operations use the Gloo backend for CPU tensors and arrays, and NCCL for GPU tensors.

    Raises:
        InvalidConfigError: torchrun's environment variables are incomplete or invalid, or the other processes
            can't be reached.
    """
    ranks = _read_ranks()
    if ranks.size == 1:
        yield ranks
        return
    try:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise InvalidConfigError(
            f"Can't connect the {ranks.size} processes at {master} ({str(error).splitlines()[0]}); "
            "check that torchrun started all of them, and that they can reach this address."
        ) from error
    yield ranks
    dist.destroy_process_group()  # skipped after an error, when it could wait for lost ranks


def _read_ranks() -> Ranks:
    """Read this process's rank from torchrun's environment variables; return ``ALONE`` if they are unset."""
    given = {name: os.environ.get(name) for name in _VARIABLES}
    if given["RANK"] is None and given["WORLD_SIZE"] is None:
        return ALONE
    try:
        rank, size = int(given["RANK"] or ""), int(given["WORLD_SIZE"] or "")
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
    except ValueError:
        rank, size, local_rank = 0, 0, 0
    if not 0 <= rank < size or local_rank < 0 or (size > 1 and None in given.values()):
        raise InvalidConfigError(
            f"The environment variables {', '.join(_VARIABLES)} are incomplete or invalid: {given}; "
            "start the run with torchrun, or unset them."
        )
    return Ranks(rank, size, local_rank)


@contextlib.contextmanager
def _report_lost_rank() -> Iterator[None]:
    """Convert a RuntimeError raised by a collective operation in the block to :class:`RankLostError`."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition(". ")[0].rpartition("] ")[2]
        raise RankLostError(
            f"Another process of this run has ended ({reason}); see its output, then restart the run."
        ) from error
