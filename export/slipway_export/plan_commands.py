"""What machine is needed, for people: `slipway export … --plan` and `slipway plan`, as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_export.progress import duration, in_bytes

if TYPE_CHECKING:
    from slipway_export.run import ExportOptions
    from slipway_export.sizing import Machine, Need
    from slipway_export.spec import Component, Family

_WIDTH = 160


def plan(
    repository: Annotated[Path, typer.Argument(help="Triton model repository with exported models.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Where the checkpoint's configurations are now, if not where it was exported from.",
            metavar="PRESET|DIR|HUB_ID",
        ),
    ] = None,
) -> None:
    """Say what the exported models of a repository take: disk, memory, device, and a step's time."""
    from slipway_export.commands import quiet_libraries
    from slipway_export.placed_sizing import exported_models, placed_needs
    from slipway_export.sizing import this_machine

    with quiet_libraries():
        models = exported_models(repository)
        machine = this_machine()
        found = placed_needs(models, machine, checkpoint)
    print_served(found.needs, machine)
    for problem in found.unknown:
        typer.echo(problem)


def print_plan(family: Family, options: ExportOptions) -> None:
    """Print what an export would take, from the checkpoint's configurations; nothing is written.

    Args:
        family: what the checkpoint is of.
        options: of the export.

    Raises:
        InvalidRequest: the checkpoint or an option is not as it must be.
    """
    from slipway_export.checkpoint import open_checkpoint
    from slipway_export.commands import quiet_libraries
    from slipway_export.engines import choose_torch
    from slipway_export.run import components_of
    from slipway_export.sizing import needs, this_machine
    from slipway_export.torch_sizing import torch_need
    from slipway_export.weights import from_configurations

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
    sizes = [
        f"{component.label} {', '.join(f'{k}={v}' for k, v in component.points()['opt'].items())}"
        for component in components
    ]
    rows = [
        (
            need.label, need.served or need.precision.value, f"{need.parameters / 1e6:,.1f}",
            in_bytes(need.disk_bytes), in_bytes(need.export_bytes), in_bytes(need.verify_bytes),
            in_bytes(need.serve_bytes), in_bytes(need.device_bytes), in_time(need.export_s),
            in_time(need.verify_s), in_time(need.step_s),
        )
        for need in found
    ]  # fmt: skip
    titles = (
        "graph", "precision", "million parameters", "disk", "RAM to export", "to verify", "to serve",
        "device", "time to export", "to verify whole", "a step",
    )  # fmt: skip
    _print(titles, rows)
    typer.echo(f"Served, and a step: at opt ({'; '.join(sizes)}). Verified whole: at all points.")
    _print_machine(machine)


def _is_elsewhere(component: Component, options: ExportOptions) -> bool:
    place = options.places.get(component.name)
    return place is not None and bool(place.server)


def print_served(found: Sequence[Need], machine: Machine) -> None:
    """Print what placed graphs take."""
    rows = [
        (
            need.label,
            need.served or need.precision.value,
            in_bytes(need.disk_bytes),
            in_bytes(need.serve_bytes),
            in_bytes(need.device_bytes),
            in_time(need.step_s) if need.operations else "not known",
        )
        for need in found
    ]
    _print(("graph", "precision", "disk", "RAM to serve", "device", "a step at opt"), rows)
    _print_machine(machine)


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i < 2 else "right")
    for row in rows:
        table.add_row(*row)
    # A file or a pipe has no width to fit into.
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


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
