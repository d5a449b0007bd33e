"""Choice of the points at which each graph is verified, within a budget of seconds on this machine.

The module first estimates the cost of every point. A graph that fits the budget is verified at all of its
points. Any other graph is verified at its smallest point, at the largest point that fits on the way to its
maximum, and at a point between them that the export never saw; the points left out are listed with their
estimates. Two points are verified whatever the budget is, min and one with every axis above its minimum, so
that no component is placed without points that pass. On a CPU, a point whose activations do not fit in
memory is left out too, however fast it would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipway_export.engines.device import Device
from slipway_export.progress import format_duration
from slipway_export.sizing.cost import ARENA, Work, counted, seconds
from slipway_export.sizing.machine import Speed, measured_speed
from slipway_export.sizing.memory import available_memory
from slipway_export.sizing.resource_check import InsufficientResources
from slipway_export.spec import Axis, Component, Stepped
from slipway_export.verification.comparison import format_point
from slipway_serving.protocol.axis_expressions import Point

Seconds = Callable[[Component, Sequence[Point]], list[float]]
"""Function that estimates the seconds of a forward at each point, PyTorch and ONNX Runtime together."""

# Shares of a graph's time budget for its largest point and its middle point; the smallest point has the rest.
_LARGEST_SHARE, _BETWEEN_SHARE = 0.6, 0.3
# Candidate points, as fractions of the way from the smallest sizes to the largest.
_PARTS = (*(0.8**step for step in range(19)), 0.0)
# Operations per second that any machine reaches. Work that is short even at this speed needs no calibration.
_SLOWEST = 10e9


@dataclass(frozen=True)
class LeftOut:
    """Point at which a graph was not verified.

    Args:
        graph: Label of the component.
        point: Name of the point: ``opt`` or ``max``; ``steps`` for all steps as one run at opt.
        sizes: Sizes by axis.
        seconds: Estimated time to verify the point here, in seconds; None if memory does not suffice.
    """

    graph: str
    point: str
    sizes: Mapping[str, int]
    seconds: float | None

    @property
    def text(self) -> str:
        """Description of the point in one line, for people."""
        takes = "more memory than is available" if self.seconds is None else format_duration(self.seconds)
        return f"{self.graph} at {format_point(self.point, self.sizes)}, which takes {takes}"


@dataclass(frozen=True)
class Verification:
    """Points at which an export verifies its graphs.

    Args:
        points: Points of each graph by label of the graph, then by name of the point.
        steps: Point of each stepped network's whole run, by label of its ``next`` component.
        left_out: Points that do not fit the budget.
        seconds: Estimated time of the whole verification, in seconds.
    """

    points: Mapping[str, Mapping[str, Point]]
    steps: Mapping[str, Point]
    left_out: tuple[LeftOut, ...]
    seconds: float

    def left_out_of(self, labels: set[str]) -> tuple[LeftOut, ...]:
        """Return the points that are left out for the graphs with these labels."""
        return tuple(left for left in self.left_out if left.graph in labels)


def all_points(components: Sequence[Component], stepped: Sequence[Stepped]) -> Verification:
    """Return a verification at all points, with no time estimate."""
    return Verification(
        {component.label: component.points() for component in components},
        {run.next.label: run.next.points()["opt"] for run in stepped},
        (),
        0.0,
    )


def choose_for_machine(
    components: Sequence[Component],
    stepped: Sequence[Stepped],
    budget: float,
    device: Device,
    memory: Mapping[str, int],
    report: Callable[[str], None],
) -> Verification:
    """Choose the points of an export's graphs by this machine's speed and memory, and report the estimate.

    Args:
        components: Components to verify.
        stepped: Networks whose steps are verified as one run.
        budget: Time for all of them, in seconds.
        device: Device that PyTorch and ONNX Runtime run on.
        memory: Bytes that each graph takes without its activations, by label of the graph.
        report: Callback that receives the estimate and the points left out, one line at a time.

    Raises:
        InsufficientResources: This machine has too little memory even for the smallest points.
    """
    count = _WorkCache(memory if device is Device.CPU else {})
    slowly = count.seconds(Speed(device.value, _SLOWEST, _SLOWEST))
    if _upper_bound_s(components, stepped, slowly) <= budget:
        report(f"verification: at all points, within the budget of {format_duration(budget)}")
        return all_points(components, stepped)
    speed = measured_speed(device.value)
    chosen = choose_points(components, stepped, budget, count.seconds(speed))
    if math.isinf(chosen.seconds):
        raise InsufficientResources(
            "verification: memory must suffice for each graph's activations at its smallest sizes, got too"
            f" little for {', '.join(count.without_memory(chosen))}; try a machine with more memory,"
            " or smaller --axis"
        )
    report(
        f"verification: about {format_duration(chosen.seconds)} on the {device.value} here, which does"
        f" {speed.pytorch / 1e9:.3g} and {speed.onnxruntime / 1e9:.3g} billion operations a second in PyTorch"
        f" and ONNX Runtime; budget {format_duration(budget)}"
    )
    for left in chosen.left_out:
        report(f"verification leaves out {left.text}")
    return chosen


def _upper_bound_s(components: Sequence[Component], stepped: Sequence[Stepped], seconds: Seconds) -> float:
    """Return an upper bound for the seconds of a verification at all points, from one point of each graph."""
    largest = {c.label: seconds(c, [c.points()["max"]])[0] for c in components}
    graphs = sum(len(c.points()) * largest[c.label] for c in components)
    return graphs + sum(_forward_count(run) * largest[run.next.label] for run in stepped)


def _forward_count(stepped: Stepped) -> float:
    """Return how often a step is computed: in each run, and again in PyTorch for the steps before it."""
    steps, trials = stepped.steps, stepped.runs - 1
    return steps * stepped.runs + trials * steps * (steps - 1) / 2


def estimate(
    components: Sequence[Component],
    points: Mapping[str, Mapping[str, Point]],
    stepped: Sequence[Stepped],
    device: Device,
) -> float:
    """Estimate the time of a verification at given points on this machine, in seconds.

    Args:
        components: Components to verify.
        points: Points of each component by its label, then by name of the point.
        stepped: Networks whose steps are verified as one run, at opt.
        device: Device that PyTorch and ONNX Runtime run on.
    """
    at = _WorkCache({}).seconds(measured_speed(device.value))
    graphs = sum(sum(at(component, list(points[component.label].values()))) for component in components)
    return graphs + sum(_StepsJob(run, at).needed for run in stepped)


def _finite(seconds: float) -> float | None:
    """Return an estimated time; None for the infinite time of a point that does not fit in memory."""
    return None if math.isinf(seconds) else seconds


class _WorkCache:
    """Cache of the work of components, in which each point is counted once.

    Args:
        memory: Bytes of each graph without its activations, by its label; graphs not listed always fit.
    """

    def __init__(self, memory: Mapping[str, int]) -> None:
        self._known: dict[tuple[str, tuple[int, ...]], Work] = {}
        self._left = {label: available_memory() - taken for label, taken in memory.items()}

    def seconds(self, speed: Speed) -> Seconds:
        """Return a function that estimates times at a given speed."""

        def at(component: Component, points: Sequence[Point]) -> list[float]:
            keys = [(component.label, tuple(point.values())) for point in points]
            if new := {key: point for key, point in zip(keys, points, strict=True) if key not in self._known}:
                self._known |= zip(new, counted(component, list(new.values())), strict=True)
            return [seconds(self._known[key], speed) if self._fits(key) else math.inf for key in keys]

        return at

    def without_memory(self, chosen: Verification) -> list[str]:
        """Return the labels of graphs with a chosen point that does not fit in memory."""
        points = [(label, point) for label, named in chosen.points.items() for point in named.values()]
        points += chosen.steps.items()
        lacking = [label for label, point in points if not self._fits((label, tuple(point.values())))]
        return list(dict.fromkeys(lacking))

    def _fits(self, key: tuple[str, tuple[int, ...]]) -> bool:
        return ARENA * self._known[key].bytes <= self._left.get(key[0], math.inf)


def choose_points(
    components: Sequence[Component], stepped: Sequence[Stepped], budget: float, seconds: Seconds
) -> Verification:
    """Choose the points of an export's graphs within a budget.

    Args:
        components: Components to verify.
        stepped: Networks whose steps are verified as one run.
        budget: Time for all of them, in seconds; the others may use the time that one graph does not need.
        seconds: Function that estimates the time of each point.
    """
    jobs: list[_GraphJob | _StepsJob] = [_GraphJob(component, seconds) for component in components]
    jobs += [_StepsJob(run, seconds) for run in stepped]
    points: dict[str, Mapping[str, Point]] = {}
    steps: dict[str, Point] = {}
    left_out: list[LeftOut] = []
    total = 0.0
    for job, share in _shares(jobs, budget):
        if isinstance(job, _GraphJob):
            points[job.component.label], spent, left = job.within(share)
        else:
            steps[job.label], spent, left = job.within(share)
        left_out += left
        total += spent
    order = {component.label: i for i, component in enumerate(components)}
    left_out.sort(key=lambda left: order.get(left.graph, len(order)))
    return Verification(points, steps, tuple(left_out), total)


def _shares(
    jobs: Sequence[_GraphJob | _StepsJob], budget: float
) -> list[tuple[_GraphJob | _StepsJob, float]]:
    """Divide the budget: small jobs get all they need, and the others share the rest equally."""
    left, shares = budget, []
    for i, job in enumerate(sorted(jobs, key=lambda job: job.needed)):
        share = left / (len(jobs) - i)
        shares.append((job, share))
        left -= min(job.needed, share)
    return shares


class _GraphJob:
    """Verification of one graph."""

    def __init__(self, component: Component, seconds: Seconds) -> None:
        self.component, self._seconds = component, seconds
        named = component.points()
        self.costs = dict(zip(named, seconds(component, list(named.values())), strict=True))
        self.needed = sum(self.costs.values())

    def within(self, share: float) -> tuple[dict[str, Point], float, list[LeftOut]]:
        """Return the points, their time in seconds, and the points left out."""
        named = self.component.points()
        if self.needed <= share:
            return named, self.needed, []
        largest, cost = self._largest(share * _LARGEST_SHARE)
        points, spent = {"min": named["min"], "reduced": largest}, self.costs["min"] + cost
        between = _between(self.component.axes, largest)
        (cost,) = self._seconds(self.component, [between])
        if between not in points.values() and cost <= share * _BETWEEN_SHARE:
            points["unseen"] = between
            spent += cost
        if named["opt"] not in points.values() and spent + self.costs["opt"] <= share:
            points["opt"] = named["opt"]
            spent += self.costs["opt"]
        left = [
            LeftOut(self.component.label, name, named[name], _finite(self.costs[name]))
            for name in ("opt", "max")
            if named[name] not in points.values()
        ]
        return points, spent, left

    def _largest(self, share: float) -> tuple[Point, float]:
        axes = self.component.axes
        end = {axis.name: axis.max for axis in axes}
        return _furthest(end, axes, lambda points: self._seconds(self.component, points), share)


class _StepsJob:
    """Verification of a stepped network's steps as one run."""

    def __init__(self, stepped: Stepped, seconds: Seconds) -> None:
        self.stepped, self._seconds = stepped, seconds
        self.label = stepped.next.label
        self.opt = stepped.next.points()["opt"]
        (self.needed,) = self._at([self.opt])

    def _at(self, points: Sequence[Point]) -> list[float]:
        return [_forward_count(self.stepped) * each for each in self._seconds(self.stepped.next, points)]

    def within(self, share: float) -> tuple[Point, float, list[LeftOut]]:
        """Return the point, the run's time in seconds there, and the points left out."""
        if self.needed <= share:
            return self.opt, self.needed, []
        point, cost = _furthest(self.opt, self.stepped.next.axes, self._at, share)
        if point == self.opt:
            return point, cost, []
        return point, cost, [LeftOut(self.label, "steps", self.opt, _finite(self.needed))]


def _furthest(
    end: Point, axes: Sequence[Axis], seconds: Callable[[Sequence[Point]], list[float]], share: float
) -> tuple[Point, float]:
    """Return the point nearest to `end` that costs at most `share` seconds, and its cost.

    No axis is at its minimum. If no point fits the share, the result is the one nearest to the minimum.
    """
    parts = [_towards(end, axes, part) for part in _PARTS]
    points = [point for i, point in enumerate(parts) if point not in parts[:i]]
    costs = seconds(points)
    affordable = [i for i, cost in enumerate(costs) if cost <= share]
    best = affordable[0] if affordable else -1
    return points[best], costs[best]


def _towards(end: Point, axes: Sequence[Axis], part: float) -> Point:
    """Return the point at a fraction of the way from the smallest sizes to `end`, no axis at its minimum."""
    return {
        axis.name: min(end[axis.name], max(axis.min + 1, int(axis.min + part * (end[axis.name] - axis.min))))
        for axis in axes
    }


def _between(axes: Sequence[Axis], largest: Point) -> Point:
    """Return a point between the smallest and a larger one, different from both where the sizes allow it."""
    ranges = [Axis(axis.name, axis.min, axis.min, largest[axis.name]) for axis in axes]
    return {axis.name: axis.unseen(low=False) for axis in ranges}
