"""Program of a component that PyTorch serves: the requests of a batch in, its outputs out.

The model's version folder has the network in the form of its checkpoint, and the parameters of the
configuration decide how it runs (`options.py`, `prepare.py`). The same executor as for ONNX graphs checks,
merges and splits the requests, so that a caller sees no difference between the two. A model with a compiled
or recorded network becomes ready after it has run its own warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, raise_all
from slipway_serving.runtime.backends.onnxruntime.execution import Arrays, Executor, GraphRequest
from slipway_serving.runtime.backends.onnxruntime.signature import check
from slipway_serving.runtime.input_sizes import read_ranges
from slipway_serving.runtime.program import BatchOfOne, Call, Settings, Tensors
from slipway_serving.runtime.torch_engine.network import load_network
from slipway_serving.runtime.torch_engine.network_description import network_file
from slipway_serving.runtime.torch_engine.options import TorchOptions
from slipway_serving.runtime.torch_engine.prepare import prepare

_DTYPES = {"FP": "float", "INT": "int", "UINT": "uint", "BOOL": "bool"}


class TorchModel(BatchOfOne):
    """Program that runs the network of a component.

    The parameters of the config are ``network``, the function that loads the network
    (:mod:`slipway_serving.runtime.torch_engine.network`); those of
    :class:`~slipway_serving.runtime.torch_engine.options.TorchOptions`; and ``intra_op_thread_count``, the
    number of CPU threads, which is torch's own default if the parameter is 0 or absent.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        options = TorchOptions.from_parameters(self._model, settings.parameters)
        raise_all(self._model, options.problems(self._model, on_gpu=settings.kind == "GPU"))
        if threads := int(settings.parameters.get("intra_op_thread_count", "0")):
            torch.set_num_threads(threads)
        network = load_network(
            self._model,
            settings.parameters.get("network", ""),
            settings.folder / network_file(),
            options.load_precision,
        )
        check(settings.config, network.signature)
        device = torch.device("cuda", settings.device_id) if settings.kind == "GPU" else torch.device("cpu")
        self._inputs, self._outputs = tuple(network.signature.inputs), tuple(network.signature.outputs)
        self._forward = prepare(network, options, device, self._model)
        self._executor = Executor(
            self._model,
            network.signature,
            self._run,
            {entry["name"]: [int(dim) for dim in entry["dims"]] for entry in settings.config["output"]},
            batched=int(settings.config["max_batch_size"]) > 0,
            ranges=read_ranges(self._model, settings.parameters),
        )
        self._warm_up(settings.config, options)

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the outputs for each call, or its error."""
        requests = [GraphRequest(call.tensors, self._outputs, call.is_cancelled) for call in calls]
        return list(self._executor.execute(requests))

    def close(self) -> None:
        """Free the network."""
        del self._forward, self._executor

    def _run(self, wanted: Sequence[str], inputs: Arrays) -> list[np.ndarray[Any, Any]]:
        # A request's arrays may be views of read-only memory, which torch does not protect from writes.
        tensors = (
            torch.from_numpy(np.require(inputs[name], requirements=["C", "W"])) for name in self._inputs
        )
        outputs = dict(zip(self._outputs, self._forward(*tensors), strict=True))
        return [outputs[name].numpy() for name in wanted]

    def _warm_up(self, config: Mapping[str, Any], options: TorchOptions) -> None:
        """Run the warm-up of the config, so that no caller waits for a compilation or recording.

        It runs with one request, and also with the warm-up's batch size if that is larger, since a compiler
        treats a size of 1 differently from all others.
        """
        if options.compile is None and not options.cuda_graphs:
            return
        for warmup in config.get("model_warmup", ()):
            for batch in sorted({1, int(warmup.get("batch_size", 1))}):
                inputs = self._warmup_inputs(warmup, config, batch)
                try:
                    self._forward(*(torch.from_numpy(inputs[name]) for name in self._inputs))
                except Exception as error:  # A compiler may raise any exception.
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    raise InvalidRequest(
                        f"{self._model}: the network must run at its warm-up sizes before it is ready"
                        f" ({options.summary}), got {type(error).__name__}: {reason}"
                    ) from error

    def _warmup_inputs(
        self, warmup: Mapping[str, Any], config: Mapping[str, Any], batch: int
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return zeros for the inputs of a warm-up request."""
        entries = {entry["name"]: entry for entry in config["input"]}
        batched = int(config["max_batch_size"]) > 0
        inputs = {}
        for name, given in warmup["inputs"].items():
            dims = [int(dim) for dim in given["dims"]]
            if "reshape" in entries[name]:
                dims = [int(dim) for dim in entries[name]["reshape"].get("shape", [])]
            inputs[name] = np.zeros([batch, *dims] if batched else dims, _numpy_type(given["data_type"]))
        return inputs


def _numpy_type(data_type: str) -> str:
    """Return NumPy's name of a data type of a config, such as ``TYPE_FP32``."""
    name = data_type.removeprefix("TYPE_")
    kind = name.rstrip("0123456789")
    return _DTYPES[kind] + name[len(kind) :]
