"""Calls between models of the same server through Triton's Python backend (BLS).

This module never imports Triton's own Python module; callers pass it in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import NotReady, Unrecoverable, from_wire
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.program import Tensors
from slipway_serving.runtime.request_parameters import GRPC_MARK


class EndedStreams:
    """Ended streams between models, kept until the Python backend itself no longer refers to them.

    Before Triton 2.53 (24.12), the backend destroys an answer's arrays on the thread that drops the last
    reference, without holding Python's GIL. This corrupts the heap, and the process dies at some later point
    (python_backend#390). Two threads of the backend may hold a reference: the one that passes on answers,
    until it passes on answers of another stream, and the one that tells Triton that a stream has ended, until
    it has answered a later question. So a stream is released only after a later stream has ended and a
    question asked after that has been answered.
    """

    def __init__(self) -> None:
        self._streams: list[Any] = []

    def hold(self, stream: Any, ask: Callable[[], bool]) -> None:
        """Keep a stream that ended, and release the earlier ones if that is safe.

        Args:
            stream: Iterator over the responses of the stream.
            ask: Function that asks the backend a question; it returns True if that thread certainly answered.
        """
        earlier, self._streams = self._streams, [stream]
        if earlier and not ask():
            self._streams[:0] = earlier


class TritonModels:
    """Implementation of :class:`slipway_serving.runtime.program.Models` for models of the same server.

    Args:
        pb_utils: Module of Triton's Python backend.
        request_id: Request ID that the calls carry.
        request: Triton request of the caller on whose behalf the calls are made; they join its trace.
        ended: Ended streams of this process.
    """

    def __init__(self, pb_utils: Any, request_id: str, request: Any, ended: EndedStreams) -> None:
        self._pb, self._request_id, self._ended_streams = pb_utils, request_id, ended
        self._trace, self._is_cancelled = request.trace(), request.is_cancelled

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        """Call a model that answers once; raise the model's error.

        Raises:
            NotReady: The model answered without an output, which happens when its process ends meanwhile.
        """
        answer = self._tensors(model, self._request(model, tensors, outputs).exec())
        if missing := [name for name in outputs if name not in answer]:
            raise NotReady(
                f"{model}: the answer must have {', '.join(outputs)}, got none of {', '.join(missing)}, since"
                " the model's process has ended; try again"
            )
        return answer

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Call a decoupled model; see :class:`slipway_serving.runtime.program.Models`."""
        flags = self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if turn.start else 0
        flags |= self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if turn.end else 0
        # This mark makes the other model answer in bytes, as over gRPC.
        marked = {GRPC_MARK: "slipway"}
        request = self._request(
            model, tensors, outputs, correlation_id=turn.id, flags=flags, parameters=marked
        )
        responses = request.exec(decoupled=True)
        try:
            for response in responses:
                if found := self._tensors(model, response):
                    yield found
        finally:
            # is_cancelled asks the backend, except that a cancelled request answers True without asking.
            self._ended_streams.hold(responses, ask=lambda: not self._is_cancelled())

    def is_ready(self, model: str) -> bool:
        """Return True if a model is loaded; False for an unknown one."""
        return bool(self._pb.is_model_ready(model_name=model))

    def _request(self, model: str, tensors: Tensors, outputs: list[str], **options: Any) -> Any:
        """Create a request to another model that joins the caller's trace."""
        return self._pb.InferenceRequest(
            model_name=model,
            request_id=self._request_id,
            trace=self._trace,
            requested_output_names=outputs,
            inputs=[self._pb.Tensor(name, array) for name, array in tensors.items()],
            # Callers compute with numpy; without this, a model on a GPU answers with GPU memory.
            preferred_memory=self._pb.PreferredMemory(self._pb.TRITONSERVER_MEMORY_CPU),
            **options,
        )

    def _tensors(self, model: str, response: Any) -> dict[str, NDArray[Any]]:
        if response.has_error():
            text = response.error().message()
            error = from_wire(text)
            # Triton reports every error between models as INTERNAL, so we ask whether the model is missing.
            if isinstance(error, Unrecoverable) and not self._pb.is_model_ready(model_name=model):
                raise NotReady(f"{model}: the model is not ready ({text}); try again when it is loaded")
            raise error
        # We copy the array, since it is a view of shared memory that is freed with the response.
        return {tensor.name(): np.array(tensor.as_numpy()) for tensor in response.output_tensors()}
