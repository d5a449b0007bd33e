"""Runner for one ONNX graph of an authored model, which can keep tensors on the device between runs.

Inputs are arrays in host memory or OrtValues that an earlier run left on a device. Outputs are OrtValues on
the model's device, except those that the caller requests in host memory. So a tensor for the next graph or
the next request never crosses the bus. If the model's folder describes the network for PyTorch, PyTorch runs
it in place of the graph (`torch_engine/graph.py`), and if it has an engine, TensorRT does
(`tensorrt/graph.py`); programs use all of them in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from slipway_serving.protocol.errors import raise_all
from slipway_serving.runtime.backends.onnxruntime import session, signature
from slipway_serving.runtime.backends.onnxruntime.signature import Signature
from slipway_serving.runtime.input_sizes import InputSizes, read_ranges
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.tensorrt.engine_file import facts_file
from slipway_serving.runtime.torch_engine.network_description import options_file

Array = NDArray[Any]
State = dict[str, ort.OrtValue]


class Graph:
    """Graph with its own inference session.

    Args:
        settings: Settings of the model: its folder holds the file, its config has the session parameters of
            the onnxruntime backend and the device.
        filename: Name of the graph's file.

    Attributes:
        inputs: Names of the inputs.
        ranks: Number of axes of each input.
        outputs: Names of the outputs.

    Raises:
        InvalidRequest: The graph does not load, or a parameter cannot be read.
    """

    def __init__(self, settings: Settings, filename: str) -> None:
        self.filename = filename
        self._device = ("cuda", settings.device_id) if settings.kind == "GPU" else ("cpu", 0)
        self._network = _network(settings, filename, self._device)
        self._input_tensors = self._network.signature.inputs
        shapes = {name: tensor.shape for name, tensor in self._input_tensors.items()}
        self._model = settings.model
        self._sizes = InputSizes(shapes, read_ranges(settings.model, settings.parameters))
        self.ranks = {name: len(tensor.shape) for name, tensor in self._input_tensors.items()}
        self.inputs = tuple(self.ranks)
        self.outputs = tuple(self._network.signature.outputs)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape as the graph states it, with 1 for an open axis, the batch."""
        tensor = (self._input_tensors | self._network.signature.outputs)[name]
        return tuple(size if isinstance(size, int) else 1 for size in tensor.shape)

    def to_device(self, array: Array) -> ort.OrtValue:
        """Copy an array to the model's device; on a CPU the value shares the array's memory."""
        return ort.OrtValue.ortvalue_from_numpy(array, *self._device)

    def zeros(self, names: Iterable[str]) -> State:
        """Create float32 inputs of zeros on the model's device, with the sizes from :meth:`shape`.

        Inputs of the same shape share one value, since a run never changes its inputs.

        Args:
            names: Names of the inputs.
        """
        by_shape: dict[tuple[int, ...], ort.OrtValue] = {}
        state: State = {}
        for name in names:
            shape = self.shape(name)
            if shape not in by_shape:
                by_shape[shape] = self.to_device(np.zeros(shape, np.float32))
            state[name] = by_shape[shape]
        return state

    def run(
        self,
        tensors: Mapping[str, Array | ort.OrtValue],
        in_memory: Collection[str] = (),
        wanted: Collection[str] | None = None,
    ) -> State:
        """Run the graph.

        Args:
            tensors: Arrays or OrtValues by input name.
            in_memory: Names of outputs to return in host memory, so that ``numpy()`` needs no transfer.
            wanted: Names of outputs to return, None for all; the memory of the others is freed with the run.

        Returns:
            Every wanted output by name.

        Raises:
            InvalidRequest: A size lies outside the range of its axis, or inputs disagree about an axis.
        """
        raise_all(self._model, self._sizes.problems({name: _shape(value) for name, value in tensors.items()}))
        given = [name for name in self.outputs if wanted is None or name in wanted]
        return dict(zip(given, self._network.run(tensors, given, in_memory), strict=True))


def _shape(tensor: Array | ort.OrtValue) -> Sequence[int]:
    return tensor.shape() if isinstance(tensor, ort.OrtValue) else tensor.shape


class _Network(Protocol):
    """Engine that runs a graph.

    Attributes:
        signature: Names, types and shapes of the tensors.
    """

    signature: Signature

    def run(
        self, tensors: Mapping[str, Array | ort.OrtValue], given: Sequence[str], in_memory: Collection[str]
    ) -> list[ort.OrtValue]:
        """Run the graph and return the given outputs, those named `in_memory` in host memory."""


def _network(settings: Settings, filename: str, device: tuple[str, int]) -> _Network:
    stem = Path(filename).stem
    if (settings.folder / options_file(stem)).is_file():
        # torch is available only where PyTorch serves.
        from slipway_serving.runtime.torch_engine.graph import TorchGraph

        return TorchGraph(settings, stem)
    if (settings.folder / facts_file(stem)).is_file():
        from slipway_serving.runtime.tensorrt.graph import EngineGraph

        return EngineGraph(settings, stem)
    return _OnnxGraph(settings, filename, device)


class _OnnxGraph:
    """Graph that ONNX Runtime runs in its own session."""

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
        """Run the graph and return the given outputs, those named `in_memory` in host memory."""
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
