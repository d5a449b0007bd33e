"""The group of commands `slipway engines`: check graphs, build engines, list and inspect placed ones."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_export.commands.terminal import Quiet, reporting
from slipway_export.engines.tensorrt.plan import Profiles
from slipway_serving.protocol.command_output import Json, print_json
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.tensorrt.library import Library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipway_export.engines.tensorrt.check import CheckedGraph
    from slipway_export.engines.tensorrt.requested import EngineRequest
    from slipway_export.spec import Axis

engines = typer.Typer(
    help="Check graphs with TensorRT's own parser and builder, build engines, list and inspect them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Graphs = Annotated[Path, typer.Argument(help="ONNX file, or a model repository with graphs.", metavar="PATH")]
Placed = Annotated[
    Path, typer.Argument(help="Model repository, model folder or engine file.", metavar="PATH")
]
Engine = Annotated[Library, typer.Option("--engine", help="Library that parses and builds.")]
Target = Annotated[
    str | None,
    typer.Option(
        help="GPUs to build for, e.g. sm89 or sm80,sm120; by default the GPU of this machine.",
        metavar="SM[,SM…]",
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--axis",
        help="Range of a dynamic dimension, e.g. batch=1:2:4; may be repeated. A dimension without a name is"
        " INPUT.INDEX.",
        metavar="NAME=MIN:OPT:MAX",
    ),
]
Shapes = Annotated[Profiles | None, typer.Option("--profiles", help="Optimization profiles.")]
Workspace = Annotated[
    float | None, typer.Option(help="Largest scratch memory of a layer, in GiB.", metavar="GIB")
]
Level = Annotated[int | None, typer.Option(help="Optimization level of the builder, 0 to 5.", metavar="0..5")]
Cache = Annotated[
    Path | None, typer.Option(help="File of the measured times of engine tensorrt.", metavar="FILE")
]


@engines.command()
def check(
    path: Graphs,
    engine: Engine = Library.RTX,
    target: Target = None,
    axis: Ranges = None,
    profiles: Shapes = None,
    workspace_gib: Workspace = None,
    builder_level: Level = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Parse and build every graph, and report errors with their cures; exit with 1 if one does not build."""
    from rich.console import Console

    from slipway_export.engines.tensorrt.check import check_graph, graphs_to_check
    from slipway_export.engines.tensorrt.choice import choose_engine

    request = _request(target, profiles, workspace_gib, builder_level)
    graphs, axes = graphs_to_check(path), _axes(axis)
    choice = choose_engine(engine, request, placed=False)
    if choice is None:
        from slipway_serving.protocol.distribution import install_hint

        raise InvalidRequest(
            f"engines check must have {engine.full_name} installed, got a machine without it; try"
            f" {install_hint(engine.extra)}"
        )
    progress, results = Console(file=sys.stderr, quiet=quiet), []
    with reporting(progress) as report:
        for graph in graphs:
            report(f"{graph}: parsing and building with {choice.text}")
            results.append(check_graph(graph, choice, axes))
    if json:
        print_json({"engine": choice.text, "graphs": [result.to_json() for result in results]})
    else:
        _print_checked(results)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


@engines.command()
def build(
    path: Graphs,
    engine: Engine = Library.RTX,
    target: Target = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File of the engine of an ONNX file; by default beside it.", metavar="FILE"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Build only the engines of this model of a repository; may be repeated."),
    ] = None,
    axis: Ranges = None,
    profiles: Shapes = None,
    workspace_gib: Workspace = None,
    builder_level: Level = None,
    timing_cache: Cache = None,
    show_command: Annotated[
        bool,
        typer.Option("--show-command", help="Print the command of NVIDIA's own program instead of building."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Build the engine of an ONNX file, or the engines of a repository anew for this or another GPU."""
    from rich.console import Console

    from slipway_export.engines.tensorrt.build_file import build_file
    from slipway_export.engines.tensorrt.check import plan_of_graph
    from slipway_export.engines.tensorrt.choice import choose_engine, chosen_engine
    from slipway_export.engines.tensorrt.placed import rebuild

    request = _request(target, profiles, workspace_gib, builder_level, timing_cache)
    progress = Console(file=sys.stderr, quiet=quiet)
    if path.is_dir():
        if output is not None or axis or profiles or show_command:
            raise InvalidRequest(
                "engines build: output, axis, profiles and show-command must be given with an ONNX file, got"
                f" a repository, {path}"
            )
        with reporting(progress) as report:
            built = rebuild(path, partial(chosen_engine, request=request), tuple(model or ()), report)
        typer.echo(f"{len(built)} engines built in {path}: {', '.join(built)}")
        return
    if model:
        raise InvalidRequest(f"engines build: model must be given with a repository, got the file {path}")
    if show_command:
        choice = choose_engine(engine, request, placed=False)
        if choice is not None:
            typer.echo(plan_of_graph(path, choice, _axes(axis), output).command)
        return
    choice = chosen_engine(engine, request=request)
    with reporting(progress) as report:
        facts, written = build_file(path, choice, _axes(axis), output, report)
    typer.echo(f"{written}: {facts.engine_bytes:,} bytes for {', '.join(facts.targets)}")


@engines.command("list")
def list_engines(repository: Placed, json: Json = False) -> None:
    """List engines, and whether this machine can run them; exit with 1 if one is damaged."""
    from rich.table import Table

    from slipway_export.commands.terminal import console_of_results
    from slipway_export.engines.tensorrt.placed import placed_engines
    from slipway_export.progress import format_bytes

    found = placed_engines(repository)
    if json:
        print_json({"engines": [engine.to_json() for engine in found]})
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for title in ("engine", "library", "targets", "size", "fused", "runs here"):
            table.add_column(title, overflow="fold")
        for engine in found:
            facts = engine.facts
            if facts is None:
                table.add_row(engine.label, "", "", "", "", "damaged")
                continue
            table.add_row(
                engine.label,
                f"{facts.library} {facts.version}",
                ",".join(facts.targets),
                format_bytes(facts.engine_bytes),
                str(facts.built["fused_attention"]),
                "no" if engine.problem else "yes",
            )
        console_of_results().print(table)
        for problem in dict.fromkeys(engine.problem for engine in found if engine.problem):
            typer.echo(problem)
    if any(engine.facts is None for engine in found):
        raise typer.Exit(1)


@engines.command()
def inspect(path: Placed, json: Json = False) -> None:
    """Describe engines: library, GPUs, graph, profiles, memory, kernels; exit with 1 if one is damaged."""
    from slipway_export.engines.tensorrt.placed import described_lines, placed_engines

    found = placed_engines(path)
    if json:
        print_json({"engines": [engine.to_json() for engine in found]})
    else:
        for engine in found:
            for line in described_lines(engine):
                typer.echo(line)
    if any(engine.facts is None for engine in found):
        raise typer.Exit(1)


def _request(
    target: str | None,
    profiles: Profiles | None,
    workspace_gib: float | None,
    builder_level: int | None,
    timing_cache: Path | None = None,
) -> EngineRequest:
    from slipway_export.engines.tensorrt.requested import parse_request

    return parse_request(
        target, profiles, workspace_gib, builder_level, timing_cache, refit=False, weight_streaming=False
    )


def _axes(texts: Sequence[str] | None) -> list[Axis]:
    from slipway_export.commands.export_arguments import parse_axis

    return [parse_axis(text) for text in texts or ()]


def _print_checked(results: Sequence[CheckedGraph]) -> None:
    """Print a table of the checked graphs, and their errors below it."""
    from rich.table import Table

    from slipway_export.commands.terminal import console_of_results
    from slipway_export.progress import format_bytes, format_duration

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in ("graph", "parses", "builds", "tensors", "size", "time", "fused", "memory"):
        table.add_column(title, overflow="fold")
    for result in results:
        report = result.report
        table.add_row(
            str(result.graph),
            "yes" if report.parsed else "no",
            "yes" if report.built else "no",
            "differ" if result.differences else ("equal" if report.parsed else ""),
            format_bytes(report.engine_bytes) if report.built else "",
            format_duration(report.build_s) if report.parsed else "",
            f"{report.fused_attention} of {result.attention}" if report.built else "",
            ", ".join(f"{name} {format_bytes(size)}" for name, size in result.memory.items())
            if report.built
            else "",
        )
    console_of_results().print(table)
    for result in results:
        for problem in (*(error.text for error in result.report.errors), *result.differences):
            typer.echo(f"{result.graph}: {problem}")
