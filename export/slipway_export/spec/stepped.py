"""Stepped network: a component that is run step by step and carries tensors from each step to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway_export.spec.component import Component
from slipway_export.spec.tensors import TensorSpec
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    import torch

CARRIED_PREFIX = "next_"
"""Prefix of carried outputs: a step's output ``next_X`` becomes the input ``X`` of the next step."""


@dataclass(frozen=True)
class StepInput:
    """An input of a :class:`Stepped` that is new at each step.

    Args:
        axis: Dimension along which the tensor of a whole run is cut into those of its steps; None if a whole
            run has one tensor for each step, joined along a new first dimension.
        overlap: Number of places along the axis that a step shares with the step before.
        each_run: True if the input is also new at each run of a step, False if it is the same in all runs of
            a step.
        make: Function that returns the tensor of a step, counted from 0, if it follows from the step
            (positions). The tensor may be one that broadcasts to the shape (one position for a batch). None
            uses an example as its :class:`TensorSpec` describes it.
        committed: Value that fills the input in the run that commits (a timestep of 0); None uses a tensor
            like those of the other runs.
    """

    axis: int | None = None
    overlap: int = 0
    each_run: bool = False
    make: Callable[[int], np.ndarray[Any, Any]] | None = None
    committed: float | None = None

    def __post_init__(self) -> None:
        if self.overlap < 0 or (self.overlap and self.axis is None):
            raise InvalidRequest(
                f"a step's input must be cut along an axis to overlap by at least 0, got axis {self.axis} and"
                f" overlap {self.overlap}"
            )


WholeRun = Callable[[Mapping[str, "torch.Tensor"]], Mapping[str, "torch.Tensor"]]


@dataclass(frozen=True)
class Stepped:
    """A network run step by step: the outputs ``next_X`` of a step become the inputs ``X`` of the next one.

    A step may consist of several runs of the same places, as a denoiser's runs on one block of frames do.
    Each run begins with the values carried over from the previous step, and only the results of the last run
    are carried over; that run commits. Inputs that are neither carried nor in `inputs` are the same at every
    step.

    In addition to the parity of each graph, the steps are verified against the network's own whole run.

    Args:
        next: Graph of every step, or of every step but the first.
        inputs: Inputs that are new at each step, by name.
        outputs: Dimension along which the outputs of the steps are joined into that of a whole run, for every
            output that is not carried; None as for :class:`StepInput`.
        steps: Number of steps of the verified run.
        reference: The network's own whole run over any number of steps, in float32 and on the device of its
            inputs. It takes the inputs that are not carried by name, joined over the steps, and returns the
            outputs in the same form.
        first: Graph of the first step, which has no carried inputs; None if `next` starts from the
            ``initial`` values of its inputs.
        runs: Number of times each step is run; the last run commits.

    Raises:
        InvalidRequest: The tensors of the graphs do not fit together as described above.
    """

    next: Component
    inputs: Mapping[str, StepInput]
    outputs: Mapping[str, int | None]
    steps: int
    reference: WholeRun
    first: Component | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        problems = [*self._carry_problems(), *self._name_problems()]
        if self.steps < 1 or self.runs < 1:
            problems.append(f"steps and runs must be at least 1, got {self.steps} and {self.runs}")
        if problems:
            raise InvalidRequest(f"{self.next.label}: " + " | ".join(problems))

    @property
    def carried(self) -> tuple[TensorSpec, ...]:
        """The inputs that a step receives from the step before."""
        outputs = {tensor.name for tensor in self.next.outputs}
        return tuple(tensor for tensor in self.next.inputs if CARRIED_PREFIX + tensor.name in outputs)

    def _carry_problems(self) -> list[str]:
        """Return the problems with the tensors that a step carries to the next."""
        expected = {CARRIED_PREFIX + t.name: (t.dtype, t.sizes) for t in self.carried}
        problems = [
            f"{tensor.name} must have an initial value where there is no first graph, got none"
            for tensor in self.carried
            if self.first is None and tensor.initial is None
        ]
        for graph in (self.next,) if self.first is None else (self.first, self.next):
            actual = {t.name: (t.dtype, t.sizes) for t in graph.outputs if t.name.startswith(CARRIED_PREFIX)}
            problems += [
                f"output {name} of {graph.label} must be an input {name.removeprefix(CARRIED_PREFIX)} of the"
                " same shape and dtype, got another or none"
                for name in sorted(actual.keys() | expected.keys())
                if actual.get(name) != expected.get(name)
            ]
        return problems

    def _name_problems(self) -> list[str]:
        """Return the problems with names that the components lack."""
        carried = {tensor.name for tensor in self.carried}
        inputs = {tensor.name for tensor in self.next.inputs} - carried
        plain = {tensor.name for tensor in self.next.outputs} - {CARRIED_PREFIX + name for name in carried}
        problems = []
        if unknown := sorted(self.inputs.keys() - inputs):
            problems.append(f"inputs new at each step must be inputs that are not carried, got {unknown}")
        if self.outputs.keys() != plain:
            problems.append(
                f"outputs must be those that are not carried, {sorted(plain)}, got {sorted(self.outputs)}"
            )
        if self.first is not None:
            if extra := sorted({tensor.name for tensor in self.first.inputs} - inputs):
                problems.append(f"{self.first.label} must take inputs of {self.next.label}, got {extra}")
            if missing := sorted(plain - {tensor.name for tensor in self.first.outputs}):
                problems.append(f"{self.first.label} must have outputs {missing} too, got none")
        return problems
