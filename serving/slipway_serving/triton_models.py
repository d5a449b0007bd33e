"""Calls from one model to another of the same server, over Triton's Python backend.

Triton's own module is handed in: this one never imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import NotReady, Unrecoverable, from_wire
from slipway_serving.program import Tensors
from slipway_serving.request_parameters import GRPC_MARK
from slipway_serving.turns import NO_SESSION, Turn


class EndedStreams:
    """Streams of models to a model that ended, held until the Python backend itself holds nothing of them.

    Before Triton 2.53 (24.12) that destroys an answer's arrays on whichever of its threads lets go of them
    last, without Python's lock, and a process whose heap broke so dies anywhere later (python_backend#390).
    Such threads are the one that hands on answers, until it hands on those of another stream, and the one
    that tells Triton that a stream has ended, until it has answered what it was asked after that. Hence: a
    stream is let go of when a later one has ended, and a question asked then has been answered.
    """

    def __init__(self) -> None:
        self._streams: list[Any] = []

    def hold(self, stream: Any, ask: Callable[[], bool]) -> None:
        """Hold a stream that ended, and let go of earlier ones.

        Args:
            stream: what iterates over its responses.
            ask: asks the backend a question; returns whether it is sure to have been answered by that thread.
        """
        earlier, self._streams = self._streams, [stream]
        if earlier and not ask():
            self._streams[:0] = earlier


class TritonModels:
    """Calls other models of the same server; implements :class:`slipway_serving.program.Models`.

    Args:
        pb_utils: the Python backend's module.
        request_id: id that the calls carry on.
        request: of the caller, on whose behalf the calls are made; they become part of its trace.
        ended: streams of this process that ended.
    """

    def __init__(self, pb_utils: Any, request_id: str, request: Any, ended: EndedStreams) -> None:
        self._pb, self._request_id, self._ended = pb_utils, request_id, ended
        self._trace, self._is_cancelled = request.trace(), request.is_cancelled

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        """Ask a model that answers once; raises the model's error."""
        return self._tensors(model, self._request(model, tensors, outputs).exec())

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Ask a decoupled model; see :class:`slipway_serving.program.Models`."""
        flags = self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if turn.start else 0
        flags |= self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if turn.end else 0
        # Answers to a model are bytes, as those over gRPC.
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
            # Once cancelled, a request says so without asking.
            self._ended.hold(responses, ask=lambda: not self._is_cancelled())

    def is_ready(self, model: str) -> bool:
        """Tell whether a model is loaded; an unknown one is not."""
        return bool(self._pb.is_model_ready(model_name=model))

    def _request(self, model: str, tensors: Tensors, outputs: list[str], **options: Any) -> Any:
        return self._pb.InferenceRequest(
            model_name=model,
            request_id=self._request_id,
            trace=self._trace,
            requested_output_names=outputs,
            inputs=[self._pb.Tensor(name, array) for name, array in tensors.items()],
            # The loop's arithmetic is numpy's; without this, a model on a GPU answers with GPU memory.
            preferred_memory=self._pb.PreferredMemory(self._pb.TRITONSERVER_MEMORY_CPU),
            **options,
        )

    def _tensors(self, model: str, response: Any) -> dict[str, NDArray[Any]]:
        if response.has_error():
            text = response.error().message()
            error = from_wire(text)
            # Triton gives calls between models no other code than INTERNAL: a missing model is asked for.
            if isinstance(error, Unrecoverable) and not self._pb.is_model_ready(model_name=model):
                raise NotReady(f"{model}: must be loaded and ready, got: {text}")
            raise error
        # Copied, since the array is a view of shared memory that goes back with the response.
        return {tensor.name(): np.array(tensor.as_numpy()) for tensor in response.output_tensors()}
