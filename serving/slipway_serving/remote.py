"""The program of a model that another server has: a request goes there over gRPC, its answer comes back.

The model has the name and the tensors of the one that it stands for, so that callers do not know which of
both they ask. Connections are kept and made anew by gRPC itself; an error of the other server is this
model's error, of the same class.
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

from slipway_serving.errors import DeadlineExceeded, InvalidRequest, NotReady, Unrecoverable, from_wire
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.proxies import GRPC, grpc_options, proxy_of

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
    # A host that died in silence is noticed by a ping; Triton closes connections that ping more often.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class RemoteModel:
    """Passes requests on to the model of its own name on the server that the config names.

    Parameters of the config: ``server``, its gRPC endpoint as ``HOST:PORT``; ``timeout_s``, whole seconds
    that it has for an answer.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._timeout_s = settings.positive("timeout_s")
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
            SlipwayError: as the other server said, or NotReady where it cannot be reached or takes too long.
        """
        inputs = []
        for name, array in call.tensors.items():
            inputs.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(np.ascontiguousarray(array))
        wanted = [InferRequestedOutput(name) for name in self._outputs]
        try:
            answer = self._client.infer(self._model, inputs, outputs=wanted, client_timeout=self._timeout_s)
        except InferenceServerException as error:
            said = from_wire(error.message(), error.status())
            if isinstance(said, DeadlineExceeded):
                said = NotReady(f"must answer within {self._timeout_s} s, got nothing")
            through = self._proxy.told if self._proxy and isinstance(said, NotReady) else ""
            raise type(said)(f"{self._model} on {self._server}: {said}{through}") from error
        tensors = {name: answer.as_numpy(name) for name in self._outputs}
        if missing := sorted(name for name, array in tensors.items() if array is None):
            raise Unrecoverable(
                f"{self._model} on {self._server}: must answer with {', '.join(missing)}, got none"
            )
        yield {name: array for name, array in tensors.items() if array is not None}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
