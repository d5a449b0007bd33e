"""Plot of `slipway listen`: probability over time, with the threshold and detections of each word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from slipway_client.listening import WindowResult


def draw(results: Sequence[WindowResult], path: Path) -> None:
    """Draw the probability of each word over time.

    Args:
        results: Results of the windows, in order of time.
        path: Image file; its suffix determines the format.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, word in enumerate(dict.fromkeys(result.word for result in results)):
        windows = [result for result in results if result.word == word]
        events = [result for result in windows if result.event]
        color = f"C{number}"
        times_s = [result.time_s for result in windows]
        axes.plot(times_s, [result.probability for result in windows], color=color, marker=".", label=word)
        axes.plot(times_s, [result.threshold for result in windows], color=color, linestyle="--", linewidth=1)
        axes.scatter(
            [result.time_s for result in events],
            [result.probability for result in events],
            color=color,
            s=80,
            zorder=3,
        )
    axes.set(xlabel="end of the window (s)", ylabel="probability", ylim=(-0.02, 1.02))
    axes.set_title("Wake words; dashed: threshold, large dots: detections", fontsize=10)
    if results:
        axes.legend(loc="upper left")
    figure.savefig(path, dpi=150)
