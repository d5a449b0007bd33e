"""Runs a network that was exported as two graphs with explicit caches, and keeps the caches between calls.

:class:`SteppedModel` runs ``first.onnx`` on the first element of a sequence and ``next.onnx`` on each other.
A graph's outputs ``next_<name>`` are its caches; they stay where they were computed (OrtValues, by I/O
binding) and become the inputs ``<name>`` of the following step: memory is flat in the number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipway_serving.errors import Unrecoverable
from slipway_serving.graph import Array, Graph, State
from slipway_serving.program import Settings

CACHE_OUTPUT_PREFIX = "next_"


class SteppedModel:
    """A network as a first-step and a next-step graph.

    Args:
        settings: of the model: its folder holds ``first.onnx`` and ``next.onnx``, its config has the session
            parameters of the onnxruntime backend and the device, where the caches stay too.

    Raises:
        InvalidRequest: a graph does not load or a parameter cannot be read.
        Unrecoverable: the graphs' caches do not fit together.
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
        """The caches by name, and their sizes where the graphs state them (see :meth:`Graph.shape`)."""
        wanted = sorted(set(self._next.inputs) - set(self._first.inputs))
        return {name: self._next.shape(name) for name in wanted}

    def placed(self, arrays: Mapping[str, Array]) -> State:
        """Return caches that were read from the graphs' device on it again."""
        return {name: self._next.placed(array) for name, array in arrays.items()}

    def step(self, inputs: Mapping[str, Array], state: State | None) -> tuple[dict[str, Array], State]:
        """Run one element of a sequence.

        Args:
            inputs: the tensors of this element, without caches.
            state: the caches that the step before returned; None for the first element.

        Returns:
            The outputs that are no caches, and the caches for the next element.
        """
        graph = self._first if state is None else self._next
        plain = [name for name in graph.outputs if not name.startswith(CACHE_OUTPUT_PREFIX)]
        outputs = graph.run({**inputs, **(state or {})}, in_memory=plain)
        results = {name: outputs.pop(name).numpy() for name in plain}
        return results, {name.removeprefix(CACHE_OUTPUT_PREFIX): value for name, value in outputs.items()}
