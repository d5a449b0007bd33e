"""Memory, disk and time that the building of a TensorRT engine takes, from the weights of its graph.

The engine has a copy of the graph's weights. Its builder keeps them in memory about three times: as it reads
them, as constants of the network, and in the engine that it writes. It needs no memory for activations,
whatever the sizes of the profiles, since it runs nothing on a machine without a GPU.
"""

from __future__ import annotations

from dataclasses import replace

from slipway_export.sizing.estimate import ResourceEstimate
from slipway_export.sizing.resource_check import Requirements

# Measured with TensorRT-RTX 1.7 on two cores, sm89 and sm120: Wan2.1-T2V-1.3B's denoiser (2.84 GB in fp16, 30
# layers) took 8.4 GB and 45 s; docs/learn/tensorrt.md has all figures.
_BUILDER_BYTES = 0.6e9
_BUILDER_PER_WEIGHT = 2.9
_BUILDER_S_PER_GB = 16.0


def builder_bytes(weights: float) -> float:
    """Return the memory of the process that builds an engine of so many bytes of weights."""
    return _BUILDER_BYTES + _BUILDER_PER_WEIGHT * weights


def with_engine(estimate: ResourceEstimate) -> ResourceEstimate:
    """Return the estimate of a graph together with its engine.

    Args:
        estimate: Estimate of the graph alone.
    """
    graph = estimate.disk_bytes
    return replace(
        estimate,
        disk_bytes=2 * graph,
        build_bytes=builder_bytes(graph),
        export_s=estimate.export_s + _BUILDER_S_PER_GB * graph / 1e9,
    )


def with_builder(requirements: Requirements) -> Requirements:
    """Return the requirements of a graph together with its engine, which another process builds.

    Args:
        requirements: Requirements of the graph alone.
    """
    graph = requirements.disk_bytes
    return replace(
        requirements,
        disk_bytes=2 * graph,
        memory_bytes=max(requirements.memory_bytes, int(builder_bytes(graph))),
    )
