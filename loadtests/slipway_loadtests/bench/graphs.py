"""A case's denoiser as the exporter makes it, in each precision that the exporter knows.

The family's plan is cut down to one denoiser with the case's number of text tokens, and then exported by
`run_export` itself: dialect, precision, quantization and parity are those of `slipway export`, whatever it
learns. A graph that is out of its bounds is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slipway_export.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.progress import Report
from slipway_export.run import ExportOptions, run_export
from slipway_export.spec import Axis, Component, Family, Plan, Precision
from slipway_loadtests.bench.cases import FAMILY, DenoiserCase
from slipway_serving.errors import InvalidRequest

COMPONENT = "denoiser_high"
MODEL = f"{FAMILY}_{COMPONENT}"


def denoiser_only(case: DenoiserCase) -> Family:
    """Return the Wan family with nothing to export but one denoiser for the case's text tokens."""
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
    """Return axes of which every one varies, so that a graph takes other sizes than the case's too.

    Parity is checked up to the case's size; what is larger is run for its memory only.
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
    """Export the case's denoiser into a repository of its own.

    Args:
        case: its sizes.
        checkpoint: folder that :func:`slipway_loadtests.bench.cases.write_checkpoint` wrote.
        precision: of the graph.
        repository: to place the model :data:`MODEL` in.
        report: called with a line before each long piece of work.

    Raises:
        InvalidRequest: the exporter has no such graph of a denoiser.
        ParityFailed: the graph is out of its bounds.
    """
    family, axes = denoiser_only(case), axes_of_case(case)
    (component,) = family.plan(Checkpoint(checkpoint, case.name), axes).components
    if component.precision(precision) is not precision:
        kept = component.precision(precision).value
        raise InvalidRequest(f"the exporter keeps a denoiser in {kept} when {precision.value} is asked for")
    options = ExportOptions(checkpoint=str(checkpoint), repository=repository, precision=precision, axes=axes)
    run_export(family, options, lambda line: report(f"onnx {precision.value}: {line}"))
