"""Plot of `slipway imu`: trajectories from above, and their distance from the ground truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slipway_client.imu.recording import Motion, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRUTH = "ground truth"


def draw(recording: Recording, motions: Mapping[str, Motion], path: Path) -> None:
    """Draw trajectories.

    Args:
        recording: Recording that provides the time and the ground truth.
        motions: Trajectories by name, one state for each frame of the recording.
        path: Image file; its suffix determines the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    truth = recording.truth
    shown = {**motions, _TRUTH: truth} if truth else dict(motions)
    colors = {name: "black" if name == _TRUTH else f"C{number}" for number, name in enumerate(shown)}
    figure = Figure(figsize=(15 if truth else 11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    *from_above, over_time = figure.subplots(1, 3 if truth else 2)
    for axes in from_above:
        for name, motion in shown.items():
            x, y, _ = motion.positions.T
            axes.plot(x, y, color=colors[name], label=name, linewidth=1)
            axes.plot(x[:1], y[:1], color=colors[name], marker="o")
        axes.set(title="from above (dot: start)", xlabel="x (m)", ylabel="y (m)")
        axes.set_aspect("equal", adjustable="datalim")
    from_above[0].legend()
    if truth:
        _zoom_to_truth(from_above[1], truth)
    for name, motion in motions.items():
        offsets = motion.positions - (truth.positions if truth else motion.positions[:1])
        over_time.plot(recording.time_s, np.linalg.norm(offsets, axis=1), color=colors[name], label=name)
    title = "distance from the ground truth" if truth else "distance from the start"
    over_time.set(title=title, xlabel="time (s)", ylabel="m", yscale="log" if truth else "linear")
    over_time.legend()
    figure.suptitle(recording.name)
    figure.savefig(path, dpi=150)


def _zoom_to_truth(axes: Axes, truth: Motion) -> None:
    """Limit the axes to the surroundings of the ground truth, from which raw signals drift far away."""
    x, y, _ = truth.positions.T
    half = 0.75 * max(float(np.ptp(x)), float(np.ptp(y)), 0.1)
    middle_x, middle_y = (float(values.min() + values.max()) / 2 for values in (x, y))
    axes.set(title="around the ground truth")
    axes.set_aspect("equal", adjustable="box")
    axes.set(xlim=(middle_x - half, middle_x + half), ylim=(middle_y - half, middle_y + half))
