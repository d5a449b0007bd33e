"""The program of a component that PyTorch serves: the requests of a batch in, its outputs out.

The network lies in the model's version folder as its checkpoint has it, and is made as the configuration's
parameters say (`options.py`, `prepare.py`). Requests are checked, merged and split by what does it for
graphs, so that a caller cannot tell which of both answers. A model that is compiled or recorded is ready once
it has answered its own warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from slipway_serving.backends.onnxruntime.execution import Arrays, Executor, Request
from slipway_serving.backends.onnxruntime.signature import check
from slipway_serving.errors import InvalidRequest, SlipwayError, raise_all
from slipway_serving.input_sizes import read_ranges
from slipway_serving.program import Call, Settings, Single, Tensors
from slipway_serving.torch_engine.described import network_file
from slipway_serving.torch_engine.network import load_network
from slipway_serving.torch_engine.options import TorchOptions
from slipway_serving.torch_engine.prepare import prepare

_DTYPES = {"FP": "float", "INT": "int", "UINT": "uint", "BOOL": "bool"}


class TorchModel(Single):
    """Runs a component's network.

    Parameters of the config: ``network``, what loads it (:mod:`slipway_serving.torch_engine.network`); those
    of :class:`~slipway_serving.torch_engine.options.TorchOptions`; ``intra_op_thread_count``, threads of the
    CPU, torch's own default where it is 0 or absent.
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
            options.loaded_in,
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
        """Return the answer to each call, or why it failed."""
        requests = [Request(call.tensors, self._outputs, call.is_cancelled) for call in calls]
        return list(self._executor.execute(requests))

    def close(self) -> None:
        """Let go of the network."""
        del self._forward, self._executor

    def _run(self, wanted: Sequence[str], inputs: Arrays) -> list[np.ndarray[Any, Any]]:
        # A request's arrays may be views of memory that must not be written to, which torch would let happen.
        tensors = (
            torch.from_numpy(np.require(inputs[name], requirements=["C", "W"])) for name in self._inputs
        )
        outputs = dict(zip(self._outputs, self._forward(*tensors), strict=True))
        return [outputs[name].numpy() for name in wanted]

    def _warm_up(self, config: Mapping[str, Any], options: TorchOptions) -> None:
        """Answer the configuration's own warm-up where work is compiled or recorded: no caller waits for it.

        Of one request, and of its batch where that is larger: a compiler tells a size of 1 from others.
        """
        if options.compile is None and not options.cuda_graphs:
            return
        for warmup in config.get("model_warmup", ()):
            for batch in sorted({1, int(warmup.get("batch_size", 1))}):
                inputs = self._warmup_inputs(warmup, config, batch)
                try:
                    self._forward(*(torch.from_numpy(inputs[name]) for name in self._inputs))
                except Exception as error:  # a compiler may fail in any way; the reason is shown
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    raise InvalidRequest(
                        f"{self._model}: the network must run at its warm-up sizes before it is ready"
                        f" ({options.words}), got {type(error).__name__}: {reason}"
                    ) from error

    def _warmup_inputs(
        self, warmup: Mapping[str, Any], config: Mapping[str, Any], batch: int
    ) -> dict[str, np.ndarray[Any, Any]]:
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
    """Return numpy's name of a type of a configuration, e.g. of ``TYPE_FP32``."""
    name = data_type.removeprefix("TYPE_")
    kind = name.rstrip("0123456789")
    return _DTYPES[kind] + name[len(kind) :]
