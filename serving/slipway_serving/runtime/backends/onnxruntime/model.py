"""Adapter that Triton's Python backend loads for models with `backend: "onnxruntime"` in their config.

It converts Triton's requests to :class:`~slipway_serving.runtime.backends.onnxruntime.execution.GraphRequest`
and the executor's answers to Triton's responses. Errors reach the client as the text and code of
:mod:`slipway_serving.protocol.errors`; tracebacks go to the log with the request's id.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from slipway_serving.protocol.caller_ids import shortened_id
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, without_traceback
from slipway_serving.protocol.texts import shortened
from slipway_serving.runtime.backends.onnxruntime import session, sharing, signature
from slipway_serving.runtime.backends.onnxruntime.accelerators import without_accelerators
from slipway_serving.runtime.backends.onnxruntime.execution import Arrays, Executor, GraphRequest
from slipway_serving.runtime.backends.onnxruntime.sharing import LoadedGraph, SharedGraph
from slipway_serving.runtime.input_sizes import read_ranges
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.triton_metrics import publish_restarts
from slipway_serving.system.inherited_sockets import close_sockets, restrict_shared_memory


class TritonPythonModel:
    """Instance of a model, as Triton's Python backend loads it."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Complete the config with the tensors of the graph.

        Like the C++ backend, this leaves a config with inputs and outputs alone: each instance checks it
        against its graph, and a large graph need not be loaded once more.
        """
        config: dict[str, Any] = auto_complete_model_config.as_dict()
        if not signature.is_complete(config):
            try:
                graph = _load(without_accelerators(config), "CPU", 0).signature
                signature.complete(config, graph)
                signature.check(config, graph)
            except SlipwayError as error:
                raise pb_utils.TritonModelException(str(error)) from error
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the graph on the instance's device, or connect to one that is loaded, and check the config."""
        close_sockets()
        restrict_shared_memory()
        try:
            settings = Settings.from_triton(args)
            config, self._process_state = settings.config, settings.process_state
            self._queue_limit = settings.queue_limit(pb_utils.Logger.log_warn)
            self._graph = _open(config, args["model_instance_kind"], int(args["model_instance_device_id"]))
            signature.check(config, self._graph.signature)
            ranges = read_ranges(settings.model, settings.parameters)
        except SlipwayError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._model = str(config["name"])
        self._input_names = tuple(str(entry["name"]) for entry in config["input"])
        self._output_names = tuple(str(entry["name"]) for entry in config["output"])
        self._executor = Executor(
            self._model,
            self._graph.signature,
            self._graph.run,
            {entry["name"]: [int(dim) for dim in entry["dims"]] for entry in config["output"]},
            batched=int(config["max_batch_size"]) > 0,
            ranges=ranges,
        )
        publish_restarts(pb_utils, self._model, self._process_state)
        self._process_state.record_serving()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests; a failed request does not affect the others."""
        with self._process_state.count_requests(len(requests)):
            excess = min(self._queue_limit.count_excess(), len(requests))
            refused = [self._error_response(self._queue_limit.refuse()) for _ in range(excess)]
            admitted = requests[excess:]
            answers = self._executor.execute([self._request(request) for request in admitted])
            responses = [self._response(*pair) for pair in zip(admitted, answers, strict=True)]
            self._queue_limit.record_batch_end()
            return refused + responses

    def finalize(self) -> None:
        """Release the graph, which other instances may use through this one."""
        self._process_state.record_ending()
        if isinstance(self._graph, SharedGraph):
            self._graph.close()

    def _request(self, request: Any) -> GraphRequest:
        """Read a request's tensors, which Triton has already reshaped according to the config."""
        given = ((name, pb_utils.get_input_tensor_by_name(request, name)) for name in self._input_names)
        wanted = request.requested_output_names()
        return GraphRequest(
            inputs={name: tensor.as_numpy() for name, tensor in given if tensor is not None},
            outputs=tuple(name for name in self._output_names if name in wanted),
            is_cancelled=request.is_cancelled,
            id=request.request_id(),
        )

    def _response(self, request: Any, answer: Arrays | SlipwayError) -> Any:
        """Convert an answer to Triton's response, and log the traceback if the graph failed."""
        if not isinstance(answer, SlipwayError):
            return pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in answer.items()])
        if answer.__cause__ is not None:
            trace = shortened("".join(traceback.format_exception(answer.__cause__)))
            request_id = shortened_id(request.request_id())
            pb_utils.Logger.log_error(f"{self._model}: request {request_id!r} failed\n{trace}")
        return self._error_response(without_traceback(answer))

    def _error_response(self, error: SlipwayError) -> Any:
        code = getattr(pb_utils.TritonError, error.triton_code)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(error.to_wire(), code))


def _open(config: Mapping[str, Any], kind: str, device_id: int) -> LoadedGraph | SharedGraph:
    """Load the model's graph; a large graph with several instances is loaded once for all of them."""
    path = session.graph_path(config, Path(pb_utils.get_model_dir()))
    folder = os.environ.get(sharing.GRAPHS_FOLDER_VARIABLE)
    if folder is None or not sharing.is_worth_sharing(config, kind, device_id, path):
        return _load(config, kind, device_id)
    path_prefix = sharing.shared_path(Path(folder), config, kind, device_id, path)
    return SharedGraph(path_prefix, lambda: _load(config, kind, device_id))


def _load(config: Mapping[str, Any], kind: str, device_id: int) -> LoadedGraph:
    """Load the model's graph from its version folder into this process."""
    if kind not in ("CPU", "GPU"):
        raise InvalidRequest(
            f"{config['name']}: instance_group kind must be KIND_CPU or KIND_GPU, got {kind}"
        )
    chosen = session.providers(config, kind, device_id)
    loaded = session.load(config, Path(pb_utils.get_model_dir()), chosen)
    options = session.run_options(config)
    return LoadedGraph(
        signature.graph_signature(loaded),
        lambda wanted, inputs: loaded.run(list(wanted), dict(inputs), options),
    )
