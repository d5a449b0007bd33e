"""Which points each graph is verified at, within a budget of seconds on this machine.

The cost of every point is estimated first. What fits is verified at all of its points. What does not is
verified at its smallest point, at the largest that fits on the way to its largest, and at one between that
export never saw; what is left out is named with its estimate. The least, min and a point with every axis
above it, is verified whatever the budget: no component is placed without points that pass. A point whose
activations find no memory on a CPU is left out likewise, however fast it would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipway_export.cost import ARENA, Work, counted, seconds
from slipway_export.device import Device
from slipway_export.machine import Speed, measured_speed
from slipway_export.memory import available_memory
from slipway_export.progress import duration
from slipway_export.room import NoRoom
from slipway_export.spec import Axis, Component, Stepped
from slipway_export.verify import point_text
from slipway_serving.size import Point

Seconds = Callable[[Component, Sequence[Point]], list[float]]
"""Estimates what a forward takes at each of some points of a component, PyTorch and ONNX Runtime together."""

# Of what a graph may take: the largest point, and then the one between; the rest is for min.
_LARGEST_SHARE, _BETWEEN_SHARE = 0.6, 0.3
# How far on the way from the smallest sizes to the largest a point may be.
_PARTS = (*(0.8**step for step in range(19)), 0.0)
# Operations a second that any machine does: what takes little even so needs no calibration.
_SLOWEST = 10e9


@dataclass(frozen=True)
class LeftOut:
    """A point at which a graph was not verified.

    Args:
        graph: label of the component.
        point: name of the point: ``opt`` or ``max``; ``steps`` for the steps as one run at opt.
        sizes: of its axes.
        seconds: that verifying it here would take, by the estimate; infinite without the memory.
    """

    graph: str
    point: str
    sizes: Mapping[str, int]
    seconds: float

    @property
    def text(self) -> str:
        """One line for people."""
        takes = "more memory than there is" if math.isinf(self.seconds) else duration(self.seconds)
        return f"{self.graph} not at {point_text(self.point, self.sizes)}, which takes {takes}"


@dataclass(frozen=True)
class Verification:
    """What an export verifies.

    Args:
        points: of each graph by its label, by name.
        steps: the point of each stepped network's whole run, by label of its ``next`` component.
        left_out: what the budget does not hold.
        seconds: the estimate of all that is verified.
    """

    points: Mapping[str, Mapping[str, Point]]
    steps: Mapping[str, Point]
    left_out: tuple[LeftOut, ...]
    seconds: float

    def left_out_of(self, labels: set[str]) -> tuple[LeftOut, ...]:
        """Return what is left out of some graphs."""
        return tuple(left for left in self.left_out if left.graph in labels)


def whole(components: Sequence[Component], stepped: Sequence[Stepped]) -> Verification:
    """Return a verification at all points, without an estimate."""
    return Verification(
        {component.label: component.points() for component in components},
        {run.next.label: run.next.points()["opt"] for run in stepped},
        (),
        0.0,
    )


def choose_measured(
    components: Sequence[Component],
    stepped: Sequence[Stepped],
    budget: float,
    device: Device,
    memory: Mapping[str, int],
    report: Callable[[str], None],
) -> Verification:
    """Choose the points of an export's graphs by this machine's speed and memory, and say what they take.

    Args:
        components: that are verified.
        stepped: the networks whose steps are verified as one run.
        budget: seconds for all of them.
        device: that both sides run on.
        memory: bytes that each graph takes without its activations, by its label.
        report: is told the estimate.

    Raises:
        NoRoom: this machine has too little memory for the least of points.
    """
    count = _Counted(memory if device is Device.CPU else {})
    slowly = count.seconds(Speed(device.value, _SLOWEST, _SLOWEST))
    if _at_most(components, stepped, slowly) <= budget:
        report(f"verification: at all points, within the budget of {duration(budget)}")
        return whole(components, stepped)
    speed = measured_speed(device.value)
    chosen = choose(components, stepped, budget, count.seconds(speed))
    if math.isinf(chosen.seconds):
        raise NoRoom(
            "verification: memory must hold each graph's activations at its smallest sizes, got too little"
            f" for {', '.join(count.without_memory(chosen))}; try a machine with more, or smaller --axis"
        )
    report(
        f"verification: about {duration(chosen.seconds)} on the {device.value} here, which does"
        f" {speed.pytorch / 1e9:.3g} and {speed.onnxruntime / 1e9:.3g} billion operations a second in PyTorch"
        f" and ONNX Runtime; budget {duration(budget)}"
    )
    for left in chosen.left_out:
        report(f"verification: {left.text}")
    return chosen


def _at_most(components: Sequence[Component], stepped: Sequence[Stepped], seconds: Seconds) -> float:
    """Return more than a verification at all points takes, from one point of each graph."""
    largest = {c.label: seconds(c, [c.points()["max"]])[0] for c in components}
    graphs = sum(len(c.points()) * largest[c.label] for c in components)
    return graphs + sum(_forwards(run) * largest[run.next.label] for run in stepped)


def _forwards(stepped: Stepped) -> float:
    """Return how often a step is computed: in each of its runs, and in PyTorch for what led there too."""
    steps, trials = stepped.steps, stepped.runs - 1
    return steps * stepped.runs + trials * steps * (steps - 1) / 2


def estimate(
    components: Sequence[Component],
    points: Mapping[str, Mapping[str, Point]],
    stepped: Sequence[Stepped],
    device: Device,
) -> float:
    """Estimate a verification at given points on this machine, seconds.

    Args:
        components: that are verified.
        points: of each by its label, by name.
        stepped: the networks whose steps are verified as one run, at opt.
        device: that both sides run on.
    """
    at = _Counted({}).seconds(measured_speed(device.value))
    graphs = sum(sum(at(component, list(points[component.label].values()))) for component in components)
    return graphs + sum(_Run(run, at).needed for run in stepped)


class _Counted:
    """The work of components, each point counted once.

    Args:
        memory: bytes of each graph without its activations, by its label; others find memory at any point.
    """

    def __init__(self, memory: Mapping[str, int]) -> None:
        self._known: dict[tuple[str, tuple[int, ...]], Work] = {}
        self._left = {label: available_memory() - taken for label, taken in memory.items()}

    def seconds(self, speed: Speed) -> Seconds:
        """Return the estimate at a speed."""

        def at(component: Component, points: Sequence[Point]) -> list[float]:
            keys = [(component.label, tuple(point.values())) for point in points]
            if new := {key: point for key, point in zip(keys, points, strict=True) if key not in self._known}:
                self._known |= zip(new, counted(component, list(new.values())), strict=True)
            return [seconds(self._known[key], speed) if self._fits(key) else math.inf for key in keys]

        return at

    def without_memory(self, chosen: Verification) -> list[str]:
        """Return the labels of graphs that are to be verified where they find no memory."""
        places = [(label, point) for label, points in chosen.points.items() for point in points.values()]
        places += chosen.steps.items()
        lacking = [label for label, point in places if not self._fits((label, tuple(point.values())))]
        return list(dict.fromkeys(lacking))

    def _fits(self, key: tuple[str, tuple[int, ...]]) -> bool:
        return ARENA * self._known[key].bytes <= self._left.get(key[0], math.inf)


def choose(
    components: Sequence[Component], stepped: Sequence[Stepped], budget: float, seconds: Seconds
) -> Verification:
    """Choose the points of an export's graphs.

    Args:
        components: that are verified.
        stepped: the networks whose steps are verified as one run.
        budget: seconds for all of them; what one graph does not need is there for the others.
        seconds: the estimate.
    """
    jobs: list[_Graph | _Run] = [_Graph(component, seconds) for component in components]
    jobs += [_Run(run, seconds) for run in stepped]
    points: dict[str, Mapping[str, Point]] = {}
    steps: dict[str, Point] = {}
    left_out: list[LeftOut] = []
    total = 0.0
    for job, share in _shares(jobs, budget):
        if isinstance(job, _Graph):
            points[job.component.label], spent, left = job.within(share)
        else:
            steps[job.label], spent, left = job.within(share)
        left_out += left
        total += spent
    order = {component.label: i for i, component in enumerate(components)}
    left_out.sort(key=lambda left: order.get(left.graph, len(order)))
    return Verification(points, steps, tuple(left_out), total)


def _shares(jobs: Sequence[_Graph | _Run], budget: float) -> list[tuple[_Graph | _Run, float]]:
    """Give each job its part of the budget: all it needs where that is little, the same to all others."""
    left, shares = budget, []
    for i, job in enumerate(sorted(jobs, key=lambda job: job.needed)):
        share = left / (len(jobs) - i)
        shares.append((job, share))
        left -= min(job.needed, share)
    return shares


class _Graph:
    """The verification of one graph."""

    def __init__(self, component: Component, seconds: Seconds) -> None:
        self.component, self._seconds = component, seconds
        named = component.points()
        self.costs = dict(zip(named, seconds(component, list(named.values())), strict=True))
        self.needed = sum(self.costs.values())

    def within(self, share: float) -> tuple[dict[str, Point], float, list[LeftOut]]:
        """Return the points, what they take, and what is left out."""
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
            LeftOut(self.component.label, name, named[name], self.costs[name])
            for name in ("opt", "max")
            if named[name] not in points.values()
        ]
        return points, spent, left

    def _largest(self, share: float) -> tuple[Point, float]:
        axes = self.component.axes
        end = {axis.name: axis.max for axis in axes}
        return _furthest(end, axes, lambda points: self._seconds(self.component, points), share)


class _Run:
    """The verification of a stepped network's steps as one run."""

    def __init__(self, stepped: Stepped, seconds: Seconds) -> None:
        self.stepped, self._seconds = stepped, seconds
        self.label = stepped.next.label
        self.opt = stepped.next.points()["opt"]
        (self.needed,) = self._at([self.opt])

    def _at(self, points: Sequence[Point]) -> list[float]:
        return [_forwards(self.stepped) * each for each in self._seconds(self.stepped.next, points)]

    def within(self, share: float) -> tuple[Point, float, list[LeftOut]]:
        """Return the point, what the run takes there, and what is left out."""
        if self.needed <= share:
            return self.opt, self.needed, []
        point, cost = _furthest(self.opt, self.stepped.next.axes, self._at, share)
        if point == self.opt:
            return point, cost, []
        return point, cost, [LeftOut(self.label, "steps", self.opt, self.needed)]


def _furthest(
    end: Point, axes: Sequence[Axis], seconds: Callable[[Sequence[Point]], list[float]], share: float
) -> tuple[Point, float]:
    """Return the furthest point on the way to others that is within a share, and what it takes.

    No axis is at its smallest; the nearest such point is returned where none is within the share.
    """
    parts = [_towards(end, axes, part) for part in _PARTS]
    points = [point for i, point in enumerate(parts) if point not in parts[:i]]
    costs = seconds(points)
    held = [i for i, cost in enumerate(costs) if cost <= share]
    best = held[0] if held else -1
    return points[best], costs[best]


def _towards(end: Point, axes: Sequence[Axis], part: float) -> Point:
    """Return the point a part of the way from the smallest sizes to others, no axis at its smallest."""
    return {
        axis.name: min(end[axis.name], max(axis.min + 1, int(axis.min + part * (end[axis.name] - axis.min))))
        for axis in axes
    }


def _between(axes: Sequence[Axis], largest: Point) -> Point:
    """Return a point between the smallest and a larger one that is neither where the sizes allow it."""
    ranges = [Axis(axis.name, axis.min, axis.min, largest[axis.name]) for axis in axes]
    return {axis.name: axis.unseen(low=False) for axis in ranges}
