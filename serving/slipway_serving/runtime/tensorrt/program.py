"""Program of a component that TensorRT-RTX serves: the requests of a batch in, its outputs out.

The version folder has `model.engine` and `model.engine.json`. The same executor as for ONNX graphs checks,
merges and splits the requests, so that a caller sees no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.runtime.backends.onnxruntime.execution import Arrays, Executor, GraphRequest
from slipway_serving.runtime.backends.onnxruntime.signature import check
from slipway_serving.runtime.input_sizes import read_ranges
from slipway_serving.runtime.program import BatchOfOne, Call, Settings, Tensors
from slipway_serving.runtime.tensorrt.engine import open_engine


class EngineModel(BatchOfOne):
    """Program that runs the engine of a component."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        engine = open_engine(
            settings.model, settings.folder, settings.device_id, on_gpu=settings.kind == "GPU"
        )
        check(settings.config, engine.signature)
        self._engine = engine
        self._inputs, self._outputs = tuple(engine.signature.inputs), tuple(engine.signature.outputs)
        self._executor = Executor(
            settings.model,
            engine.signature,
            self._run,
            {entry["name"]: [int(dim) for dim in entry["dims"]] for entry in settings.config["output"]},
            batched=int(settings.config["max_batch_size"]) > 0,
            ranges=read_ranges(settings.model, settings.parameters),
        )

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the outputs for each call, or its error."""
        requests = [GraphRequest(call.tensors, self._outputs, call.is_cancelled) for call in calls]
        return list(self._executor.execute(requests))

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()

    def _run(self, wanted: Sequence[str], inputs: Arrays) -> list[np.ndarray[Any, Any]]:
        tensors = (
            torch.from_numpy(np.require(inputs[name], requirements=["C", "W"])) for name in self._inputs
        )
        outputs = dict(zip(self._outputs, self._engine(*tensors), strict=True))
        return [outputs[name].cpu().numpy() for name in wanted]
