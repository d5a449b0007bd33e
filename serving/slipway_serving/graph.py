"""One graph of an authored model, whose tensors may stay where they were computed.

Arrays go in from memory, OrtValues from wherever an earlier graph left them; outputs come out as OrtValues on
the model's device, but for those that are asked for in memory. So what a graph leaves for the next one, or
for the next request, never crosses the bus. Where the model's folder says so, PyTorch runs the network in
place of the graph (`torch_engine/graph.py`); a program cannot see which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from slipway_serving.backends.onnxruntime import session, signature
from slipway_serving.backends.onnxruntime.signature import Signature
from slipway_serving.errors import raise_all
from slipway_serving.input_sizes import InputSizes, read_ranges
from slipway_serving.program import Settings
from slipway_serving.torch_engine.described import described_file

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
        self._network = _network(settings, filename, self._device)
        self._taken = self._network.signature.inputs
        shapes = {name: tensor.shape for name, tensor in self._taken.items()}
        self._model = settings.model
        self._sizes = InputSizes(shapes, read_ranges(settings.model, settings.parameters))
        self.ranks = {name: len(tensor.shape) for name, tensor in self._taken.items()}
        self.inputs = tuple(self.ranks)
        self.outputs = tuple(self._network.signature.outputs)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's sizes as the graph states them; of an axis that it leaves open, the batch, 1."""
        tensor = (self._taken | self._network.signature.outputs)[name]
        return tuple(size if isinstance(size, int) else 1 for size in tensor.shape)

    def placed(self, array: Array) -> ort.OrtValue:
        """Return an array on the model's device; where that is the CPU, the value is the array itself."""
        return ort.OrtValue.ortvalue_from_numpy(array, *self._device)

    def zeros(self, names: Iterable[str]) -> State:
        """Return float32 inputs of zeros on the model's device, see :meth:`shape`.

        Inputs of one shape are one value, since a run changes none of its inputs.

        Args:
            names: of the inputs.
        """
        made: dict[tuple[int, ...], ort.OrtValue] = {}
        state: State = {}
        for name in names:
            shape = self.shape(name)
            if shape not in made:
                made[shape] = self.placed(np.zeros(shape, np.float32))
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

        Raises:
            InvalidRequest: A size lies outside the range of its axis, or inputs differ in an axis.
        """
        raise_all(self._model, self._sizes.problems({name: _shape(value) for name, value in tensors.items()}))
        given = [name for name in self.outputs if wanted is None or name in wanted]
        return dict(zip(given, self._network.run(tensors, given, in_memory), strict=True))


def _shape(tensor: Array | ort.OrtValue) -> Sequence[int]:
    return tensor.shape() if isinstance(tensor, ort.OrtValue) else tensor.shape


class _Network(Protocol):
    """What runs a graph.

    Attributes:
        signature: of its tensors.
    """

    signature: Signature

    def run(
        self, tensors: Mapping[str, Array | ort.OrtValue], given: Sequence[str], in_memory: Collection[str]
    ) -> list[ort.OrtValue]:
        """Return the given outputs, those that are named in memory."""


def _network(settings: Settings, filename: str, device: tuple[str, int]) -> _Network:
    stem = Path(filename).stem
    if (settings.folder / described_file(stem)).is_file():
        # torch is at hand only where PyTorch serves.
        from slipway_serving.torch_engine.graph import TorchGraph

        return TorchGraph(settings, stem)
    return _OnnxGraph(settings, filename, device)


class _OnnxGraph:
    """A graph in a session of its own."""

    def __init__(self, settings: Settings, filename: str, device: tuple[str, int]) -> None:
        self._device = device
        providers = session.providers(settings.config, settings.kind, settings.device_id)
        config = {**settings.config, "default_model_filename": filename}
        self._session = session.load(config, settings.folder, providers)
        self._options = session.run_options(config)
        self.signature = signature.graph_signature(self._session)

    def run(
        self, tensors: Mapping[str, Array | ort.OrtValue], given: Sequence[str], in_memory: Collection[str]
    ) -> list[ort.OrtValue]:
        binding = self._session.io_binding()
        for name, tensor in tensors.items():
            if isinstance(tensor, ort.OrtValue):
                binding.bind_ortvalue_input(name, tensor)
            else:
                binding.bind_cpu_input(name, np.ascontiguousarray(tensor))
        for name in given:
            binding.bind_output(name, *(("cpu", 0) if name in in_memory else self._device))
        self._session.run_with_iobinding(binding, self._options)
        outputs: list[ort.OrtValue] = binding.get_outputs()
        return outputs
