"""A peer that speaks both protocols: it answers by a function of a test, and keeps what it was asked.

It stands for no server. The client's own order of questions, attempts and turns is seen here; what Triton
makes of them is for `tests/integration/test_clients.py`.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hostile import IDENTITY, grpc_peer
from tritonclient.grpc import service_pb2

from slipway_client.tensors import Tensors, datatype_of, from_bytes, to_bytes
from slipway_serving.protocol.errors import SlipwayError


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        model: Name of the model that was asked.
        values: The elements of each input, by name.
        turn: The parameters of a session; the header too where one came.
        id: The request's id.
        streams: Whether answers were to be several.
    """

    model: str
    values: dict[str, list[Any]]
    turn: dict[str, Any]
    id: str
    streams: bool


@dataclass
class Peer:
    """What the peer answers, and what it was asked.

    Attributes:
        answer: Gives the answers to a request; an error ends them.
        inputs: Datatype and shape of each input, by model and name.
        ready: Models that are ready; "" stands for the server itself, "live" for its being there.
        parameters: Of every model's configuration.
        asked: The requests in their order.
        questions: The other questions in their order: what was asked, of which model.
    """

    answer: Callable[[Asked], Iterable[Tensors]]
    inputs: dict[str, dict[str, tuple[str, list[int]]]]
    ready: set[str] = field(default_factory=lambda: {"", "live", "sums", "other"})
    parameters: dict[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    questions: list[tuple[str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def served(self) -> list[str]:
        """Models that are ready, each in two versions."""
        return 2 * sorted(self.ready - {"", "live"})

    def answers(self, asked: Asked) -> Iterator[Tensors | SlipwayError]:
        """Yield the answers to a request, and an error as the last of them."""
        if asked.model == "slipway_cancel":
            self.asked.append(asked)
            self.ended.set()
            yield {"found": np.array([True])}
            return
        self.asked.append(asked)
        try:
            yield from self.answer(asked)
        except SlipwayError as error:
            yield error

    def question(self, kind: str, model: str = "") -> bool:
        self.questions.append((kind, model))
        return ("live" if kind == "live" else model) in self.ready

    def described(self, model: str) -> list[dict[str, Any]]:
        found = self.inputs[model]
        return [{"name": n, "datatype": kind, "shape": shape} for n, (kind, shape) in found.items()]


@contextlib.contextmanager
def counting_peer(protocol: str, peer: Peer) -> Iterator[str]:
    """Yield the URL of a peer that speaks a protocol."""
    if protocol == "grpc":
        with grpc_peer(_methods(peer)) as place:
            yield place
        return
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(peer))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _methods(peer: Peer) -> dict[str, Callable[[bytes], Iterator[bytes]]]:
    def ready(method: str, kind: str) -> Callable[[bytes], Iterator[bytes]]:
        request, response = (getattr(service_pb2, f"{method}{end}") for end in ("Request", "Response"))

        def answer(sent: bytes) -> Iterator[bytes]:
            found = peer.question(kind, getattr(request.FromString(sent), "name", ""))
            yield response(**{kind: found}).SerializeToString()

        return answer

    def metadata(sent: bytes) -> Iterator[bytes]:
        model = service_pb2.ModelMetadataRequest.FromString(sent).name
        peer.question("metadata", model)
        inputs = [service_pb2.ModelMetadataResponse.TensorMetadata(**each) for each in peer.described(model)]
        yield service_pb2.ModelMetadataResponse(name=model, versions=["1"], inputs=inputs).SerializeToString()

    def config(sent: bytes) -> Iterator[bytes]:
        peer.question("config", service_pb2.ModelConfigRequest.FromString(sent).name)
        message = service_pb2.ModelConfigResponse()
        for name, value in peer.parameters.items():
            message.config.parameters[name].string_value = value
        yield message.SerializeToString()

    def statistics(sent: bytes) -> Iterator[bytes]:
        service_pb2.ModelStatisticsRequest.FromString(sent)
        message = service_pb2.ModelStatisticsResponse()
        for name in peer.served:
            message.model_stats.add(name=name, version="1")
        yield message.SerializeToString()

    def asked(sent: bytes, streams: bool) -> Asked:
        message = service_pb2.ModelInferRequest.FromString(sent)
        turn = {n: getattr(p, p.WhichOneof("parameter_choice")) for n, p in message.parameters.items()}
        pairs = zip(message.inputs, message.raw_input_contents, strict=True)
        values = {t.name: from_bytes(raw, t.datatype, t.shape).reshape(-1).tolist() for t, raw in pairs}
        return Asked(message.model_name, values, turn, message.id, streams)

    def response(tensors: Tensors) -> service_pb2.ModelInferResponse:
        message = service_pb2.ModelInferResponse()
        for name, array in tensors.items():
            message.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            message.raw_output_contents.append(to_bytes(array))
        return message

    def infer(sent: bytes) -> Iterator[bytes]:
        (found,) = peer.answers(asked(sent, False))
        if isinstance(found, SlipwayError):
            raise found
        yield response(found).SerializeToString()

    def stream(sent: bytes) -> Iterator[bytes]:
        for found in peer.answers(asked(sent, True)):
            text = found.to_wire() if isinstance(found, SlipwayError) else ""
            answer = None if isinstance(found, SlipwayError) else response(found)
            message = service_pb2.ModelStreamInferResponse(error_message=text, infer_response=answer)
            yield message.SerializeToString()

    return {
        "ServerLive": ready("ServerLive", "live"),
        "ServerReady": ready("ServerReady", "ready"),
        "ModelReady": ready("ModelReady", "ready"),
        "ModelMetadata": metadata,
        "ModelConfig": config,
        "ModelStatistics": statistics,
        "ModelInfer": infer,
        "ModelStreamInfer": stream,
    }


def _handler(peer: Peer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

        def send(self, body: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            parts = self.path.removeprefix("/v2").strip("/").split("/")
            match parts:
                case [""]:
                    self.send(json.dumps(IDENTITY).encode())
                case ["health", kind]:
                    self.send(b"", 200 if peer.question(kind) else 400)
                case ["models", model, "ready"]:
                    self.send(b"", 200 if peer.question("ready", model) else 400)
                case ["models", "stats"]:
                    stats = [{"name": name, "version": "1"} for name in peer.served]
                    self.send(json.dumps({"model_stats": stats}).encode())
                case ["models", model, "config"]:
                    peer.question("config", model)
                    values = {name: {"string_value": value} for name, value in peer.parameters.items()}
                    self.send(json.dumps({"parameters": values}).encode())
                case ["models", model]:
                    peer.question("metadata", model)
                    told = {"name": model, "versions": ["1"], "inputs": peer.described(model), "outputs": []}
                    self.send(json.dumps(told).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            _, _, model, verb = self.path.strip("/").split("/")
            if verb == "infer":
                self.infer(model, body)
                return
            fields = json.loads(body)
            turn = {name: fields.pop(name) for name in tuple(fields) if name.startswith("sequence_")}
            request_id = fields.pop("id")
            values = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for found in peer.answers(Asked(model, values, turn, request_id, True)):
                event = {"error": found.to_wire()} if isinstance(found, SlipwayError) else _flat(found)
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.close_connection = True

        def infer(self, model: str, body: bytes) -> None:
            start = int(self.headers["Inference-Header-Content-Length"])
            header, values = json.loads(body[:start]), {}
            for tensor in header["inputs"]:
                size = tensor["parameters"]["binary_data_size"]
                array = from_bytes(body[start : start + size], tensor["datatype"], tensor["shape"])
                values[tensor["name"]], start = array.reshape(-1).tolist(), start + size
            turn = {n: v for n, v in header["parameters"].items() if n.startswith("sequence_")}
            (found,) = peer.answers(Asked(model, values, turn, "", False))
            if isinstance(found, SlipwayError):
                self.send(json.dumps({"error": found.to_wire()}).encode(), 400)
                return
            outputs = [
                {
                    "name": name,
                    "datatype": datatype_of(array),
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": len(to_bytes(array))},
                }
                for name, array in found.items()
            ]
            told = json.dumps({"outputs": outputs}).encode()
            blobs = b"".join(to_bytes(array) for array in found.values())
            self.send(told + blobs, Inference_Header_Content_Length=str(len(told)))

    return Handler


def _flat(tensors: Tensors) -> dict[str, Any]:
    """Return an event as Triton's generate endpoints give it: numbers and texts, alone or in one list."""
    found = {}
    for name, array in tensors.items():
        values = [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]
        found[name] = values[0] if len(values) == 1 else values
    return {"model_name": "sums", "model_version": "1", **found}
