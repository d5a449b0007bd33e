"""Network of an authored model that PyTorch runs in place of an ONNX graph: OrtValues in, OrtValues out.

`NAME.torch.json` in the model's folder has the options, and `NAME.network.json` describes the network. The
outputs of a run stay on their device, and the next run takes them without a copy
(:mod:`slipway_serving.runtime.dlpack`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnxruntime as ort
import torch
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.runtime.dlpack import run_forward
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.torch_engine.network import load_network
from slipway_serving.runtime.torch_engine.network_description import (
    NetworkDescription,
    network_file,
    options_file,
)
from slipway_serving.runtime.torch_engine.options import TorchOptions
from slipway_serving.runtime.torch_engine.prepare import prepare_on_device

_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}


class TorchGraph:
    """PyTorch network with the tensors of an ONNX graph.

    Args:
        settings: Settings of the model: its folder has the files, its config the device and the CPU threads.
        graph: Stem of the file names.

    Attributes:
        signature: Tensors of the network, with the names and shapes of the ONNX graph.

    Raises:
        InvalidRequest: A file is missing or invalid, or the device does not support the options.
    """

    def __init__(self, settings: Settings, graph: str) -> None:
        where = f"{settings.model}/{graph}"
        described = read_facts(NetworkDescription, settings.folder / options_file(graph))
        options = TorchOptions.from_parameters(where, described.options)
        raise_all(where, options.problems(where, on_gpu=settings.kind == "GPU"))
        if threads := int(settings.parameters.get("intra_op_thread_count", "0")):
            torch.set_num_threads(threads)
        file = settings.folder / network_file(graph)
        network = load_network(where, described.network, file, options.load_precision)
        device = torch.device("cuda", settings.device_id) if settings.kind == "GPU" else torch.device("cpu")
        self.signature = network.signature
        self._forward = prepare_on_device(network, options, device, where)
        if options.compile is not None or options.cuda_graphs:
            self._warm_up(where, described, options)

    def run(
        self,
        tensors: Mapping[str, NDArray[Any] | ort.OrtValue],
        given: Sequence[str],
        in_memory: Collection[str],
    ) -> list[ort.OrtValue]:
        """Run the network.

        Args:
            tensors: Tensors by input name.
            given: Names of the outputs to return, in this order.
            in_memory: Names of the outputs that must be in CPU memory.
        """
        return run_forward(self._forward, self.signature, tensors, given, in_memory)

    def _warm_up(self, where: str, described: NetworkDescription, options: TorchOptions) -> None:
        """Run the network once, so that no caller waits for its compilation or recording."""
        zeros = (
            torch.zeros(described.warmup[name], dtype=_DTYPES[tensor.onnx_type])
            for name, tensor in self.signature.inputs.items()
        )
        try:
            self._forward(*zeros)
        except Exception as error:  # A compiler may raise any exception.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InvalidRequest(
                f"{where}: the network must run at its warm-up sizes before it is ready ({options.summary}),"
                f" got {type(error).__name__}: {reason}"
            ) from error
