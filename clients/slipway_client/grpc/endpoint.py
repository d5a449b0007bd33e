"""gRPC endpoint of a Triton server: state, connections and decoding that both transports share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from tritonclient.grpc import service_pb2_grpc

from slipway_client.address_errors import not_triton_error
from slipway_client.cancellation import request_found
from slipway_client.connections import Pools
from slipway_client.decoding import ERRORS, decoding
from slipway_client.grpc import errors, messages
from slipway_client.retry import Deadline
from slipway_client.tensors import Tensors
from slipway_client.tls import load_tls
from slipway_serving.protocol.errors import Malformed, SlipwayError
from slipway_serving.protocol.proxies import GRPC, Proxy, grpc_options, proxy_of
from slipway_serving.protocol.triton_identity import is_triton

_INT32_MAX = 2**31 - 1
_OPTIONS = (
    ("grpc.max_send_message_length", _INT32_MAX),
    ("grpc.max_receive_message_length", _INT32_MAX),
    # Pings detect a host that died silently. Triton closes connections that ping more often than every 300 s
    # while no data flows, as in a long denoising step.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Otherwise the clients of one process share a connection, and a load balancer sees them as one.
    ("grpc.use_local_subchannel_pool", 1),
)
_TLS = "grpcs://"


class GrpcEndpoint:
    """State and decoding that both transports share.

    Attributes:
        proxy: Proxy from the environment that gRPC uses for this server; None for a direct connection.
    """

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None, protocol: Any) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self.proxy: Proxy | None = proxy_of(urlsplit(f"//{_host(url)}").netloc, GRPC)
        self._is_triton = False
        options = (*_OPTIONS, *grpc_options(self.proxy))
        make = partial(_connect, url, _credentials(url, certificates), options, count(), protocol)
        self._pools: Pools[Connection] = Pools(make)

    def retire(self) -> None:
        """Let later requests take a new connection; requests in progress keep theirs."""
        self._pools.retire()

    def _verify_identity(self, answer: Any) -> None:
        """Check from the server's metadata that it is Triton, and remember it.

        Raises:
            NotTriton: The server is not Triton.
        """
        if not is_triton(answer.extensions):
            raise not_triton_error(self._url, "gRPC", self.proxy)
        self._is_triton = True

    def _tensors(self, answer: Any, model: str) -> Tensors:
        with decoding(self._url, model):
            return messages.tensors(answer)

    def _parse_message(self, message: Any, model: str) -> Tensors | SlipwayError:
        """Return the tensors or the error that a stream message carries."""
        try:
            return messages.stream_error(message) or self._tensors(message.infer_response, model)
        except Malformed as error:
            return error

    def _inference_error(self, error: grpc.RpcError, deadline: Deadline) -> SlipwayError:
        return errors.inference_error(self._url, error, deadline, self.proxy)

    def _probe_error(self, error: grpc.RpcError, limit_s: float) -> SlipwayError:
        return errors.probe_error(self._url, error, limit_s, self.proxy)


@dataclass(frozen=True)
class Connection:
    """Channel with its stub."""

    channel: Any
    stub: Any


def _connect(
    url: str,
    credentials: grpc.ChannelCredentials | None,
    options: tuple[tuple[str, int], ...],
    numbers: Iterator[int],
    protocol: Any,
) -> Connection:
    """Return a new connection of `grpc` or `grpc.aio`; nothing is sent yet."""
    # A unique option keeps channels to one host from sharing a connection.
    options = (*options, ("slipway.connection", next(numbers)))
    if credentials is not None:
        channel = protocol.secure_channel(_host(url), credentials, options=options)
    else:
        channel = protocol.insecure_channel(_host(url), options=options)
    return Connection(channel, service_pb2_grpc.GRPCInferenceServiceStub(channel))


def _credentials(url: str, certificates: Path | None) -> grpc.ChannelCredentials | None:
    """Return the TLS credentials of a connection, or None for one without TLS."""
    secured = url.startswith(_TLS)
    tls = load_tls(certificates, secured=secured)
    if tls is not None:
        return grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.ssl_channel_credentials() if secured else None


def _host(url: str) -> str:
    return url.removeprefix(_TLS).removeprefix("grpc://").rstrip("/")


def parse_found(answer: Any) -> bool | None:
    """Return True if the server found the request to end, or None if its answer cannot be decoded."""
    try:
        return request_found(messages.tensors(answer))
    except (Malformed, *ERRORS):
        return None
