"""Blank figures with a row of panels, which charts draw on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_INCHES = (5.0, 3.6)


def new_figure(panels: int) -> tuple[Any, Sequence[Axes]]:
    """Return a figure and its panels, side by side."""
    # Avoid pyplot, which keeps global state and needs a display.
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(panels * width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])
