"""CUDA graphs of a network, recorded once for each shape of its inputs and then replayed.

A recorded graph reads and writes the memory that it was recorded with, so each run copies its inputs there
and copies its outputs out. The graphs of all shapes share one memory pool and must not run at the same time;
an instance of a model runs one request at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_GRAPHS = 8
"""Largest number of graphs that are kept; beyond it the least recently used graph is dropped."""
# Runs before a recording, since libraries allocate workspaces and choose algorithms in the first runs.
_TRIAL_RUNS = 3

Forward = Callable[..., tuple[Tensor, ...]]
_Key = tuple[tuple[tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True)
class _RecordedGraph:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class CudaGraphs:
    """Forward function that is recorded as CUDA graphs and replayed.

    Args:
        forward: Forward function of the network, on tensors of one GPU.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._recorded: OrderedDict[_Key, _RecordedGraph] = OrderedDict()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the network; record a graph first if the shapes are new."""
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if key not in self._recorded:
            if len(self._recorded) >= MAX_GRAPHS:
                self._recorded.popitem(last=False)
            self._recorded[key] = self._record(tensors)
        self._recorded.move_to_end(key)
        recorded = self._recorded[key]
        for own, given in zip(recorded.inputs, tensors, strict=True):
            own.copy_(given)
        recorded.graph.replay()
        return tuple(output.clone() for output in recorded.outputs)

    def _record(self, tensors: tuple[Tensor, ...]) -> _RecordedGraph:
        """Record a graph for the shapes of some inputs."""
        inputs = tuple(tensor.clone() for tensor in tensors)
        # The trial runs use a stream of their own, like the recording.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_TRIAL_RUNS):
                self._forward(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = self._forward(*inputs)
        return _RecordedGraph(graph, inputs, outputs)
