"""Metadata of a served model's tensors, and the check of a request against it.

Both protocols return the same metadata. The check compares it with the tensors about to be sent, so that a
version mismatch between client and server raises a clear error before the generation starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipway_client.tensors import Tensors, datatype_of
from slipway_serving.protocol.errors import raise_all


@dataclass(frozen=True)
class TensorMetadata:
    """Metadata of one tensor of a served model.

    Attributes:
        name: Name of the tensor.
        datatype: Triton's name of its element type, for example FP32 or BYTES.
        shape: Sizes, -1 where any size fits; includes the batch dimension if the model batches.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata of a served model, as its server reports it.

    Attributes:
        name: Name of the model.
        versions: Versions that are served.
        inputs: Required and optional inputs; the server does not distinguish them.
        outputs: Outputs that a response may carry.
    """

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def check_tensors(metadata: ModelMetadata, tensors: Tensors) -> None:
    """Check that the model takes the tensors about to be sent.

    Args:
        metadata: Metadata of the model.
        tensors: Arrays by input name.

    Raises:
        InvalidRequest: A tensor is unknown to the model, or of another type or shape; all are named.
    """
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    problems = []
    for name, array in tensors.items():
        if (known := inputs.get(name)) is None:
            known_names = ", ".join(sorted(inputs)) or "none"
            problems.append(
                f"{name} must be one of the served model's inputs ({known_names}), got an unknown input;"
                " try a"
                " client of the server's version"
            )
            continue
        expected, got = (known.datatype, known.shape), (datatype_of(array), array.shape)
        if expected[0] != got[0] or not _fits(got[1], expected[1]):
            problems.append(
                f"{name} must be {expected[0]} {list(expected[1])} on this server, "
                f"got {got[0]} {list(got[1])}; try a client of the server's version"
            )
    raise_all(metadata.name, problems)


def _fits(shape: tuple[int, ...], allowed: tuple[int, ...]) -> bool:
    return len(shape) == len(allowed) and all(
        want in (-1, size) for size, want in zip(shape, allowed, strict=True)
    )
