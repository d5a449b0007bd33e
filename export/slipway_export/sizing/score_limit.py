"""Limit of the scores of an attention that ONNX Runtime computes on a GPU by a softmax.

Graphs of standard operators write an attention as products and a softmax. ONNX Runtime's CUDA provider (seen
with 1.31.1) computes places of a softmax in 32 bits: with more than 2**32 values it returns wrong results and
no error. Above 1.02 times the limit, whole heads of a Wan denoiser were wrong (docs/measurements/gpu.md).
Graphs of engine `onnxruntime` have a fused attention, which is right at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slipway_export.repository.placement import Placement
from slipway_export.sizing.cost import counted
from slipway_export.spec import Component, Engine
from slipway_serving.protocol.errors import raise_all

LARGEST_SOFTMAX = 2**32
"""Most values of a softmax that the CUDA provider computes correctly."""


def check_scores(
    components: Sequence[Component],
    engine_of: Callable[[Component], Engine],
    placements: Mapping[str, Placement],
    report: Callable[[str], None],
) -> None:
    """Refuse graphs on a GPU whose attention is too large there; report those that a GPU must not run.

    Args:
        components: Components of the export.
        engine_of: Function that returns the engine of a component.
        placements: Placements of components, by name.
        report: Callback that receives a line for each graph that has no placement.

    Raises:
        InvalidRequest: A graph of standard operators that is placed on a GPU exceeds the limit. The message
            names each such component.
    """
    problems = []
    for component in (each for each in components if engine_of(each) is Engine.PORTABLE):
        (work,) = counted(component, [component.points()["max"]])
        if work.scores <= LARGEST_SOFTMAX:
            continue
        placement = placements.get(component.name)
        fact = (
            f"attention of {component.label} must have at most {LARGEST_SOFTMAX:,} scores with engine"
            " portable on a GPU, above which ONNX Runtime computes wrong results there, got"
            f" {work.scores:,} at the largest sizes; try --engine onnxruntime, or smaller --axis"
        )
        if placement is None:
            report(f"serve {component.label} on a CPU only: {fact}")
        elif placement.kind == "gpu":
            problems.append(fact)
    raise_all("export", problems)
