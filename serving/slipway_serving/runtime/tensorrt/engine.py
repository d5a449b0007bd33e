"""A loaded engine that runs on torch tensors of the GPU.

:func:`open_engine` checks the files, the GPU and the version before it loads the library, so that a wrong
engine is refused in one line. The engine's inputs and outputs stay on the device. TensorRT-RTX compiles its
kernels when they are first used; they are kept in the folder `runtime_cache` of the model and are there when
the server starts again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.tensorrt.engine_file import (
    MODEL,
    EngineFacts,
    check_engine,
    check_machine,
    engine_path,
    profile_of,
)
from slipway_serving.runtime.tensorrt.library import Library, load
from slipway_serving.system.gpu import compute_capabilities

CACHE_FOLDER = "runtime_cache"
_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}


def open_engine(where: str, folder: Path, device_id: int, *, on_gpu: bool, graph: str = MODEL) -> Engine:
    """Load an engine of a version folder.

    Args:
        where: Name of the model, for messages.
        folder: Version folder of the model.
        device_id: Index of the GPU.
        on_gpu: True if the model's instance runs on a GPU.
        graph: Name of the graph.

    Raises:
        InvalidRequest: A file is damaged, the machine cannot run the engine, or the library refuses it.
    """
    facts = check_engine(folder, where, graph)
    gpus = compute_capabilities()
    capability = gpus[device_id] if on_gpu and device_id < len(gpus) else None
    check_machine(facts, where, capability, Library(facts.library).installed_version)
    if not torch.cuda.is_available():
        raise InvalidRequest(
            f"{where}: torch must be a build for CUDA, since engines run on its tensors, got"
            f" {torch.__version__}"
        )
    return Engine(where, folder, facts, torch.device("cuda", device_id), graph)


class Engine:
    """Engine with an execution context, for one caller at a time.

    Args:
        where: Name of the model, for messages.
        folder: Version folder of the model.
        facts: Facts of the engine, which fit the machine.
        device: GPU that runs it.
        graph: Name of the graph.

    Attributes:
        signature: Tensors of the engine.

    Raises:
        InvalidRequest: The library refuses the engine.
    """

    def __init__(
        self, where: str, folder: Path, facts: EngineFacts, device: torch.device, graph: str = MODEL
    ) -> None:
        self.signature = facts.signature
        self._where, self._facts, self._device = where, facts, device
        path = engine_path(folder, facts, graph)
        trt = load(Library(facts.library))
        self._logger = trt.Logger(trt.Logger.ERROR)
        with torch.cuda.device(device):
            # The engine is read from its file piece by piece, so its weights are never in host memory twice.
            with _reader(trt, path) as reader:
                engine = trt.Runtime(self._logger).deserialize_cuda_engine(reader)
            if engine is None:
                raise InvalidRequest(
                    f"{where}: {Library(facts.library).full_name} must load {path.name}, got a refusal; see"
                    " the server's log"
                )
            if facts.stripped:
                self._refit(trt, engine, folder / f"{graph}.onnx")
            if facts.options.get("weight_streaming"):
                engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()
            self._cache_file = folder / CACHE_FOLDER / f"{graph}.cache"
            self._engine, self._context = engine, self._new_context(engine)
        self._profile = 0

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the engine.

        Args:
            tensors: Inputs in the order of the signature, on any device.

        Returns:
            Outputs in the order of the signature, on the engine's device.

        Raises:
            InvalidRequest: No profile of the engine contains the sizes.
        """
        given = dict(zip(self.signature.inputs, tensors, strict=True))
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
        profile = profile_of(self._facts, shapes, self._where)
        with torch.cuda.device(self._device):
            stream, context = torch.cuda.current_stream(), self._context
            if profile != self._profile:
                context.set_optimization_profile_async(profile, stream.cuda_stream)
                self._profile = profile
            inputs = {name: tensor.to(self._device).contiguous() for name, tensor in given.items()}
            for name, tensor in inputs.items():
                context.set_input_shape(name, tuple(tensor.shape))
                context.set_tensor_address(name, tensor.data_ptr())
            outputs = []
            for name, described in self.signature.outputs.items():
                output = torch.empty(
                    tuple(context.get_tensor_shape(name)),
                    dtype=_TYPES[described.onnx_type],
                    device=self._device,
                )
                context.set_tensor_address(name, output.data_ptr())
                outputs.append(output)
            if not context.execute_async_v3(stream.cuda_stream):
                raise RuntimeError(f"{self._where}: the engine failed; see the server's log")
            # The inputs must live until the GPU has read them.
            for tensor in inputs.values():
                tensor.record_stream(stream)
        return tuple(outputs)

    def close(self) -> None:
        """Write the compiled kernels to the model's folder, and free the engine."""
        cache = getattr(self._context, "get_runtime_config", lambda: None)()
        if cache is not None and hasattr(cache, "get_runtime_cache"):
            # A repository may be read-only; the kernels are then compiled again.
            with contextlib.suppress(OSError):
                self._cache_file.parent.mkdir(exist_ok=True)
                self._cache_file.write_bytes(memoryview(cache.get_runtime_cache().serialize()))
        del self._context, self._engine

    def _new_context(self, engine: Any) -> Any:
        """Return an execution context, with the kernels of an earlier run if the library keeps them."""
        if not hasattr(engine, "create_runtime_config"):
            return engine.create_execution_context()
        config = engine.create_runtime_config()
        if hasattr(config, "create_runtime_cache"):
            cache = config.create_runtime_cache()
            if self._cache_file.is_file():
                cache.deserialize(self._cache_file.read_bytes())
            config.set_runtime_cache(cache)
        return engine.create_execution_context(config)

    def _refit(self, trt: Any, engine: Any, graph: Path) -> None:
        """Give a stripped engine the weights of its graph."""
        refitter = trt.Refitter(engine, self._logger)
        parser = trt.OnnxParserRefitter(refitter, self._logger)
        if not parser.refit_from_file(str(graph)) or not refitter.refit_cuda_engine():
            raise InvalidRequest(
                f"{self._where}: {graph.name} must have the weights of the engine, got others"
            )


@contextlib.contextmanager
def _reader(trt: Any, path: Path) -> Iterator[Any]:
    """Open an engine's file in the form that the library reads."""
    with path.open("rb") as file:

        class Reader(trt.IStreamReaderV2):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.IStreamReaderV2.__init__(self)

            def read(self, size: int, stream: int) -> bytes:
                return file.read(size)

            def seek(self, offset: int, where: Any) -> bool:
                file.seek(offset, int(where))
                return True

        yield Reader()
