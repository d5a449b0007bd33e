"""What is asked of peers that misbehave, a video or a small tensor, and what such peers answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hostile import Answer, answered, metadata_of, once
from tritonclient.grpc import service_pb2

from slipway_client import RetryPolicy, TextToVideoRequest
from slipway_client.tensors import datatype_of
from slipway_serving.protocol.requests import encode

ONCE = RetryPolicy(budget_s=0)
REQUEST = TextToVideoRequest(prompt="x", frames=5, height=32, width=64, steps=3)
X = {"x": np.ones((1,), np.float32)}
INPUTS = [{"name": "x", "datatype": "FP32", "shape": [1]}]


def wan_metadata(protocol: str = "http") -> bytes:
    """Return what a server says of `wan_t2v`, so that the request passes the client's own checks."""
    sent = encode(replace(REQUEST, timeout_s=30.0))
    inputs = [
        {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        for name, array in sent.items()
    ]
    if protocol == "http":
        return metadata_of("wan_t2v", inputs, [])
    return bytes(
        service_pb2.ModelMetadataResponse(
            name="wan_t2v",
            versions=["1"],
            inputs=[service_pb2.ModelMetadataResponse.TensorMetadata(**each) for each in inputs],
        ).SerializeToString()
    )


def wan_paths(stream: Answer, cancel: Answer | None = None) -> dict[str, Answer]:
    return {
        "/v2/models/wan_t2v": once(answered(wan_metadata())),
        "/generate_stream": stream,
        "/slipway_cancel/infer": cancel or once(answered(b"{}")),
    }


def events_of(*events: Any) -> bytes:
    """Return a whole HTTP answer of server-sent events."""
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return answered(body, "Content-Type: text/event-stream")


def infer_answer(name: str, datatype: str, shape: list[int], raw: bytes) -> service_pb2.ModelInferResponse:
    message = service_pb2.ModelInferResponse(raw_output_contents=[raw])
    message.outputs.add(name=name, datatype=datatype, shape=shape)
    return message


def streamed(*answers: service_pb2.ModelInferResponse) -> Iterator[bytes]:
    for answer in answers:
        yield service_pb2.ModelStreamInferResponse(infer_response=answer).SerializeToString()
