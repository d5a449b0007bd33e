"""`slipway bench`: flags in, one benchmark, then tables on stdout, JSON and a chart in a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipway_benchmarks.command_run import measure, measuring
from slipway_benchmarks.servers.backends_command import backends
from slipway_export.spec import Engine, Precision
from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import InvalidRequest, raise_all

bench = typer.Typer(
    help="Measure: our graphs beside PyTorch, Triton beside the same loop without it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

bench.command("backends")(backends)

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the JSON file and the PNG chart.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables, only the files.")]
Rounds = Annotated[int, typer.Option(min=1, help="Timed rounds, each of which measures every subject once.")]
LeastPsnr = Annotated[
    float | None,
    typer.Option(min=0, help="Least PSNR against the first subject, dB; below it, the exit code is 1."),
]
_OUTPUT = Path("out/bench")
_SIZE = re.compile(r"(\d+)[x*](\d+)", re.IGNORECASE)


def _size_option(text: str) -> object:
    return typer.Option(min=1, help=f"{text}; by default the case's.")


@bench.command("denoiser")
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
    output: Output = _OUTPUT,
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
    from slipway_export.families.wan_t2v.family import TRANSFORMER_TOLERANCE
    from slipway_export.graph.dialect import PRECISIONS
    from slipway_export.spec import Engine

    width, height = (None, None) if size is None else _parse_size(size)
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
            memory_tokens=_parse_tokens(memory_tokens) if memory else (),
            checkpoint=folder,
        )
        measured = partial(run, options)
        measure("denoiser", measured, denoiser_json, draw_denoiser, print_denoiser, output, quiet)


@bench.command("engines")
def engines(
    family: Annotated[
        str,
        typer.Option(help="Family of the measured component; `slipway families` lists them.", metavar="NAME"),
    ] = "wan_t2v",
    component: Annotated[
        str,
        typer.Option(help="Component that each engine serves; it must have a single graph.", metavar="NAME"),
    ] = "denoiser_high",
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Checkpoint whose component is exported and measured.", metavar="DIR|PRESET|HUB_ID"
        ),
    ] = "small",
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="Size of a call along an axis, e.g. batch=2; may be repeated; by default the axis's opt.",
            metavar="NAME=SIZE",
        ),
    ] = None,
    rounds: Rounds = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each engine.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine that is measured beside PyTorch eager; may be repeated: torch:inductor,"
            " torch:int8-weights, or ENGINE:PRECISION such as onnxruntime:int8 and tensorrt-rtx:fp16; by"
            " default, those of PyTorch and ONNX Runtime.",
            metavar="NAME",
        ),
    ] = None,
    place: Annotated[
        str, typer.Option(help="Device of PyTorch and of ONNX Runtime.", metavar="cpu|gpu")
    ] = "cpu",
    least_psnr_db: LeastPsnr = None,
    output: Output = _OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure a component as each engine serves it: PyTorch eager, compiled, int8, and our graphs."""
    from slipway_benchmarks.chart import draw_engines
    from slipway_benchmarks.engines.benchmark import (
        DEFAULT_ENGINES,
        EnginesOptions,
        check_engines_gate,
        engines_json,
        print_engines,
        run,
    )

    options = EnginesOptions(
        family,
        component,
        checkpoint,
        _parse_sizes(axis or ()),
        rounds,
        threads,
        seed,
        tuple(engine or DEFAULT_ENGINES),
        place,
        least_psnr_db,
    )
    measured, check = partial(run, options), check_engines_gate
    measure("engines", measured, engines_json, draw_engines, print_engines, output, quiet, check)


@bench.command("video")
def video(
    rounds: Rounds = 7,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint to export, serve and measure; by default the preset small.",
            metavar="DIR|PRESET|HUB_ID",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Running server to measure; with --checkpoint, diffusers is measured too.",
            metavar="HOST:PORT",
        ),
    ] = None,
    case: Annotated[
        str | None,
        typer.Option(
            help="Named case that sets size, frames, steps, guidance and seed: mlperf-wan2.2.", metavar="NAME"
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Width and height of the video, pixels, multiples of 16; by default the case's, or 128x128.",
            metavar="WIDTHxHEIGHT",
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(min=1, help="Frames of the video, 4k+1; by default the case's, or 17."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=2, max=100, help="Denoising steps; by default the case's, or 12."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine of the exported components; NAME=ENGINE sets that of one; may be repeated.",
            metavar="[NAME=]ENGINE",
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="Precision of the exported components; NAME=PRECISION sets that of one; may be repeated.",
            metavar="[NAME=]PRECISION",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure the memory of decoding too.")
    ] = True,
    least_psnr_db: LeastPsnr = None,
    least_ssim: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Least SSIM against the first subject; below it, the exit code is 1."
        ),
    ] = None,
    output: Output = _OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure whole videos: diffusers, our loop, the same through Triton, and its shortcuts."""
    from slipway_benchmarks.chart import draw_video
    from slipway_benchmarks.pipelines.video import (
        REQUEST,
        VideoOptions,
        check_video_gates,
        print_video,
        run,
        video_json,
    )
    from slipway_benchmarks.pipelines.video_cases import case_named
    from slipway_export.engines.requested import parse_engines, parse_precisions

    if url is not None:
        raise_all(
            "bench",
            [
                f"{flag} must be left out with --url, where the server's own is measured, got"
                f" {', '.join(values)}"
                for flag, values in {"engine": engine, "precision": precision}.items()
                if values
            ],
        )
    width, height = (REQUEST.width, REQUEST.height) if size is None else _parse_size(size)
    chosen = None if case is None else case_named(case)
    if chosen is None:
        request = replace(
            REQUEST, frames=frames or REQUEST.frames, height=height, width=width, steps=steps or REQUEST.steps
        )
    else:
        written = None if size is None else f"{width}x{height}"
        request = chosen.request(REQUEST, {"size": written, "frames": frames, "steps": steps})
    options = VideoOptions(
        rounds,
        request,
        checkpoint,
        url,
        *parse_engines(engine or ()),
        *parse_precisions(precision or ()),
        chosen,
        memory,
        least_psnr_db,
        least_ssim,
    )
    measured, check = partial(run, options), check_video_gates
    measure("video", measured, video_json, draw_video, print_video, output, quiet, check)


@bench.command("wakeword")
def wakeword(
    clients: Annotated[
        int, typer.Option(min=1, help="Number of simultaneous clients, each with one request in flight.")
    ] = 16,
    rounds: Rounds = 5,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Duration of the load on each server in each round, seconds.",
            callback=checked_option,
        ),
    ] = 4.0,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of each ONNX Runtime session in each server.")
    ] = 1,
    int8: Annotated[bool, typer.Option("--int8/--no-int8", help="Compare int8 graphs too.")] = True,
    output: Output = _OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure wake words: Triton's batching beside none and LitServe's, int8 beside fp32."""
    from slipway_benchmarks.chart import draw_wakeword
    from slipway_benchmarks.servers.wakeword import WakewordOptions, print_wakeword, run, wakeword_json

    options = WakewordOptions(clients, rounds, seconds, threads, **({} if int8 else {"calls": 0}))
    measure("wakeword", partial(run, options), wakeword_json, draw_wakeword, print_wakeword, output, quiet)


@bench.command("world")
def world(
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint whose worlds are played.", metavar="PRESET|DIR|HUB_ID")
    ] = "tiny",
    mode: Annotated[
        str, typer.Option(help="Mode of the worlds: universal, gta_drive or templerun.")
    ] = "universal",
    worlds: Annotated[int, typer.Option(min=1, help="Number of worlds, played one after the other.")] = 3,
    blocks: Annotated[int, typer.Option(min=22, max=341, help="Number of blocks of each world.")] = 60,
    at_block: Annotated[
        int,
        typer.Option(
            min=1, max=341, help="Block that is also computed from all frames without caches, to compare."
        ),
    ] = 20,
    threads: Annotated[
        int, typer.Option(min=1, help="ONNX Runtime's threads where graphs are compared.")
    ] = 2,
    output: Output = _OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure worlds: time and memory from block to block, the first action, what caches save."""
    from slipway_benchmarks.chart import draw_world
    from slipway_benchmarks.pipelines.world import WorldOptions, print_world, run, world_json
    from slipway_serving.families.matrix_game.keys import vocabulary

    vocabulary(mode)
    options = WorldOptions(checkpoint, mode, worlds, blocks, at_block, threads)
    measure("world", partial(run, options), world_json, draw_world, print_world, output, quiet)


@bench.command("quality")
def quality(
    family: Annotated[
        str,
        typer.Option(
            help="Family whose answers are judged: airimu, framepack_i2v, matrix_game, wakeword or wan_t2v.",
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
    output: Output = _OUTPUT,
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


@bench.command("capacity")
def capacity_bench(
    users: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Number of users for which to size a fleet; may be repeated."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="Rounds of load on a real Triton; with 0, only the model is evaluated.")
    ] = 3,
    requests: Annotated[int, typer.Option(min=20, help="Number of requests of each open loop.")] = 400,
    load: Annotated[
        float,
        typer.Option(
            min=0.05, max=0.95, help="Load of each open loop, as a share of the server's highest throughput."
        ),
    ] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the arrival times and of the simulation.")] = 0,
    output: Output = _OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure whether the capacity model finds a real Triton's queueing delays; then ask it about fleets."""
    from slipway_benchmarks.capacity.benchmark import CapacityOptions, capacity_json, print_capacity, run
    from slipway_benchmarks.capacity.chart import draw_capacity

    asked = {"users": tuple(sorted(set(users)))} if users else {}
    options = CapacityOptions(rounds, requests, load, **asked, seed=seed)
    measure("capacity", partial(run, options), capacity_json, draw_capacity, print_capacity, output, quiet)


@bench.command("real-size")
def real_size(
    work: Annotated[
        Path, typer.Option(help="Folder for checkpoints, models and logs; existing ones are reused.")
    ] = Path("out/real_size"),
    preset: Annotated[str, typer.Option(help="Preset of the checkpoint that is served.")] = "1.3b",
    wide: Annotated[
        str, typer.Option(help="Preset of the checkpoint of which only the first expert is exported.")
    ] = "a14b-2-layers",
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Part to run in a folder where the parts before it ran; may be repeated; by default, all."
        ),
    ] = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames of the video, 4k+1.")] = 9,
    size: Annotated[
        str, typer.Option(help="Width and height of the video, pixels.", metavar="WIDTHxHEIGHT")
    ] = "256x256",
    steps: Annotated[int, typer.Option(min=1, max=100, help="Denoising steps.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 1,
    output: Output = _OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Take a checkpoint of public size all the way: written, exported, served, called, compared."""
    from slipway_benchmarks.pipelines.real_size import (
        RealSizeOptions,
        markdown,
        print_real_size,
        real_size_json,
        run,
    )
    from slipway_loadtests.json_report import write_json
    from slipway_loadtests.machine import machine_facts, machine_lines

    width, height = _parse_size(size)
    options = RealSizeOptions(work, preset, wide, tuple(part or ()), frames, height, width, steps, seed)
    with measuring(output, quiet) as (report, console):
        machine = machine_facts()
        result = run(options, report)
        data, table = output / "real_size.json", output / "real_size.md"
        write_json(real_size_json(result, machine), data)
        table.write_text(markdown(result), encoding="utf-8")
        print_real_size(console, result)
        for line in (*machine_lines(machine), f"written to {data} and {table}"):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _parse_size(text: str) -> tuple[int, int]:
    if not (found := _SIZE.fullmatch(text.strip())):
        raise InvalidRequest(f"bench: size must be WIDTHxHEIGHT in pixels, got {text!r}; try 320x240")
    return int(found[1]), int(found[2])


def _parse_sizes(texts: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not name or not (size.isascii() and size.isdigit()) or name in sizes:
            raise InvalidRequest(f"bench: axis must be NAME=SIZE, each once, got {text!r}; try batch=2")
        sizes[name] = int(size)
    return sizes


def _parse_tokens(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidRequest(
            f"bench: memory-tokens must be whole numbers with commas between, got {text!r}; try 2048,4096"
        )
    return tuple(sorted({int(part) for part in parts}))
