"""Proxy program for a model on another server: it forwards requests over gRPC and returns the answers.

The proxy has the same name and tensors as the remote model, so callers need not know which of the two they
call. gRPC itself keeps and reopens the connection. An error of the other server becomes an error of the same
class of this model.
"""

from __future__ import annotations

import numpy as np
from tritonclient.grpc import (
    MAX_GRPC_MESSAGE_SIZE,
    InferenceServerClient,
    InferInput,
    InferRequestedOutput,
)
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from slipway_serving.protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Unrecoverable,
    from_wire,
)
from slipway_serving.protocol.proxies import GRPC, grpc_options, proxy_of
from slipway_serving.runtime.program import Call, Responses, Settings

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
    # Pings detect a host that died silently. Triton closes connections that ping more often than this.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class RemoteModel:
    """Program that forwards requests to the model of the same name on the server that the config names.

    The config has two parameters: ``server``, the gRPC endpoint of the server as ``HOST:PORT``, and
    ``timeout_s``, the longest wait for its answer in whole seconds.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._timeout_s = settings.positive_integer("timeout_s")
        self._server = settings.parameters.get("server", "")
        host, _, port = self._server.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidRequest(
                f"{self._model}: parameter server of config.pbtxt must be HOST:PORT, got {self._server!r}"
            )
        self._outputs = [entry["name"] for entry in settings.config["output"]]
        self._proxy = proxy_of(self._server, GRPC)
        options = [*_OPTIONS, *grpc_options(self._proxy)]
        self._client = InferenceServerClient(self._server, channel_args=options)

    def run(self, call: Call) -> Responses:
        """Yield the other server's answer.

        Raises:
            SlipwayError: The other server answered with this error. NotReady means that it cannot be reached
                or takes too long.
        """
        inputs = []
        for name, array in call.tensors.items():
            inputs.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(np.ascontiguousarray(array))
        wanted = [InferRequestedOutput(name) for name in self._outputs]
        try:
            answer = self._client.infer(self._model, inputs, outputs=wanted, client_timeout=self._timeout_s)
        except InferenceServerException as error:
            answer_error = from_wire(error.message(), error.status())
            if isinstance(answer_error, DeadlineExceeded):
                answer_error = NotReady(f"no answer within {self._timeout_s} s; check that server")
            proxy_note = self._proxy.description if self._proxy and isinstance(answer_error, NotReady) else ""
            raise type(answer_error)(
                f"{self._model} on {self._server}: {answer_error}{proxy_note}"
            ) from error
        tensors = {name: answer.as_numpy(name) for name in self._outputs}
        if missing := sorted(name for name, array in tensors.items() if array is None):
            raise Unrecoverable(
                f"{self._model} on {self._server}: the answer lacks {', '.join(missing)}; export it again"
            )
        yield {name: array for name, array in tensors.items() if array is not None}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
