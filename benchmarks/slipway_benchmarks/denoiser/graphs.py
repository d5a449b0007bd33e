"""Graphs of a case's denoiser, in each precision that the exporter supports.

The family's plan is reduced to one denoiser with the case's number of text tokens, and `run_export` exports
it. Dialect, precision, quantization and parity are therefore always those of `slipway export`. A graph that
fails its parity bounds is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slipway_benchmarks.denoiser.cases import FAMILY, DenoiserCase
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.progress import Report
from slipway_export.run import run_export
from slipway_export.spec import Axis, Component, Family, Plan, Precision
from slipway_serving.protocol.errors import InvalidRequest

COMPONENT = "denoiser_high"
MODEL = f"{FAMILY}_{COMPONENT}"


def denoiser_only(case: DenoiserCase) -> Family:
    """Return the Wan family with a plan of one denoiser only, for the case's text tokens."""
    family = family_named(FAMILY)

    def plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
        components = family.plan(checkpoint, axes).components
        component = next(component for component in components if component.name == COMPONENT)
        return Plan((_with_text_tokens(component, case.text_tokens),), ())

    return replace(family, plan=plan)


def _with_text_tokens(component: Component, tokens: int) -> Component:
    inputs = (
        replace(tensor, shape=(tensor.shape[0], tokens, *tensor.shape[2:]))
        if tensor.name == "encoder_hidden_states"
        else tensor
        for tensor in component.inputs
    )
    return replace(component, inputs=tuple(inputs))


def axes_of_case(case: DenoiserCase) -> tuple[Axis, ...]:
    """Return axes that all vary, so that a graph accepts other sizes than the case's too.

    Parity is checked up to the case's size; larger sizes run only for the memory measurement.
    """
    names = ("latent_frames", "token_height", "token_width")
    sizes = (
        Axis(name, min(2, size) if name != "latent_frames" else 1, size, max(size, 3))
        for name, size in zip(names, case.token_grid, strict=True)
    )
    return (Axis("batch", 1, case.batch, 2), *sizes)


def export_denoiser(
    case: DenoiserCase, checkpoint: Path, precision: Precision, repository: Path, report: Report
) -> None:
    """Export the case's denoiser into its own repository.

    Args:
        case: Case with the sizes.
        checkpoint: Folder that :func:`slipway_benchmarks.denoiser.cases.write_checkpoint` wrote.
        precision: Precision of the graph.
        repository: Repository that receives the model :data:`MODEL`.
        report: Callback that receives a line before each long step.

    Raises:
        InvalidRequest: The exporter does not support this precision for a denoiser.
        ParityFailed: The graph is out of its parity bounds.
    """
    family, axes = denoiser_only(case), axes_of_case(case)
    (component,) = family.plan(Checkpoint(checkpoint, case.name), axes).components
    if component.precision(precision) is not precision:
        kept = component.precision(precision).value
        raise InvalidRequest(f"the exporter keeps a denoiser in {kept} when {precision.value} is asked for")
    options = ExportOptions(checkpoint=str(checkpoint), repository=repository, precision=precision, axes=axes)
    run_export(family, options, lambda line: report(f"onnx {precision.value}: {line}"))
