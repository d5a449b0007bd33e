"""The command `slipway bench real-size`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet, parse_size
from slipway_benchmarks.command_run import measuring


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
    output: Output = OUTPUT,
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

    width, height = parse_size(size)
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
