"""Stepwise execution of a network that was exported as two graphs with explicit caches.

:class:`SteppedModel` runs ``first.onnx`` on the first element of a sequence and ``next.onnx`` on each later
element. A graph's outputs ``next_<name>`` are its caches. They stay on the device that computed them
(OrtValues with I/O binding) and become the inputs ``<name>`` of the next step, so memory does not grow with
the number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.graph import Array, Graph, State
from slipway_serving.runtime.program import Settings

CACHE_OUTPUT_PREFIX = "next_"


class SteppedModel:
    """Network that consists of a graph for the first step and a graph for each later step.

    Args:
        settings: Settings of the model. Its folder contains ``first.onnx`` and ``next.onnx``; its config has
            the session parameters of the onnxruntime backend and the device, where the caches stay too.

    Raises:
        InvalidRequest: A graph does not load, or a parameter cannot be read.
        Unrecoverable: The caches of the two graphs do not match.
    """

    def __init__(self, settings: Settings) -> None:
        self._first, self._next = Graph(settings, "first.onnx"), Graph(settings, "next.onnx")
        wanted = set(self._next.inputs) - set(self._first.inputs)
        for graph in (self._first, self._next):
            given = {
                name.removeprefix(CACHE_OUTPUT_PREFIX)
                for name in graph.outputs
                if name.startswith(CACHE_OUTPUT_PREFIX)
            }
            if given != wanted:
                raise Unrecoverable(
                    f"{settings.model}: outputs {CACHE_OUTPUT_PREFIX}* of {graph.filename} must feed the "
                    f"inputs of next.onnx, got a difference in {', '.join(sorted(given ^ wanted))}"
                )

    @property
    def caches(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the caches by name, as far as the graphs state them (see :meth:`Graph.shape`)."""
        wanted = sorted(set(self._next.inputs) - set(self._first.inputs))
        return {name: self._next.shape(name) for name in wanted}

    def to_device(self, arrays: Mapping[str, Array]) -> State:
        """Copy caches that were read from the graphs' device back to it."""
        return {name: self._next.to_device(array) for name, array in arrays.items()}

    def step(self, inputs: Mapping[str, Array], state: State | None) -> tuple[dict[str, Array], State]:
        """Run one element of a sequence.

        Args:
            inputs: Tensors of this element by name, without caches.
            state: Caches that the previous step returned; None for the first element.

        Returns:
            The outputs that are not caches, and the caches for the next element.
        """
        graph = self._first if state is None else self._next
        plain = [name for name in graph.outputs if not name.startswith(CACHE_OUTPUT_PREFIX)]
        outputs = graph.run({**inputs, **(state or {})}, in_memory=plain)
        results = {name: outputs.pop(name).numpy() for name in plain}
        return results, {name.removeprefix(CACHE_OUTPUT_PREFIX): value for name, value in outputs.items()}
