"""Chart of a soak test: what the server holds and how long it takes, over time."""

from __future__ import annotations

from pathlib import Path

from slipway_loadtests.figure import new_figure
from slipway_loadtests.soak.running import Result


def draw_soak(result: Result, path: Path) -> None:
    """Draw a soak test: the server's resources over time, p95 of each model, and the kills."""
    held = {name: line for name, line in result.lines.items() if not name.startswith("p95")}
    figure, panels = new_figure(len(held) + 1)
    for axes, (name, line) in zip(panels, held.items(), strict=False):
        axes.plot([time_s / 60 for time_s in line.times_s], line.values)
        axes.set(title=name, xlabel="minutes")
    for name, line in result.lines.items():
        if name not in held:
            panels[-1].plot([time_s / 60 for time_s in line.times_s], line.values, label=name)
    panels[-1].set(title="p95 of good requests, s", xlabel="minutes", yscale="log")
    for axes in panels:
        for kill in result.run.kills:
            axes.axvline((kill.at_s - result.run.begun_s) / 60, color="tab:red", linewidth=0.6)
    for axes in panels[:-1]:
        axes.set_ylim(bottom=0)
    if len(result.lines) > len(held):
        panels[-1].legend(fontsize="x-small")
    figure.savefig(path)
