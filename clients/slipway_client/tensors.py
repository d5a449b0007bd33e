"""Conversion between NumPy arrays and Triton's raw bytes, shared by both protocols."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from slipway_serving.protocol.errors import Malformed
from slipway_serving.protocol.turns import Turn

Tensors = Mapping[str, NDArray[Any]]
SESSION_HEADER = "slipway-session"
"""Header that names a request's session, for proxies and load balancers."""
TRACE_HEADER = "traceparent"
"""Header of W3C Trace Context that names the trace of a caller."""


def turn_parameters(turn: Turn) -> dict[str, int | str | bool]:
    """Return a turn as request parameters, the same in both protocols; empty outside a session."""
    if not turn.id:
        return {}
    return {"sequence_id": turn.id, "sequence_start": turn.start, "sequence_end": turn.end}


def turn_headers(turn: Turn) -> dict[str, str]:
    """Return a turn as request headers, by which a proxy routes a session and a server continues a trace."""
    headers = {SESSION_HEADER: quote(str(turn.id), safe="")} if turn.id else {}
    return {**headers, TRACE_HEADER: turn.traceparent} if turn.traceparent else headers


def datatype_of(array: NDArray[Any]) -> str:
    """Return Triton's name of an array's element type, for example FP32 or BYTES."""
    return str(np_to_triton_dtype(array.dtype))


def to_bytes(array: NDArray[Any]) -> bytes:
    """Return an array's elements as Triton's raw bytes; each text as its length and UTF-8 bytes."""
    if array.dtype != np.object_:
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def from_bytes(raw: bytes, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Decode Triton's raw bytes into an array.

    Raises:
        Malformed: The bytes are not an array of that type and shape. The claimed shape is compared with the
            received bytes before anything of that size is allocated.
    """
    dtype = triton_to_np_dtype(datatype)
    if dtype is None:
        raise Malformed(f"output: datatype must be one with a NumPy equivalent, got {datatype}")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise Malformed(f"output: shape must be whole numbers from 0 on, got {list(shape)}")
    try:
        flat = deserialize_bytes_tensor(raw) if datatype == "BYTES" else np.frombuffer(raw, dtype=dtype)
        return np.asarray(flat).reshape(tuple(shape))
    except (ValueError, OverflowError, struct.error) as error:
        raise Malformed(f"output: bytes must form a tensor {datatype} {list(shape)}, got {error}") from None
