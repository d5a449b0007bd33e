"""In-process execution of a model repository: the same graphs and programs, without a server.

:class:`InProcessModels` reads each model's ``config.pbtxt`` and runs the model as Triton would: an ONNX graph
with the onnxruntime backend's own executor, a Python model with the program that its config names, an
ensemble step by step. Unit tests run the pipelines with it, and the benchmark compares it with the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

from slipway_serving.protocol.errors import NotReady, SlipwayError, Unrecoverable
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.backends.onnxruntime import session, signature
from slipway_serving.runtime.backends.onnxruntime.accelerators import without_accelerators
from slipway_serving.runtime.backends.onnxruntime.execution import Executor, GraphRequest
from slipway_serving.runtime.input_sizes import read_ranges
from slipway_serving.runtime.program import Call, Program, Settings, Tensors, load_program

Answer = dict[str, NDArray[Any]]
RunModel = Callable[[Call, list[str]], Iterator[Answer]]


def read_config(model: Path) -> dict[str, Any]:
    """Read a model's ``config.pbtxt`` as Triton's JSON form.

    Args:
        model: Folder of the model.

    Raises:
        NotReady: The file is missing or is not a valid config.
    """
    try:
        text = (model / "config.pbtxt").read_text(encoding="utf-8")
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
    except (OSError, text_format.ParseError) as error:
        raise NotReady(f"{model}: must have a config.pbtxt that Triton can read, got {error}") from error
    parsed: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return {"name": model.name, "max_batch_size": 0, **parsed}


class InProcessModels:
    """In-process implementation of :class:`slipway_serving.runtime.program.Models` for a model repository.

    Args:
        repository: Folder of the model repository.
        threads: Number of threads of each ONNX session; 0 uses all cores.
        limited: True if graphs refuse sizes beyond their exported ranges, as the server does. A measurement
            may go beyond these ranges.
        gpu: True if models run on the first GPU where their configuration says so, as on a server; False if
            all run on the CPU.
    """

    def __init__(
        self, repository: Path, threads: int = 0, *, limited: bool = True, gpu: bool = False
    ) -> None:
        self._repository, self._threads, self._limited, self._gpu = repository, threads, limited, gpu
        self._loaded: dict[str, RunModel] = {}
        self._programs: list[Program] = []

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> Answer:
        """Call a model that answers once; raise the model's error."""
        (answer,) = self._run(model, Call(tensors, self), outputs)
        return answer

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[Answer]:
        """Call a decoupled model; see :class:`slipway_serving.runtime.program.Models`."""
        return self._run(model, Call(tensors, self, turn=turn), outputs)

    def is_ready(self, model: str) -> bool:
        """Return True if the repository contains a model; the model is loaded when it is called."""
        return (self._repository / model / "config.pbtxt").is_file()

    def load(self, model: str) -> None:
        """Load a model now instead of at its first call."""
        if model not in self._loaded:
            self._loaded[model] = self._load_model(model)

    def close(self) -> None:
        """Close the programs and drop all loaded models."""
        for program in self._programs:
            program.close()
        self._programs.clear()
        self._loaded.clear()

    def _run(self, model: str, call: Call, outputs: list[str]) -> Iterator[Answer]:
        self.load(model)
        return self._loaded[model](call, outputs)

    def _load_model(self, model: str) -> RunModel:
        """Return a function that runs a model of the repository, loaded by its backend."""
        folder = self._repository / model
        config = read_config(folder)
        parameters = config.setdefault("parameters", {})
        if "ensemble_scheduling" in config:
            return self._ensemble(config)
        plan = config.get("platform") == "tensorrt_plan"
        if not plan and config.get("backend") not in ("onnxruntime", "python"):
            raise NotReady(f"{model}: backend must be onnxruntime or python, got {config.get('backend')!r}")
        parameters["intra_op_thread_count"] = {"string_value": str(self._threads)}
        settings = Settings(model, folder / "1", config, self._kind(folder, config))
        if not plan and config["backend"] == "onnxruntime":
            return self._graph(settings)
        program = _plan_program(settings) if plan else load_program(settings)
        self._programs.append(program)
        return _run_program(program, config)

    def _kind(self, folder: Path, config: Mapping[str, Any]) -> str:
        """Return the kind of a model's instance; an engine has no other than the GPU."""
        kinds = {group.get("kind") for group in config.get("instance_group", ())}
        engines = (path for suffix in (".plan", ".engine") for path in (folder / "1").glob(f"*{suffix}"))
        on_gpu = "KIND_GPU" in kinds or any(engines)
        return "GPU" if self._gpu and on_gpu else "CPU"

    def _graph(self, settings: Settings) -> RunModel:
        """Load an ONNX graph and return a function that runs it."""
        config = settings.config if settings.kind == "GPU" else without_accelerators(settings.config)
        graph = session.load(config, settings.folder, session.providers(config, settings.kind, 0))
        executor = Executor(
            settings.model,
            signature.graph_signature(graph),
            lambda wanted, inputs: graph.run(list(wanted), dict(inputs)),
            {entry["name"]: [int(dim) for dim in entry["dims"]] for entry in settings.config["output"]},
            batched=int(settings.config["max_batch_size"]) > 0,
            ranges=read_ranges(settings.model, settings.parameters) if self._limited else {},
        )
        reshaped = _create_reshape(settings.config)

        def run(call: Call, outputs: list[str]) -> Iterator[Answer]:
            inputs = reshaped(call.tensors)
            (answer,) = executor.execute([GraphRequest(inputs, tuple(outputs), call.is_cancelled)])
            if isinstance(answer, SlipwayError):
                raise answer
            yield answer

        return run

    def _ensemble(self, config: Mapping[str, Any]) -> RunModel:
        """Return a function that runs the steps of an ensemble one after another."""
        steps = config["ensemble_scheduling"]["step"]

        def run(call: Call, outputs: list[str]) -> Iterator[Answer]:
            known: Answer = dict(call.tensors)
            for step in steps:
                inputs = {name: known[source] for name, source in step["input_map"].items()}
                answer = self.call(step["model_name"], inputs, list(step["output_map"]))
                known |= {target: answer[name] for name, target in step["output_map"].items()}
            yield _select_outputs(outputs, known)

        return run


def _plan_program(settings: Settings) -> Program:
    """Load the program that runs an engine of TensorRT, which Triton serves without any program."""
    from slipway_serving.runtime.tensorrt.program import EngineModel

    return EngineModel(settings)


def _run_program(program: Program, config: Mapping[str, Any]) -> RunModel:
    """Return a function that runs a Python model on inputs in the shapes of the configuration."""
    reshaped = _create_reshape(config)

    def run(call: Call, outputs: list[str]) -> Iterator[Answer]:
        with contextlib.closing(program.run(replace(call, tensors=reshaped(call.tensors)))) as answers:
            for answer in answers:
                yield _select_outputs(outputs, answer)

    return run


def _create_reshape(config: Mapping[str, Any]) -> Callable[[Tensors], Answer]:
    """Return a function that reshapes inputs as the config says."""
    shapes = {entry["name"]: _graph_shape(entry) for entry in config.get("input", ())}
    batched = int(config["max_batch_size"]) > 0

    def reshaped(array: NDArray[Any], shape: list[int] | None) -> NDArray[Any]:
        if shape is None:
            return array
        return np.reshape(array, [len(array), *shape] if batched else shape)

    return lambda tensors: {name: reshaped(array, shapes.get(name)) for name, array in tensors.items()}


def _select_outputs(outputs: list[str], answer: Tensors) -> Answer:
    if missing := sorted(set(outputs) - set(answer)):
        raise Unrecoverable(f"the model did not return the outputs {', '.join(missing)}; export it again")
    return {name: answer[name] for name in outputs}


def _graph_shape(entry: Mapping[str, Any]) -> list[int] | None:
    """Return the shape to which the config reshapes an input; None if it keeps the shape."""
    if "reshape" not in entry:
        return None
    return [int(size) for size in entry["reshape"].get("shape", [])]
