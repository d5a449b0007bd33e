"""One ONNX graph of an authored model, whose tensors may stay where they were computed.

Arrays go in from memory, OrtValues from wherever an earlier graph left them; outputs come out as OrtValues on
the model's device, but for those that are asked for in memory. So what a graph leaves for the next one, or
for the next request, never crosses the bus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from slipway_serving.backends.onnxruntime import session, signature
from slipway_serving.program import Settings

Array = NDArray[Any]
State = dict[str, ort.OrtValue]


class Graph:
    """A graph in a session of its own.

    Args:
        settings: of the model: its folder holds the file, its config has the session parameters of the
            onnxruntime backend and the device.
        filename: of the graph.

    Attributes:
        inputs: their names.
        ranks: number of axes of each input.
        outputs: their names.

    Raises:
        InvalidRequest: the graph does not load or a parameter cannot be read.
    """

    def __init__(self, settings: Settings, filename: str) -> None:
        self.filename = filename
        self._device = ("cuda", settings.device_id) if settings.kind == "GPU" else ("cpu", 0)
        providers = session.providers(settings.config, settings.kind, settings.device_id)
        config = {**settings.config, "default_model_filename": filename}
        self._session = session.load(config, settings.folder, providers)
        self._taken = signature.graph_signature(self._session).inputs
        self.ranks = {name: len(tensor.shape) for name, tensor in self._taken.items()}
        self.inputs = tuple(self.ranks)
        self.outputs = tuple(value.name for value in self._session.get_outputs())

    def zeros(self, names: Iterable[str]) -> State:
        """Return float32 inputs of zeros on the model's device, of the sizes that the graph states.

        An axis that it leaves open, the batch, has the size 1. Inputs of one shape are one value, since a run
        changes none of its inputs.

        Args:
            names: of the inputs.
        """
        made: dict[tuple[int, ...], ort.OrtValue] = {}
        state: State = {}
        for name in names:
            shape = tuple(size if isinstance(size, int) else 1 for size in self._taken[name].shape)
            if shape not in made:
                empty = np.zeros(shape, np.float32)
                made[shape] = ort.OrtValue.ortvalue_from_numpy(empty, *self._device)
            state[name] = made[shape]
        return state

    def run(
        self,
        tensors: Mapping[str, Array | ort.OrtValue],
        in_memory: Collection[str] = (),
        wanted: Collection[str] | None = None,
    ) -> State:
        """Run the graph.

        Args:
            tensors: by input name.
            in_memory: outputs that are wanted as arrays: their ``numpy()`` is at hand.
            wanted: outputs to give; no memory outlives the run for others. All when None.

        Returns:
            Every wanted output by name.
        """
        binding = self._session.io_binding()
        for name, tensor in tensors.items():
            if isinstance(tensor, ort.OrtValue):
                binding.bind_ortvalue_input(name, tensor)
            else:
                binding.bind_cpu_input(name, np.ascontiguousarray(tensor))
        given = [name for name in self.outputs if wanted is None or name in wanted]
        for name in given:
            binding.bind_output(name, *(("cpu", 0) if name in in_memory else self._device))
        self._session.run_with_iobinding(binding)
        return dict(zip(given, binding.get_outputs(), strict=True))
