"""The plot of `slipway imu`: trajectories from above, and how far they are from the ground truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clients.imu.recording import Motion, Recording

_TRUTH = "ground truth"


def draw(recording: Recording, motions: Mapping[str, Motion], path: Path) -> None:
    """Draw trajectories.

    Args:
        recording: whose time and ground truth to use.
        motions: by name, over the recording's frames.
        path: of the picture; its suffix is the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    truth = recording.truth
    shown = {**motions, _TRUTH: truth} if truth else dict(motions)
    colors = {name: "black" if name == _TRUTH else f"C{number}" for number, name in enumerate(shown)}
    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    above, over_time = figure.subplots(1, 2)
    for name, motion in shown.items():
        x, y, _ = motion.positions.T
        above.plot(x, y, color=colors[name], label=name, linewidth=1)
        above.plot(x[:1], y[:1], color=colors[name], marker="o")
    above.set(title="from above (dot: start)", xlabel="x (m)", ylabel="y (m)")
    above.set_aspect("equal", adjustable="datalim")
    above.legend()
    for name, motion in motions.items():
        off = motion.positions - (truth.positions if truth else motion.positions[:1])
        over_time.plot(recording.time_s, np.linalg.norm(off, axis=1), color=colors[name], label=name)
    title = "distance from the ground truth" if truth else "distance from the start"
    over_time.set(title=title, xlabel="time (s)", ylabel="m")
    over_time.legend()
    figure.suptitle(recording.name)
    figure.savefig(path, dpi=150)
