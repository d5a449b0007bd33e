"""Tables of `slipway export … --plan` and `slipway plan`: which machine an export or its models need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipway_export.progress import format_bytes, format_duration
from slipway_serving.protocol.command_output import Json, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from slipway_export.options import ExportOptions
    from slipway_export.sizing.estimate import Machine, ResourceEstimate
    from slipway_export.sizing.states import StateEstimate
    from slipway_export.spec import Component, Family


def plan(
    repository: Annotated[Path, typer.Argument(help="Triton model repository with exported models.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint with the configurations, if it is no longer where the export read it.",
            metavar="PRESET|DIR|HUB_ID",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the disk, memory and GPU memory that exported models need, and the time of one step."""
    from slipway_export.commands.terminal import quiet_libraries
    from slipway_export.sizing.estimate import this_machine
    from slipway_export.sizing.placed import estimate_placed, exported_models
    from slipway_export.sizing.states import estimate_states

    with quiet_libraries():
        models = exported_models(repository)
        machine = this_machine()
        result = estimate_placed(models, machine, checkpoint)
        states = estimate_states(repository, models, checkpoint)
    if json:
        document = {**_document(result.estimates, machine), "unknown": list(result.unknown)}
        print_json({**document, "states": [_state_document(state) for state in states]})
        return
    print_placed_estimates(result.estimates)
    for state in states:
        typer.echo(describe_state(state))
    _print_machine(machine)
    for problem in result.unknown:
        typer.echo(problem)


def print_plan(family: Family, options: ExportOptions, *, json: bool = False) -> None:
    """Print the disk, memory and time that an export needs, from the checkpoint's configurations.

    Args:
        family: Family of the checkpoint.
        options: Options of the export.
        json: True to print a JSON document instead of tables.

    Raises:
        InvalidRequest: The checkpoint or an option is invalid.
    """
    from slipway_export.checkpoint.lora.beside import check_beside
    from slipway_export.checkpoint.opening import open_checkpoint
    from slipway_export.commands.terminal import quiet_libraries
    from slipway_export.engines.choice import choose_torch
    from slipway_export.engines.providers import choose_providers
    from slipway_export.run import check_choices, components_of, wanted_of
    from slipway_export.sizing.estimate import this_machine
    from slipway_export.sizing.torch_needs import estimate_torch

    family = family.variant(options.variant)
    with (
        quiet_libraries(),
        open_checkpoint(
            family,
            options.checkpoint,
            options.parts,
            options.files,
            configurations_only=True,
            wanted=wanted_of(family, options),
            requested=options.additions,
            variant_file=options.variant_file,
            report=None if json else typer.echo,
        ) as checkpoint,
    ):
        check_beside(family, checkpoint, options.additions)
        components = components_of(family, checkpoint, options)
        if options.output is None:
            check_choices(components, options)
        machine = this_machine()
        choose_providers(components, options)
        torch_choices = choose_torch([c for c in components if not _is_elsewhere(c, options)], options)
        estimates = [
            estimate
            for component in components
            for estimate in (
                [estimate_torch(component, torch_choices[component.label], machine)]
                if component.label in torch_choices
                else _estimate_graph(component, options, machine)
            )
        ]
    sizes = {component.label: component.points()["opt"] for component in components}
    if json:
        print_json({**_document(estimates, machine), "opt": sizes})
        return
    print_export_estimates(estimates, sizes)
    typer.echo(
        "RAM to serve, device and a step are for the sizes above; to verify whole means at all points."
    )
    _print_machine(machine)


def _estimate_graph(component: Component, options: ExportOptions, machine: Machine) -> list[ResourceEstimate]:
    """Return the estimates of a component's graph, with its engine if TensorRT serves it."""
    from slipway_export.graph.dialect import offered
    from slipway_export.sizing.engine_needs import with_engine
    from slipway_export.sizing.estimate import estimate_component

    engine = options.engine_of(component)
    if not engine.is_tensorrt:
        return estimate_component(component, machine)
    return [with_engine(each) for each in estimate_component(component, machine, offered(component, engine))]


def _is_elsewhere(component: Component, options: ExportOptions) -> bool:
    place = options.placements.get(component.name)
    return place is not None and bool(place.server)


# Characters of a quantity's title and of one value, with the two spaces after each.
_TITLE_WIDTH, _CELL_WIDTH = 17, 10
_QUANTITIES: Mapping[str, Callable[[ResourceEstimate], str]] = {
    "disk": lambda estimate: format_bytes(estimate.disk_bytes),
    "RAM to export": lambda estimate: format_bytes(estimate.export_bytes),
    "RAM to verify": lambda estimate: format_bytes(estimate.verify_bytes),
    "RAM to build": lambda estimate: format_bytes(estimate.build_bytes) if estimate.build_bytes else "",
    "RAM to serve": lambda estimate: format_bytes(estimate.serve_bytes),
    "device": lambda estimate: format_bytes(estimate.device_bytes),
    "time to export": lambda estimate: format_time(estimate.export_s),
    "to verify whole": lambda estimate: format_time(estimate.verify_s),
    "a step": lambda estimate: format_time(estimate.step_s),
}


def print_export_estimates(
    estimates: Sequence[ResourceEstimate],
    sizes: Mapping[str, Mapping[str, int]],
    console: Console | None = None,
) -> None:
    """Print a table for each graph of an export, with a column for each precision.

    Args:
        estimates: Estimates of the graphs, one for each precision of a graph.
        sizes: Sizes of the axes at opt, by the graph's label.
        console: Console to print on; stdout if None.
    """
    from rich.markup import escape
    from rich.table import Table

    from slipway_export.commands.terminal import console_of_results

    output = console or console_of_results()
    for label in dict.fromkeys(estimate.label for estimate in estimates):
        by_precision = [estimate for estimate in estimates if estimate.label == label]
        at = ", ".join(f"{axis}={size}" for axis, size in sizes[label].items())
        output.print(
            f"\n[bold]{escape(label)}[/]: {by_precision[0].parameters / 1e6:,.1f} million parameters, at {at}"
        )
        fitting = max(1, (output.width - _TITLE_WIDTH) // _CELL_WIDTH)
        for first in range(0, len(by_precision), fitting):
            columns = by_precision[first : first + fitting]
            table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
            table.add_column("", no_wrap=True)
            for estimate in columns:
                table.add_column(estimate.served or estimate.precision.value, justify="right")
            for title, text in _QUANTITIES.items():
                if any(texts := [text(column) for column in columns]):
                    table.add_row(title, *texts)
            output.print(table)


def print_placed_estimates(estimates: Sequence[ResourceEstimate], console: Console | None = None) -> None:
    """Print the disk, memory and time that placed graphs need, a row for each.

    Args:
        estimates: Estimates of the graphs.
        console: Console to print on; stdout if None.
    """
    from rich.table import Table

    from slipway_export.commands.terminal import console_of_results

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("model, graph", overflow="fold")
    table.add_column("precision", no_wrap=True)
    for title in ("disk", "RAM", "device", "a step"):
        table.add_column(title, justify="right", no_wrap=True)
    for estimate in estimates:
        graph = estimate.label.partition("/")[2]
        table.add_row(
            f"{estimate.model}/{graph}" if graph else estimate.model,
            estimate.served or estimate.precision.value,
            format_bytes(estimate.disk_bytes),
            format_bytes(estimate.serve_bytes),
            format_bytes(estimate.device_bytes),
            format_time(estimate.step_s) if estimate.operations else "unknown",
        )
    output = console or console_of_results()
    output.print(table)
    output.print("RAM and device are the memory to serve a graph. A step is one forward at opt.")


def _document(estimates: Sequence[ResourceEstimate], machine: Machine) -> dict[str, Any]:
    """Return the JSON document of estimates."""
    return {
        "graphs": [
            {**asdict(each), "step_s": each.step_s if each.operations else None} for each in estimates
        ],
        "machine": {
            "pytorch_operations_per_s": machine.speed.pytorch,
            "onnxruntime_operations_per_s": machine.speed.onnxruntime,
            "traced_operator_s": machine.call_s,
        },
    }


def describe_state(state: StateEstimate) -> str:
    """Describe the size of a stopped video's state in one sentence."""
    shape = ", ".join(map(str, state.latents))
    of = f"{state.latents_kept} x {format_bytes(state.latents_bytes)} of latents [{shape}] and their history"
    if state.carried_bytes:
        of += f", {format_bytes(state.carried_bytes)} from earlier sections"
    cache = ""
    if state.cache_bytes is None:
        cache = "; a first-block cache adds the inputs of a step, whose size is unknown; try --checkpoint"
    elif state.cache_bytes:
        cache = f"; a first-block cache adds {format_bytes(state.cache_bytes)}"
    return f"{state.model}: the state of a stopped video has {format_bytes(state.state_bytes)} ({of}){cache}."


def _state_document(state: StateEstimate) -> dict[str, Any]:
    return {**asdict(state), "state_bytes": state.state_bytes}


def _print_machine(machine: Machine) -> None:
    speed = machine.speed
    typer.echo(
        f"The times are for this machine's CPU under its present load: {speed.pytorch / 1e9:.0f} and"
        f" {speed.onnxruntime / 1e9:.0f} billion operations per second in PyTorch and ONNX Runtime,"
        f" {machine.call_s * 1e3:.2f} ms per traced operator."
    )


def format_time(seconds: float) -> str:
    """Format a time for people, from milliseconds to days."""
    if seconds < 0.001:
        return "under 1 ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else format_duration(seconds)
