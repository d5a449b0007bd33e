"""The command `slipway bench quality`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet
from slipway_benchmarks.command_run import measure
from slipway_export.spec import Engine
from slipway_serving.protocol.errors import InvalidRequest


def quality(
    family: Annotated[
        str,
        typer.Option(
            help="Family whose answers are judged: one of Slipway's, or one whose package has a judgement.",
            metavar="FAMILY",
        ),
    ] = "wan_t2v",
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Checkpoint of that family; for videos, the judge must lie beside it.",
            metavar="PRESET|DIR|HUB_ID",
        ),
    ] = "demo",
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="Precision of an export; may be repeated; shortcuts are measured with the first."
            " NAME=PRECISION sets the precision of one component in every export.",
            metavar="[NAME=]PRECISION",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=258,
            help="Number of unseen prompts, pictures, worlds, words or recordings for each export.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=2, max=100, help="Denoising steps; by default 20.")] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(min=0.0, help="Guidance scale; by default 4, or 10 for framepack_i2v.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Running server to measure, which serves the checkpoint already.", metavar="HOST:PORT"
        ),
    ] = None,
    graphs: Annotated[
        Engine,
        typer.Option(
            help="Engine whose graphs ONNX Runtime serves: onnxruntime or tensorrt. With tensorrt, every"
            " component that is one graph and has the precision gets the graph made for TensorRT, and the"
            " others are in fp32.",
            metavar="ENGINE",
        ),
    ] = Engine.ONNXRUNTIME,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure meaning: whether videos show what prompts say, worlds obey, words are heard, tracks true."""
    from slipway_benchmarks.chart import draw_meaning
    from slipway_benchmarks.quality.benchmark import MeaningOptions, meaning_json, print_meaning, run
    from slipway_export.engines.requested import parse_precisions

    if url is not None and precision:
        raise InvalidRequest(
            "bench: precision must be left out with --url, where the server's own is measured, got"
            f" {', '.join(precision)}"
        )
    whole = [text for text in precision or () if "=" not in text]
    precisions = tuple(parse_precisions([text])[0] for text in whole)
    _, kept = parse_precisions([text for text in precision or () if "=" in text])
    options = MeaningOptions(
        family, checkpoint, precisions, samples, steps, guidance_scale, url, kept, graphs
    )
    measure("quality", partial(run, options), meaning_json, draw_meaning, print_meaning, output, quiet)
