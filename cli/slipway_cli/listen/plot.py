"""Plot of `slipway listen`: probability over time, with the threshold and detections of each word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from slipway_client.listening import Heard


def draw(heard: Sequence[Heard], path: Path) -> None:
    """Draw the probability of each word over time.

    Args:
        heard: Results of the windows, in order of time.
        path: Image file; its suffix determines the format.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, word in enumerate(dict.fromkeys(one.word for one in heard)):
        windows = [one for one in heard if one.word == word]
        events = [one for one in windows if one.event]
        color = f"C{number}"
        times_s = [one.time_s for one in windows]
        axes.plot(times_s, [one.probability for one in windows], color=color, marker=".", label=word)
        axes.plot(times_s, [one.threshold for one in windows], color=color, linestyle="--", linewidth=1)
        axes.scatter(
            [one.time_s for one in events], [one.probability for one in events], color=color, s=80, zorder=3
        )
    axes.set(xlabel="end of the window (s)", ylabel="probability", ylim=(-0.02, 1.02))
    axes.set_title("Wake words; dashed: threshold, large dots: detections", fontsize=10)
    if heard:
        axes.legend(loc="upper left")
    figure.savefig(path, dpi=150)
