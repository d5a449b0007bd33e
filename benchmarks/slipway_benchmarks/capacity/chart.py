"""Chart of the capacity benchmark as a PNG, drawn without a display."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from slipway_benchmarks.capacity.benchmark import CapacityResult

_SHOWN = ("waiting, 300 s, drained", "in flight, 300 s, drained", "in flight, 900 s, drained")
_SHOWN_WAVES = 2


def draw_capacity(result: CapacityResult, path: Path) -> None:
    """Draw replicas by users, replicas under waves of long jobs, and utilization of session fleets."""
    # Avoid pyplot, which keeps global state and needs a display.
    figure = Figure(figsize=(15.0, 3.8), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    fleets, scaling, sessions = figure.subplots(1, 3)

    for number, (name, answers) in enumerate(result.answers.items()):
        for routing, style in (("least", "-"), ("random", "--")):
            points = [(each.users, each.replicas) for each in answers if each.routing == routing]
            label = name.partition(" ")[0] if routing == "least" else None
            fleets.plot(*zip(*points, strict=True), style, marker="o", color=f"C{number}", label=label)
    fleets.set(xscale="log", yscale="log", xlabel="users", ylabel="replicas")
    fleets.set_title("replicas for a promise (dashed: random routing)", fontsize="medium")
    fleets.legend(fontsize="small")

    shown_h = 2 * result.traffic.half_s * _SHOWN_WAVES / 3600
    for way in result.scaled:
        if way.name in _SHOWN:
            hours, held = zip(*((at_s / 3600, count) for at_s, count in way.timeline), strict=True)
            scaling.step(hours, held, where="post", label=f"{way.name}: p95 {way.p95_s:.0f} s")
    scaling.set(
        xlim=(0, shown_h), ylim=(0, 1.5 * result.traffic.most), xlabel="hours", ylabel="replicas held"
    )
    scaling.set_title(f"waves of {result.traffic.job_s:.0f} s jobs, by what is counted", fontsize="medium")
    scaling.legend(fontsize="small")

    for routing, label in (("least", "free place anywhere"), ("random", "place by hash")):
        for each, style in ((1, "-"), (4, "--")):
            bounds = [
                (bound.gpus * each, bound.utilization)
                for bound in result.sessions
                if bound.routing == routing and bound.sessions_each == each
            ]
            sessions.plot(
                *zip(*bounds, strict=True),
                style,
                marker="o",
                color="C0" if routing == "least" else "C3",
                label=f"{label}, {each} on a GPU",
            )
    places = sorted({bound.gpus * bound.sessions_each for bound in result.sessions})
    sessions.set(xscale="log", ylim=(0, 1), xlabel="places", ylabel="share taken")
    sessions.set_xticks(places, [str(count) for count in places], minor=False)
    sessions.set_xticks([], minor=True)
    sessions.set_title("sessions: how full at 1 % refused", fontsize="medium")
    sessions.legend(fontsize="small")
    figure.savefig(path)
