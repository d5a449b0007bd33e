"""Arrays as Triton's bytes and back; the same for both protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from slipway_serving.errors import Unrecoverable

Tensors = Mapping[str, NDArray[Any]]
SESSION_HEADER = "slipway-session"
"""Header that names a request's sequence to what stands between client and server."""


@dataclass(frozen=True)
class Turn:
    """A request's place in a sequence: a model that keeps state between requests tells sequences by their id.

    Attributes:
        id: the correlation id, a number above 0 or a text, unique among the sequences of the model.
        start: whether the request begins its sequence.
        end: whether the request ends its sequence.
    """

    id: int | str
    start: bool = False
    end: bool = False

    @property
    def parameters(self) -> dict[str, int | str | bool]:
        """The request's parameters in either protocol."""
        return {"sequence_id": self.id, "sequence_start": self.start, "sequence_end": self.end}

    @property
    def headers(self) -> dict[str, str]:
        """The request's headers in either protocol: a proxy that cannot read the id routes by them."""
        return {SESSION_HEADER: quote(str(self.id), safe="")}


def datatype_of(array: NDArray[Any]) -> str:
    """Return Triton's name of an array's element type, for example FP32 or BYTES."""
    return str(np_to_triton_dtype(array.dtype))


def to_bytes(array: NDArray[Any]) -> bytes:
    """Return an array's elements as Triton's raw bytes; text as length and UTF-8 bytes each."""
    if array.dtype != np.object_:
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def from_bytes(raw: bytes, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Return the array of Triton's raw bytes.

    Raises:
        Unrecoverable: the bytes are not an array of that type and shape.
    """
    dtype = triton_to_np_dtype(datatype)
    if dtype is None:
        raise Unrecoverable(f"output: datatype must be one that NumPy knows, got {datatype}")
    try:
        flat = deserialize_bytes_tensor(raw) if datatype == "BYTES" else np.frombuffer(raw, dtype=dtype)
        return np.asarray(flat).reshape(tuple(shape))
    except ValueError as error:
        raise Unrecoverable(f"output: bytes must make {datatype} {list(shape)}, got {error}") from None
