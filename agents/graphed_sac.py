"""SAC's gradient steps as CUDA graphs: all kernels of a step are launched by one call.

On a GPU, launching about a hundred small kernels one by one takes longer than running them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from agents.sac_step import Minibatch, SACConfig, SACStep
from agents.squashed_gaussian import SquashedActorCritic

_WARMUP_STEPS = 3  # before the first capture, so that libraries have allocated their workspaces


class _Graph(NamedTuple):
    """A captured step, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: Minibatch
    noise: Tensor
    names: tuple[str, ...]
    metrics: Tensor


class GraphedSACStep(SACStep):
    """:class:`SACStep` as a CUDA graph; the policy must be on a GPU.

    The first steps are taken without a graph. A graph is captured for each size of minibatch, with and
    without an update of the target critics.
    """

    def __init__(self, policy: SquashedActorCritic, config: SACConfig) -> None:
        super().__init__(policy, config)
        self._warmup_steps = 0
        self._graphs: dict[tuple[int, bool], _Graph] = {}

    def _take(self, batch: Minibatch, noise: Tensor, updates_target: bool) -> dict[str, Tensor]:
        with torch.cuda.device(noise.device):  # streams and graphs are the current device's
            return self._take_there(batch, noise, updates_target)

    def _take_there(self, batch: Minibatch, noise: Tensor, updates_target: bool) -> dict[str, Tensor]:
        if self._warmup_steps < _WARMUP_STEPS:
            self._warmup_steps += 1
            return self._warm_up(batch, noise, updates_target)
        key = len(batch.rewards), updates_target
        if key not in self._graphs:
            self._graphs[key] = self._capture(batch, noise, updates_target)
        captured = self._graphs[key]
        torch._foreach_copy_([*captured.batch, captured.noise], [*batch, noise])
        captured.graph.replay()
        return dict(zip(captured.names, captured.metrics.clone().unbind(), strict=True))

    def _warm_up(self, batch: Minibatch, noise: Tensor, updates_target: bool) -> dict[str, Tensor]:
        """Take a step on a side stream, as a capture will."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = super()._take(batch, noise, updates_target)
        torch.cuda.current_stream().wait_stream(stream)
        return metrics

    def _capture(self, batch: Minibatch, noise: Tensor, updates_target: bool) -> _Graph:
        """Capture a step on copies of the inputs; parameters stay unchanged until the graph is replayed."""
        copies, copied_noise = Minibatch(*(column.clone() for column in batch)), noise.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            metrics = super()._take(copies, copied_noise, updates_target)
            stacked = torch.stack(list(metrics.values()))
        return _Graph(graph, copies, copied_noise, tuple(metrics), stacked)
