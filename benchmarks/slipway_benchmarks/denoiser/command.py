"""The command `slipway bench denoiser`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet, Rounds, parse_size, parse_tokens
from slipway_benchmarks.command_run import measure
from slipway_export.spec import Engine, Precision


def _size_option(text: str) -> object:
    return typer.Option(min=1, help=f"{text}; by default the case's.")


def denoiser(
    case: Annotated[
        str | None, typer.Option(help="Named sizes to start from; by default wan-6x8x64.", metavar="NAME")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint whose denoiser is measured instead of a case; of two experts, the first.",
            metavar="DIR|PRESET|HUB_ID",
        ),
    ] = None,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(help="Precision of a graph; may be repeated; by default, all that a denoiser has."),
    ] = None,
    rounds: Rounds = 7,
    steps: Annotated[int, typer.Option(min=1, max=100, help="Denoising steps of the trajectory.")] = 20,
    layers: Annotated[int | None, _size_option("Transformer blocks")] = None,
    heads: Annotated[int | None, _size_option("Attention heads")] = None,
    head_dim: Annotated[int | None, _size_option("Width of a head, even")] = None,
    ffn_dim: Annotated[int | None, _size_option("Width of the feed-forward layer")] = None,
    text_dim: Annotated[int | None, _size_option("Width of the text embeddings")] = None,
    text_tokens: Annotated[int | None, _size_option("Rows of the text embeddings")] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Width and height of the video, pixels, multiples of 16; by default the case's.",
            metavar="WIDTHxHEIGHT",
        ),
    ] = None,
    frames: Annotated[int | None, _size_option("Frames of the video, 4k+1")] = None,
    guidance_scale: Annotated[
        float | None,
        typer.Option(min=0, help="Guidance scale; above 1, a call is a batch of two; by default the case's."),
    ] = None,
    threads: Annotated[int | None, _size_option("Threads of each engine")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of weights, noise and embeddings; by default the case's.")
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Measure torch.compile too.")
    ] = True,
    decode: Annotated[
        bool, typer.Option("--decode", help="Compare decoded videos rather than final latents.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure the peak memory of a call too.")
    ] = True,
    memory_tokens: Annotated[
        str, typer.Option(help="Tokens of the calls whose memory is measured, multiples of 32.")
    ] = "2048,4096,8192,16384",
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure a denoiser: PyTorch eager, torch.compile and our graphs, interleaved, with quality."""
    from slipway_benchmarks.chart import draw_denoiser
    from slipway_benchmarks.denoiser.benchmark import DenoiserOptions, run
    from slipway_benchmarks.denoiser.cases import DEFAULT_CASE, FAMILY, case_of_checkpoint, choose_case
    from slipway_benchmarks.denoiser.report import denoiser_json, print_denoiser
    from slipway_export.checkpoint.opening import open_checkpoint
    from slipway_export.commands.terminal import quiet_libraries
    from slipway_export.families import family_named
    from slipway_export.families.wan_t2v.components import TRANSFORMER_TOLERANCE
    from slipway_export.graph.dialect import PRECISIONS

    width, height = (None, None) if size is None else parse_size(size)
    changes = {
        "layers": layers, "heads": heads, "head_dim": head_dim, "ffn_dim": ffn_dim, "text_dim": text_dim,
        "text_tokens": text_tokens, "width": width, "height": height, "frames": frames,
        "guidance_scale": guidance_scale, "threads": threads, "seed": seed,
    }  # fmt: skip
    with ExitStack() as opened:
        folder = None
        if checkpoint is None:
            chosen = choose_case(case or DEFAULT_CASE, changes)
        else:
            opened.enter_context(quiet_libraries())
            found = opened.enter_context(open_checkpoint(family_named(FAMILY), checkpoint))
            chosen, folder = case_of_checkpoint(found, changes, case), found.path
        able = [each for each in PRECISIONS[Engine.ONNXRUNTIME] if each in TRANSFORMER_TOLERANCE]
        options = DenoiserOptions(
            case=chosen,
            precisions=tuple(dict.fromkeys(precision or able)),
            rounds=rounds,
            steps=steps,
            compile=compile_,
            decode=decode,
            memory_tokens=parse_tokens(memory_tokens) if memory else (),
            checkpoint=folder,
        )
        measured = partial(run, options)
        measure("denoiser", measured, denoiser_json, draw_denoiser, print_denoiser, output, quiet)
