"""Number of threads that compute one request of a small graph, chosen by the counted work of the graph.

ONNX Runtime gives each graph a pool with a thread per core. Triton's C++ backend lets the idle threads of a
pool spin, so under load the pools of small graphs take the cores from one another
(docs/measurements/backends.md has the figures). A request that one thread computes in a few milliseconds
gains little from a second one, so such a graph gets one thread. Larger graphs, and graphs whose requests are
not merged under load, keep all cores.
"""

from __future__ import annotations

from slipway_export.sizing.cost import counted
from slipway_export.spec import Component

SMALL_OPERATIONS = 0.2e9
"""Floating-point operations of a merged request up to which a graph is small.

With 8 and 16 clients, one thread raised wake words (0.11 and 0.14 GFLOP) from 0.91 and 0.85 times our backend
to 1.40 and 1.37 times. It lowered AirIMU (0.23 GFLOP) from 1.23 and 1.14 times to 1.11 and 1.07 times.
"""


def graph_threads(component: Component) -> int | None:
    """Return the number of threads that compute a request of a component's graph; None leaves all cores.

    Args:
        component: Description of the component; only one whose requests are merged gets fewer threads.
    """
    if component.merge_us is None:
        return None
    (work,) = counted(component, [component.points()["opt"]])
    return 1 if work.operations <= SMALL_OPERATIONS else None
