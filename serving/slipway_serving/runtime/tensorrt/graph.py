"""Engine that an authored model runs in place of an ONNX graph: OrtValues in, OrtValues out.

`NAME.engine.json` in the model's folder identifies the engine. The outputs of a run stay on the GPU, and the
next run takes them without a copy (:mod:`slipway_serving.runtime.dlpack`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from slipway_serving.runtime.dlpack import run_forward
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.tensorrt.engine import open_engine


class EngineGraph:
    """Engine with the tensors of an ONNX graph.

    Args:
        settings: Settings of the model: its folder has the files.
        graph: Stem of the file names.

    Attributes:
        signature: Tensors of the engine, with the names and shapes of the ONNX graph.

    Raises:
        InvalidRequest: A file is damaged, or the machine cannot run the engine.
    """

    def __init__(self, settings: Settings, graph: str) -> None:
        where = f"{settings.model}/{graph}"
        self._engine = open_engine(
            where, settings.folder, settings.device_id, on_gpu=settings.kind == "GPU", graph=graph
        )
        self.signature = self._engine.signature

    def run(
        self,
        tensors: Mapping[str, NDArray[Any] | ort.OrtValue],
        given: Sequence[str],
        in_memory: Collection[str],
    ) -> list[ort.OrtValue]:
        """Run the engine.

        Args:
            tensors: Tensors by input name.
            given: Names of the outputs to return, in this order.
            in_memory: Names of the outputs that must be in CPU memory.
        """
        return run_forward(self._engine, self.signature, tensors, given, in_memory)
