"""Conversion between tensors and gRPC messages, and of messages to metadata and errors.

This module does no input or output. Malformed messages raise one of :data:`slipway_client.decoding.ERRORS`.
"""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2

from slipway_client.metadata import ModelMetadata, TensorMetadata
from slipway_client.retry import UnknownModel
from slipway_client.tensors import Tensors, datatype_of, from_bytes, to_bytes, turn_parameters
from slipway_serving.protocol.errors import InvalidRequest, NotReady, SlipwayError, from_wire
from slipway_serving.protocol.turns import NO_SESSION, Turn

# Texts of Triton and gRPC errors that come without a status, or with one that is too coarse.
_TRITON_TEXTS: tuple[tuple[str, type[SlipwayError]], ...] = (
    ("has no available versions", NotReady),
    (UnknownModel.triton_text, UnknownModel),
    ("larger than max", InvalidRequest),
    ("unexpected inference input", InvalidRequest),
    ("unexpected shape for input", InvalidRequest),
    ("input byte size mismatch", InvalidRequest),
    ("inference inputs for model", InvalidRequest),
)


def request(
    model: str,
    tensors: Tensors,
    turn: Turn = NO_SESSION,
    request_id: str = "",
    priority: int | None = None,
) -> Any:
    """Return the gRPC message of a request.

    Args:
        model: Name of the model.
        tensors: Arrays by input name.
        turn: Place of the request in a session.
        request_id: Id by which the request can be ended.
        priority: Triton's priority of the request in the model's queue, 1 is the highest; None leaves it to
            the model's configuration.
    """
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    if priority is not None:
        message.parameters["priority"].uint64_param = priority
    for name, value in turn_parameters(turn).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    for name, array in tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(to_bytes(array))
    return message


def tensors(response: Any) -> Tensors:
    """Return the tensors of an answer."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: from_bytes(raw, output.datatype, output.shape) for output, raw in pairs}


def stream_error(message: Any) -> SlipwayError | None:
    """Return the error that a stream message carries, or None if it carries tensors."""
    return error_of(message.error_message) if message.error_message else None


def metadata(message: Any) -> ModelMetadata:
    """Return a model's metadata from Triton's answer."""
    inputs, outputs = (
        tuple(TensorMetadata(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in side)
        for side in (message.inputs, message.outputs)
    )
    return ModelMetadata(message.name, tuple(message.versions), inputs, outputs)


def ready_models(message: Any) -> tuple[str, ...]:
    """Return the names of the models in the server's statistics, which are those of its ready models."""
    return tuple(sorted({each.name for each in message.model_stats}))


def parameters(message: Any) -> dict[str, str]:
    """Return the parameters in a model's configuration."""
    return {name: value.string_value for name, value in message.config.parameters.items()}


def error_of(text: str, status: str | None = None) -> SlipwayError:
    """Return the error for a server's error text and, if there is one, the call's status."""
    error = from_wire(text, status)
    if error.args[0] == text.strip():  # the text carries no Slipway error code
        for part, kind in _TRITON_TEXTS:
            if part in text:
                return kind(text)
    return error
