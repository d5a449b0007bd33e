"""Conversion of tensors to HTTP request bodies, and of HTTP answers to tensors, events and errors.

This module does no input or output. The server may be broken or hostile: sizes that an answer claims are
compared with the bytes received, and malformed data raises one of :data:`slipway_client.decoding.ERRORS`,
which the transports turn into one sentence.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np

from slipway_client.metadata import ModelMetadata, TensorMetadata
from slipway_client.retry import UnknownModel
from slipway_client.tensors import (
    Tensors,
    datatype_of,
    from_bytes,
    to_bytes,
    turn_headers,
    turn_parameters,
)
from slipway_serving.protocol.errors import SlipwayError, from_wire
from slipway_serving.protocol.requests import SHAPE_PARAMETER
from slipway_serving.protocol.turns import Turn

HEADER_LENGTH = "Inference-Header-Content-Length"
_NO_OUTPUTS = ("model_name", "model_version")


def generate_body(tensors: Tensors, turn: Turn) -> dict[str, Any]:
    """Return a request's JSON object; Triton takes flat arrays there, so shapes are sent as parameters."""
    body: dict[str, Any] = turn_parameters(turn)
    for name, array in tensors.items():
        values = [_json(value) for value in array.reshape(-1).tolist()]
        body[name] = values[0] if len(values) == 1 else values
        if array.ndim > 1:
            body[f"{SHAPE_PARAMETER}{name}"] = ",".join(map(str, array.shape))
    return body


def _json(value: Any) -> Any:
    """Return an element as a JSON value; bytes that are not UTF-8 become base64, as their field takes."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def infer_body(tensors: Tensors, turn: Turn) -> tuple[bytes, dict[str, str]]:
    """Return the body of an infer request, with binary tensors, and its headers."""
    blobs = [to_bytes(array) for array in tensors.values()]
    inputs = [
        {
            "name": name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
            "parameters": {"binary_data_size": len(blob)},
        }
        for (name, array), blob in zip(tensors.items(), blobs, strict=True)
    ]
    parameters = {"binary_data_output": True, **turn_parameters(turn)}
    header = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return header + b"".join(blobs), {HEADER_LENGTH: str(len(header)), **turn_headers(turn)}


def infer_tensors(response: httpx.Response) -> Tensors:
    """Return the tensors of the answer to a request made by :func:`infer_body`."""
    body = response.content
    start = int(response.headers.get(HEADER_LENGTH, len(body)))
    if not 0 <= start <= len(body):
        raise ValueError(f"{HEADER_LENGTH} must be at most {len(body)}, got {start}")
    tensors = {}
    for output in json.loads(body[:start])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        if not isinstance(size, int) or not 0 <= size <= len(body) - start:
            raise ValueError(f"binary_data_size must be within the {len(body)} bytes received, got {size!r}")
        tensors[str(output["name"])] = from_bytes(
            body[start : start + size], output["datatype"], output["shape"]
        )
        start += size
    return tensors


def parse_event(text: str) -> Tensors | SlipwayError:
    """Return the tensors or the server error that an event of a stream carries."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise TypeError(f"an event must carry a JSON object, got {text[:80]!r}")
    if "error" in fields:
        return from_wire(str(fields["error"]))
    return {name: _array(value) for name, value in fields.items() if name not in _NO_OUTPUTS}


def _array(value: Any) -> np.ndarray[Any, Any]:
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return np.array([item.encode() for item in values], dtype=np.object_)
    array = np.array(values)
    if array.dtype.kind not in "biuf" or array.ndim != 1:
        raise ValueError(f"an output must be texts or numbers in one list, got {str(value)[:80]!r}")
    return array


def metadata(response: httpx.Response) -> ModelMetadata:
    """Return a model's metadata from Triton's answer."""
    content = json.loads(response.content)
    inputs, outputs = (
        tuple(
            TensorMetadata(str(t["name"]), str(t["datatype"]), tuple(map(int, t["shape"])))
            for t in content.get(side, ())
        )
        for side in ("inputs", "outputs")
    )
    versions = tuple(str(version) for version in content["versions"])
    return ModelMetadata(str(content["name"]), versions, inputs, outputs)


def parameters(response: httpx.Response) -> dict[str, str]:
    """Return the parameters in a model's configuration."""
    found = json.loads(response.content).get("parameters", {})
    return {str(name): str(value["string_value"]) for name, value in found.items()}


def ready_models(response: httpx.Response) -> tuple[str, ...]:
    """Return the names of the models in the server's statistics, which are those of its ready models."""
    return tuple(sorted({str(each["name"]) for each in json.loads(response.content)["model_stats"]}))


def response_error(url: str, response: httpx.Response) -> SlipwayError:
    """Return the error of an answer with a failing status; its body is JSON or a server-sent event."""
    text = response.content.decode(errors="replace").strip().removeprefix("data:")
    try:
        text = str(json.loads(text)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        text = f"{url}: HTTP status {response.status_code}" + (f": {text[:200]}" if text else "")
    if response.status_code == httpx.codes.NOT_FOUND and UnknownModel.triton_text in text:
        return UnknownModel(
            f"{url}: {text}; try another name; `slipway serve` prints the names of its models"
        )
    return from_wire(text, response.status_code)
