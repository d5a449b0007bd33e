"""What a served model says of its tensors, and whether a request fits it.

Both protocols answer the same metadata; the check compares it with the tensors about to be sent, so a client
and a server of different versions find out by a sentence and not in the middle of a generation.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipway_client.tensors import Tensors, datatype_of
from slipway_serving.errors import raise_all


@dataclass(frozen=True)
class TensorMetadata:
    """One tensor of a served model.

    Attributes:
        name: of the tensor.
        datatype: Triton's name of its element type, for example FP32 or BYTES.
        shape: -1 where any size fits; with the batch dimension, if the model batches.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """A served model as its server describes it.

    Attributes:
        name: of the model.
        versions: that are served.
        inputs: required and optional ones; the server does not tell which.
        outputs: all that a response may carry.
    """

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def check_tensors(metadata: ModelMetadata, tensors: Tensors) -> None:
    """Check what is about to be sent against the model.

    Args:
        metadata: of the model.
        tensors: by input name.

    Raises:
        InvalidRequest: naming every tensor that the model does not take, or takes otherwise.
    """
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    problems = []
    for name, array in tensors.items():
        if (known := inputs.get(name)) is None:
            taken = ", ".join(sorted(inputs)) or "none"
            problems.append(
                f"{name} must be an input of the served model, got one that it lacks; it has {taken}"
            )
            continue
        expected, got = (known.datatype, known.shape), (datatype_of(array), array.shape)
        if expected[0] != got[0] or not _fits(got[1], expected[1]):
            problems.append(
                f"{name} must be {expected[0]} {list(expected[1])} as the server says, "
                f"got {got[0]} {list(got[1])}; try the client of the server's version"
            )
    raise_all(metadata.name, problems)


def _fits(shape: tuple[int, ...], allowed: tuple[int, ...]) -> bool:
    return len(shape) == len(allowed) and all(
        want in (-1, size) for size, want in zip(shape, allowed, strict=True)
    )
