"""Tensors of an ONNX graph, and their comparison with a model's config.

:func:`graph_signature` reads them from a loaded session, :func:`complete` adds what a config leaves out, and
:func:`check` refuses a config that the graph contradicts, with model, tensor, expected and actual value. The
rules are those of Triton's C++ backend (`AutoCompleteConfig`, `ValidateInputs`, `ValidateOutputs` of its
onnxruntime.cc), so that a repository which loads here loads there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway_serving.protocol.errors import raise_all

TRITON_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
# Default of Triton's own backends (the option default-max-batch-size, which Python models cannot read).
_DEFAULT_MAX_BATCH_SIZE = 4
_UNSUPPORTED = {
    "batch_input": "ragged batches",
    "batch_output": "ragged batches",
    "sequence_batching": "sequence batching",
}


@dataclass(frozen=True)
class GraphTensor:
    """Input or output of a graph.

    Attributes:
        name: Name in the graph.
        onnx_type: ONNX Runtime's name of the type, e.g. `tensor(float)`.
        shape: Size of each axis, the name of a dynamic axis, or "" for a dynamic axis without a name.
    """

    name: str
    onnx_type: str
    shape: tuple[int | str, ...]

    @property
    def data_type(self) -> str:
        """Triton's name of the type in a config, or ONNX Runtime's if Triton does not support the type."""
        return TRITON_TYPES.get(self.onnx_type, self.onnx_type)

    @property
    def dims(self) -> list[int]:
        """Shape in the notation of a config: -1 for a dynamic axis."""
        return [size if isinstance(size, int) else -1 for size in self.shape]


@dataclass(frozen=True)
class Signature:
    """All tensors of a graph, by name in the graph's order.

    Attributes:
        inputs: Required inputs.
        overridable: Initializers that a request may override, hence optional inputs.
        outputs: Outputs.
    """

    inputs: dict[str, GraphTensor]
    overridable: dict[str, GraphTensor]
    outputs: dict[str, GraphTensor]

    @property
    def can_batch(self) -> bool:
        """True if the first axis of every input and output is dynamic."""
        return all(t.dims and t.dims[0] == -1 for t in (*self.inputs.values(), *self.outputs.values()))


def graph_signature(session: Any) -> Signature:
    """Read the tensors of a session's graph.

    Args:
        session: Session, an `onnxruntime.InferenceSession`.
    """

    def tensors(nodes: Sequence[Any]) -> dict[str, GraphTensor]:
        return {node.name: GraphTensor(node.name, node.type, tuple(map(_size, node.shape))) for node in nodes}

    return Signature(
        tensors(session.get_inputs()),
        tensors(session.get_overridable_initializers()),
        tensors(session.get_outputs()),
    )


def _size(size: int | str | None) -> int | str:
    """Return a size, the name of a dynamic axis, or "" for one without a name."""
    if isinstance(size, int):
        return size if size >= 0 else ""
    return size or ""


def is_complete(config: Mapping[str, Any]) -> bool:
    """Return whether a config names inputs and outputs, so that it need not be completed."""
    return bool(config.get("input")) and bool(config.get("output"))


def complete(config: dict[str, Any], signature: Signature) -> None:
    """Add inputs, outputs, max_batch_size and dynamic batching to a config that leaves them out.

    Raises:
        InvalidRequest: The config has a max_batch_size for a graph that cannot batch, or a tensor has a type
            that Triton does not support.
    """
    if config["max_batch_size"] and not signature.can_batch:
        raise_all(
            config["name"],
            [
                "max_batch_size must be 0 for a graph whose inputs and outputs do not all have a dynamic "
                f"first axis, got {config['max_batch_size']}"
            ],
        )
    if signature.can_batch:
        config["max_batch_size"] = config["max_batch_size"] or _DEFAULT_MAX_BATCH_SIZE
        if config["max_batch_size"] > 1 and "sequence_batching" not in config:
            config.setdefault("dynamic_batching", {})
    batched = config["max_batch_size"] > 0
    for side, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        if not config.get(side):
            raise_all(config["name"], _type_problems(side, tensors.values()))
            config[side] = [_entry(tensor, batched=batched) for tensor in tensors.values()]


def _entry(tensor: GraphTensor, *, batched: bool) -> dict[str, Any]:
    """Return the config entry of a tensor; a scalar has dims [1], since Triton requires an axis."""
    dims = tensor.dims[1:] if batched else tensor.dims
    entry: dict[str, Any] = {"name": tensor.name, "data_type": tensor.data_type, "dims": dims or [1]}
    if not dims and batched:
        entry["reshape"] = {"shape": []}
    return entry


def check(config: Mapping[str, Any], signature: Signature) -> None:
    """Refuse a config that the graph contradicts.

    Raises:
        InvalidRequest: A tensor differs; the message names the model and every such tensor, with the values
            of the graph and of the config.
    """
    problems = [
        f"{key} must be absent ({what} need the container's C++ backend), got {config[key]}"
        for key, what in _UNSUPPORTED.items()
        if config.get(key)
    ]
    problems += _name_problems(config, signature)
    known_inputs = {**signature.inputs, **signature.overridable}
    for side, tensors in (("input", known_inputs), ("output", signature.outputs)):
        for entry in config[side]:
            if tensor := tensors.get(entry["name"]):
                problems += _tensor_problems(side, entry, tensor, int(config["max_batch_size"]))
    raise_all(str(config["name"]), problems)


def _name_problems(config: Mapping[str, Any], signature: Signature) -> list[str]:
    """Return the problems of tensors that only the config or only the graph has."""
    problems = []
    inputs = {entry["name"]: bool(entry.get("optional")) for entry in config["input"]}
    for name, optional in inputs.items():
        if name in signature.inputs and optional:
            problems.append(f"input {name} must be required as in the graph, got optional")
        elif name in signature.overridable and not optional:
            problems.append(f"input {name} must be optional, an initializer of the graph, got required")
        elif name not in signature.inputs and name not in signature.overridable:
            problems.append(f"input must be one of {', '.join(signature.inputs)}, got {name}")
        if optional and config["max_batch_size"]:
            problems.append(f"input {name} must not be optional where max_batch_size is not 0, got optional")
    problems += [
        f"input {name} must be in the config, got none" for name in signature.inputs if name not in inputs
    ]
    problems += [
        f"output must be one of {', '.join(signature.outputs)}, got {entry['name']}"
        for entry in config["output"]
        if entry["name"] not in signature.outputs
    ]
    return problems


def _type_problems(side: str, tensors: Any) -> list[str]:
    """Return the problems of tensors with a type that Triton's Python backend does not support."""
    known = ", ".join(sorted(name.removeprefix("TYPE_") for name in TRITON_TYPES.values()))
    return [
        f"{side} {tensor.name} must have one of the types {known} in the graph, got {tensor.onnx_type}"
        for tensor in tensors
        if tensor.onnx_type not in TRITON_TYPES
    ]


def _tensor_problems(
    side: str, entry: Mapping[str, Any], tensor: GraphTensor, max_batch_size: int
) -> list[str]:
    """Return the differences in type and shape of one tensor."""
    problems = _type_problems(side, [tensor])
    name = entry["name"]
    if not problems and entry["data_type"] != tensor.data_type:
        problems.append(f"{side} {name} must be {tensor.data_type} as in the graph, got {entry['data_type']}")
    if entry.get("allow_ragged_batch"):
        problems.append(f"{side} {name} must not be ragged (that needs the container's C++ backend)")
    reshape = entry.get("reshape")
    # A reshape to a scalar is an empty message, which may have no key "shape" in JSON.
    dims = [int(dim) for dim in (entry["dims"] if reshape is None else reshape.get("shape", []))]
    if not tensor.shape:
        if any(dim != 1 for dim in dims):
            problems.append(f"{side} {name} must have dims [1], a scalar in the graph, got {dims}")
        return problems
    full = [-1, *dims] if max_batch_size else dims
    if max_batch_size and tensor.dims[0] != -1:
        problems.append(
            f"{side} {name} must have a dynamic first axis in the graph for max_batch_size {max_batch_size}, "
            f"got {tensor.dims}; try max_batch_size 0"
        )
    # Like in the C++ backend, an output must match exactly, and an input may be narrower than the graph.
    elif len(full) != len(tensor.dims) or any(
        given != size and (side == "output" or size != -1)
        for given, size in zip(full, tensor.dims, strict=True)
    ):
        expected = tensor.dims[1:] if max_batch_size else tensor.dims
        problems.append(f"{side} {name} must have dims {expected} as in the graph, got {dims}")
    return problems
