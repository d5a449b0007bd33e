"""Comparison of a stepped network's graphs, run step by step, with the network's own whole run.

The inputs of every step and run are made as the description says. Each run of a step starts from the values
carried over from the last run of the step before. PyTorch receives the same values joined over the steps. A
run that does not commit is compared with a whole run that ends in it, since no later step sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slipway_export.engines.device import Device
from slipway_export.graph.onnx import example_inputs
from slipway_export.spec import (
    CARRIED_PREFIX,
    Component,
    Precision,
    StepInput,
    Stepped,
    TensorSpec,
    Tolerance,
)
from slipway_export.verification.comparison import (
    Array,
    ParityRow,
    RunGraph,
    compare,
    format_point,
    load_graph,
    output_tolerance,
    run_at,
)
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

# First seed of the example values. The verification of the points uses 0 and 1.
_FIRST_SEED = 2


def verify_stepped(
    stepped: Stepped,
    paths: Mapping[str, Path],
    precision: Precision,
    point: Point | None = None,
    device: Device = Device.CPU,
    scratch: Path | None = None,
) -> list[ParityRow]:
    """Run a stepped network's graphs and compare every output of every run with its own whole run.

    Args:
        stepped: Description of the stepped network.
        paths: Paths of its graphs, by label of the component.
        precision: Precision that the user requested, which selects the bounds of the ``next`` component.
        point: Sizes of the ``next`` component's axes; opt when None.
        device: Device to run both sides on.
        scratch: Folder for copies of the graphs, if they are needed; the graphs' own when None.

    Returns:
        A row for each step, run and output.

    Raises:
        InvalidRequest: The whole run does not return what the description says.
        ParityFailed: A graph refuses the inputs of a step, or an output has another shape.
    """
    precision = stepped.next.precision(precision)
    graphs = {
        c.label: load_graph(c, paths[c.label], precision, device, scratch)
        for c in (stepped.first, stepped.next)
        if c is not None
    }
    return stepped_parity_rows(
        stepped, graphs, lambda output: output_tolerance(stepped.next, output, precision), point, device
    )


def stepped_parity_rows(
    stepped: Stepped,
    graphs: Mapping[str, tuple[RunGraph, str]],
    bound: Callable[[TensorSpec], Tolerance],
    point: Point | None = None,
    device: Device = Device.CPU,
) -> list[ParityRow]:
    """Run the served form of a stepped network and compare every output of every run with its own whole run.

    Args:
        stepped: Description of the stepped network.
        graphs: Function that runs each graph, and its name in the rows, by label of the component.
        bound: Function that returns the bounds of an output.
        point: Sizes of the ``next`` component's axes; opt when None.
        device: Device for the whole run.

    Returns:
        A row for each step, run and output.

    Raises:
        InvalidRequest: The whole run does not return what the description says.
        ParityFailed: The inputs of a step are refused, or an output has another shape.
    """
    steps = _Steps(stepped, stepped.next.points()["opt"] if point is None else point, device)
    committing = stepped.runs - 1
    whole = steps.expected([steps.inputs(step, committing) for step in range(stepped.steps)])
    rows: list[ParityRow] = []
    carried = steps.initial()
    for step in range(stepped.steps):
        component = steps.component(step)
        run, verified_on = graphs[component.label]
        for turn in range(stepped.runs):
            name = steps.point_name(step, turn)
            actual = run_at(component, run, {**steps.inputs(step, turn), **carried}, name)
            expected = whole[step] if turn == committing else steps.expected_of_trial(step, turn)
            rows += [
                compare(
                    component, output, name, actual[output], expected[output],
                    bound(steps.output(output)), verified_on,
                )
                for output in stepped.outputs
            ]  # fmt: skip
        carried = _carried_values(component, actual)
    return rows


@dataclass(frozen=True)
class _Steps:
    """Input and output values of a stepped network's verified run."""

    stepped: Stepped
    sizes: Point
    device: Device

    def component(self, step: int) -> Component:
        """Return the component that a step runs."""
        first = self.stepped.first
        return first if first is not None and step == 0 else self.stepped.next

    def point(self, step: int) -> Point:
        component = self.component(step)
        return {axis.name: self.sizes.get(axis.name, axis.opt) for axis in component.axes}

    def point_name(self, step: int, run: int) -> str:
        stepped = self.stepped
        name = f"step {step + 1} of {stepped.steps}"
        if stepped.runs > 1:
            commits = ", which commits" if run == stepped.runs - 1 else ""
            name += f", run {run + 1} of {stepped.runs}{commits}"
        return format_point(name, self.point(step))

    def output(self, name: str) -> TensorSpec:
        return next(tensor for tensor in self.stepped.next.outputs if tensor.name == name)

    def initial(self) -> dict[str, Array]:
        """Return the carried values of the first step; none if it has a graph of its own."""
        if self.stepped.first is not None:
            return {}
        point = self.point(0)
        return {
            tensor.name: np.full(tensor.at(point), tensor.initial, tensor.dtype.value)
            for tensor in self.stepped.carried
        }

    def inputs(self, step: int, run: int) -> dict[str, Array]:
        """Return the inputs of one run that are not carried."""
        stepped, component, point = self.stepped, self.component(step), self.point(step)
        committing = run == stepped.runs - 1
        seeds = {
            "constant": _FIRST_SEED,
            "step": _FIRST_SEED + 1 + step,
            "run": _FIRST_SEED + 1 + stepped.steps + step * stepped.runs + run,
        }
        examples = {kind: example_inputs(component, point, seed) for kind, seed in seeds.items()}
        carried = {tensor.name for tensor in stepped.carried}
        values = {}
        for tensor in component.inputs:
            if tensor.name in carried:
                continue
            new = stepped.inputs.get(tensor.name)
            if new is None:
                values[tensor.name] = examples["constant"][tensor.name]
            elif new.committed is not None and committing:
                values[tensor.name] = np.full(tensor.at(point), new.committed, tensor.dtype.value)
            elif new.make is not None:
                values[tensor.name] = self.broadcast(tensor, new.make(step), point)
            else:
                values[tensor.name] = examples["run" if new.each_run else "step"][tensor.name]
        return values if step == 0 else self._overlapping(values, step, run)

    def _overlapping(self, values: dict[str, Array], step: int, run: int) -> dict[str, Array]:
        """Copy the part that inputs share with the step before from that step's inputs."""
        shared = {name: new for name, new in self.stepped.inputs.items() if new.overlap}
        if not shared:
            return values
        before = self.inputs(step - 1, run)
        for name, new in shared.items():
            overlap = np.take(before[name], np.arange(-new.overlap, 0), axis=new.axis)
            values[name] = np.concatenate([overlap, _after_overlap(new, values[name])], axis=new.axis)
        return values

    def broadcast(self, tensor: TensorSpec, array: Array, point: Point) -> Array:
        """Broadcast a made value to the shape and dtype of an input."""
        try:
            return np.broadcast_to(array, tensor.at(point)).astype(tensor.dtype.value)
        except ValueError:
            raise InvalidRequest(
                f"{self.stepped.next.label}: the values made for {tensor.name} must have shape"
                f" {list(tensor.at(point))}, or one that broadcasts to it, got {list(array.shape)}"
            ) from None

    def expected_of_trial(self, step: int, run: int) -> dict[str, Array]:
        """Return PyTorch's outputs of a run that does not commit, which follows committed earlier steps."""
        committing = self.stepped.runs - 1
        before = [self.inputs(earlier, committing) for earlier in range(step)]
        return self.expected([*before, self.inputs(step, run)])[-1]

    def expected(self, steps: list[dict[str, Array]]) -> list[dict[str, Array]]:
        """RunGraph PyTorch over the joined inputs of some steps and return each step's outputs."""
        import torch

        names = dict.fromkeys(name for values in steps for name in values)
        joined = {name: self.joined(name, [v[name] for v in steps if name in v]) for name in names}
        with torch.no_grad():
            whole = self.stepped.reference(
                {name: torch.from_numpy(array.copy()).to(self.device.torch) for name, array in joined.items()}
            )
        cut = {name: self.cut(name, whole[name].cpu().numpy(), len(steps)) for name in self.stepped.outputs}
        return [{name: parts[step] for name, parts in cut.items()} for step in range(len(steps))]

    def joined(self, name: str, parts: list[Array]) -> Array:
        """Join the steps' values of an input to that of a whole run."""
        new = self.stepped.inputs.get(name)
        if new is None:
            return parts[0]
        if new.axis is None:
            return np.stack(parts)
        later = [_after_overlap(new, part) for part in parts[1:]]
        return np.concatenate([parts[0], *later], axis=new.axis)

    def cut(self, name: str, whole: Array, steps: int) -> list[Array]:
        """Split an output of a whole run into those of its steps."""
        axis = self.stepped.outputs[name]
        if axis is None:
            return list(whole)
        sizes = [
            next(t for t in self.component(step).outputs if t.name == name).at(self.point(step))[axis]
            for step in range(steps)
        ]
        if whole.shape[axis] != sum(sizes):
            raise InvalidRequest(
                f"{self.stepped.next.label}: the whole run must return size {sum(sizes)} of {name} along"
                f" dimension {axis} for {steps} steps, got {list(whole.shape)}"
            )
        return np.split(whole, np.cumsum(sizes)[:-1], axis=axis)


def _after_overlap(new: StepInput, array: Array) -> Array:
    assert new.axis is not None  # StepInput requires an axis if there is an overlap.
    return np.take(array, np.arange(new.overlap, array.shape[new.axis]), axis=new.axis)


def _carried_values(component: Component, outputs: Mapping[str, Array]) -> dict[str, Array]:
    names = (tensor.name for tensor in component.outputs)
    return {
        name.removeprefix(CARRIED_PREFIX): outputs[name] for name in names if name.startswith(CARRIED_PREFIX)
    }
