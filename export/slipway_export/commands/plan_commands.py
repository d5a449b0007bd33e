"""What machine is needed, for people: `slipway export … --plan` and `slipway plan`, as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipway_export.progress import duration, in_bytes
from slipway_serving.protocol.command_output import Json, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from slipway_export.options import ExportOptions
    from slipway_export.sizing.estimate import Machine, Need
    from slipway_export.spec import Component, Family


def plan(
    repository: Annotated[Path, typer.Argument(help="Triton model repository with exported models.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Where the checkpoint's configurations are now, if not where it was exported from.",
            metavar="PRESET|DIR|HUB_ID",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say what the exported models of a repository take: disk, memory, device, and a step's time."""
    from slipway_export.commands.terminal import quiet_libraries
    from slipway_export.sizing.estimate import this_machine
    from slipway_export.sizing.placed import exported_models, placed_needs

    with quiet_libraries():
        models = exported_models(repository)
        machine = this_machine()
        found = placed_needs(models, machine, checkpoint)
    if json:
        print_json({**_document(found.needs, machine), "unknown": list(found.unknown)})
        return
    print_served(found.needs)
    _print_machine(machine)
    for problem in found.unknown:
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
    from slipway_export.checkpoint.opening import open_checkpoint
    from slipway_export.checkpoint.stored_weights import from_configurations
    from slipway_export.commands.terminal import quiet_libraries
    from slipway_export.engines.choice import choose_torch
    from slipway_export.run import components_of
    from slipway_export.sizing.estimate import needs, this_machine
    from slipway_export.sizing.torch_needs import torch_need

    family = family.variant(options.variant)
    with (
        quiet_libraries(),
        from_configurations(),
        open_checkpoint(family, options.checkpoint, options.parts, options.files) as checkpoint,
    ):
        components = components_of(family, checkpoint, options)
        machine = this_machine()
        by_torch = choose_torch([c for c in components if not _is_elsewhere(c, options)], options)
        found = [
            need
            for component in components
            for need in (
                [torch_need(component, by_torch[component.label], machine)]
                if component.label in by_torch
                else needs(component, machine)
            )
        ]
    sizes = {component.label: component.points()["opt"] for component in components}
    if json:
        print_json({**_document(found, machine), "opt": sizes})
        return
    print_needs(found, sizes)
    typer.echo("To serve, and a step: at the sizes above. To verify whole: at all points.")
    _print_machine(machine)


def _is_elsewhere(component: Component, options: ExportOptions) -> bool:
    place = options.places.get(component.name)
    return place is not None and bool(place.server)


# Characters of a quantity's title and of one value, with the two spaces after each.
_TITLE_WIDTH, _CELL_WIDTH = 17, 10
_QUANTITIES: Mapping[str, Callable[[Need], str]] = {
    "disk": lambda need: in_bytes(need.disk_bytes),
    "RAM to export": lambda need: in_bytes(need.export_bytes),
    "RAM to verify": lambda need: in_bytes(need.verify_bytes),
    "RAM to serve": lambda need: in_bytes(need.serve_bytes),
    "device": lambda need: in_bytes(need.device_bytes),
    "time to export": lambda need: in_time(need.export_s),
    "to verify whole": lambda need: in_time(need.verify_s),
    "a step": lambda need: in_time(need.step_s),
}


def print_needs(
    found: Sequence[Need], sizes: Mapping[str, Mapping[str, int]], console: Console | None = None
) -> None:
    """Print a table for each graph of an export, with a column for each precision.

    Args:
        found: Needs of the graphs, one for each precision of a graph.
        sizes: Sizes of the axes at opt, by the graph's label.
        console: Console to print on; stdout if None.
    """
    from rich.markup import escape
    from rich.table import Table

    from slipway_export.commands.terminal import console_of_results

    shown = console or console_of_results()
    for label in dict.fromkeys(need.label for need in found):
        needs = [need for need in found if need.label == label]
        at = ", ".join(f"{axis}={size}" for axis, size in sizes[label].items())
        shown.print(
            f"\n[bold]{escape(label)}[/]: {needs[0].parameters / 1e6:,.1f} million parameters, at {at}"
        )
        fitting = max(1, (shown.width - _TITLE_WIDTH) // _CELL_WIDTH)
        for first in range(0, len(needs), fitting):
            some = needs[first : first + fitting]
            table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
            table.add_column("", no_wrap=True)
            for need in some:
                table.add_column(need.served or need.precision.value, justify="right")
            for title, text in _QUANTITIES.items():
                table.add_row(title, *map(text, some))
            shown.print(table)


def print_served(found: Sequence[Need], console: Console | None = None) -> None:
    """Print the disk, memory and time that placed graphs need, a row for each.

    Args:
        found: Needs of the graphs.
        console: Console to print on; stdout if None.
    """
    from rich.table import Table

    from slipway_export.commands.terminal import console_of_results

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("model, graph", overflow="fold")
    table.add_column("precision", no_wrap=True)
    for title in ("disk", "RAM", "device", "a step"):
        table.add_column(title, justify="right", no_wrap=True)
    for need in found:
        graph = need.label.partition("/")[2]
        table.add_row(
            f"{need.model}/{graph}" if graph else need.model,
            need.served or need.precision.value,
            in_bytes(need.disk_bytes),
            in_bytes(need.serve_bytes),
            in_bytes(need.device_bytes),
            in_time(need.step_s) if need.operations else "unknown",
        )
    shown = console or console_of_results()
    shown.print(table)
    shown.print("RAM and device: to serve. A step: one forward at opt.")


def _document(found: Sequence[Need], machine: Machine) -> dict[str, Any]:
    return {
        "graphs": [{**asdict(need), "step_s": need.step_s if need.operations else None} for need in found],
        "machine": {
            "pytorch_operations_per_s": machine.speed.pytorch,
            "onnxruntime_operations_per_s": machine.speed.onnxruntime,
            "traced_operator_s": machine.call_s,
        },
    }


def _print_machine(machine: Machine) -> None:
    speed = machine.speed
    typer.echo(
        f"Times on this machine's CPU as busy as it is now: {speed.pytorch / 1e9:.0f} and"
        f" {speed.onnxruntime / 1e9:.0f} billion operations a second in PyTorch and ONNX Runtime,"
        f" {machine.call_s * 1e3:.2f} ms a traced operator."
    )


def in_time(seconds: float) -> str:
    """Return a time for people, from milliseconds to days."""
    if seconds < 0.001:
        return "under 1 ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else duration(seconds)
