"""A network of an authored model that PyTorch runs in place of a graph: OrtValues in, OrtValues out.

`NAME.torch.json` in the model's folder says how it runs, `NAME.network.json` what it is made of. What a run
leaves stays where it was computed, and the next one takes it without a copy (:mod:`slipway_serving.dlpack`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from slipway_serving.dlpack import tensor_of, value_of
from slipway_serving.errors import InvalidRequest, raise_all
from slipway_serving.facts import read_facts
from slipway_serving.program import Settings
from slipway_serving.torch_engine.described import Described, described_file, network_file
from slipway_serving.torch_engine.network import load_network
from slipway_serving.torch_engine.options import TorchOptions
from slipway_serving.torch_engine.prepare import resident

_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}


class TorchGraph:
    """A network with a graph's tensors.

    Args:
        settings: of the model: its folder holds the files, its config the device and the threads of the CPU.
        graph: stem of the files.

    Attributes:
        signature: of its tensors, as the graph would have them.

    Raises:
        InvalidRequest: a file is missing or not as it must be, or the options do not go with the device.
    """

    def __init__(self, settings: Settings, graph: str) -> None:
        where = f"{settings.model}/{graph}"
        described = read_facts(Described, settings.folder / described_file(graph))
        options = TorchOptions.from_parameters(where, described.options)
        raise_all(where, options.problems(where, on_gpu=settings.kind == "GPU"))
        if threads := int(settings.parameters.get("intra_op_thread_count", "0")):
            torch.set_num_threads(threads)
        file = settings.folder / network_file(graph)
        network = load_network(where, described.network, file, options.loaded_in)
        device = torch.device("cuda", settings.device_id) if settings.kind == "GPU" else torch.device("cpu")
        self.signature = network.signature
        self._forward = resident(network, options, device, where)
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
            tensors: by input name.
            given: outputs to return, in this order.
            in_memory: those of them that must lie in memory.
        """
        outputs = self._forward(*(_tensor(tensors[name]) for name in self.signature.inputs))
        found = dict(zip(self.signature.outputs, outputs, strict=True))
        return [value_of(_whole(found[name].cpu() if name in in_memory else found[name])) for name in given]

    def _warm_up(self, where: str, described: Described, options: TorchOptions) -> None:
        """Run once where work is compiled or recorded: no caller waits for it."""
        zeros = (
            torch.zeros(described.warmup[name], dtype=_DTYPES[tensor.onnx_type])
            for name, tensor in self.signature.inputs.items()
        )
        try:
            self._forward(*zeros)
        except Exception as error:  # a compiler may fail in any way; the reason is shown
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InvalidRequest(
                f"{where}: the network must run at its warm-up sizes before it is ready ({options.words}),"
                f" got {type(error).__name__}: {reason}"
            ) from error


def _tensor(given: NDArray[Any] | ort.OrtValue) -> torch.Tensor:
    if isinstance(given, ort.OrtValue):
        return tensor_of(given)
    # An array may be a view of memory that must not be written to, which torch would let happen.
    return torch.from_numpy(np.require(given, requirements=["C", "W"]))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor with memory of its own: a part of a larger one would hold that too."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
