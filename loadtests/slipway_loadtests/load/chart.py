"""Chart of a load test: throughput and latency of one model over the load."""

from __future__ import annotations

from typing import IO

from slipway_loadtests.figure import new_figure
from slipway_loadtests.load.summary import ModelSummary


def draw_load(found: ModelSummary, level: str, file: IO[bytes]) -> None:
    """Draw a load test of one model: answers per second and latency over the load of its stages."""
    figure, panels = new_figure(2)
    stages = sorted(found.stages, key=lambda each: each.stage.level)
    levels = [each.stage.level for each in stages]
    panels[0].plot(levels, [each.figures.per_s for each in stages], marker="o", label="answers")
    panels[0].plot(levels, [each.figures.goodput_per_s for each in stages], marker="o", label="good answers")
    rejected = [each.figures.rejected_share * each.figures.sent / each.figures.seconds for each in stages]
    panels[0].plot(levels, rejected, marker="o", label="rejected")
    panels[0].set(title="per second", xlabel=level)
    timed = [each for each in stages if "latency_s" in each.figures.measures]
    for percent in ("p50", "p95", "p99"):
        values = [getattr(each.figures.measures["latency_s"], percent) for each in timed]
        panels[1].plot([each.stage.level for each in timed], values, marker="o", label=percent)
    panels[1].set(title="latency, seconds", xlabel=level)
    for axes in panels:
        if found.knee is not None:
            axes.axvline(found.knee, color="black", linewidth=0.8, linestyle="--", label="knee")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.suptitle(found.whole.model)
    figure.savefig(file, format="png")
