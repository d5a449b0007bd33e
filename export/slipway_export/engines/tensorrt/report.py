"""Report of a build: what the parser and the builder of TensorRT said about one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class NodeError:
    """An error of the parser or the builder.

    Args:
        node: Name of the node or the layer; empty if the error names none.
        operator: Operator of the node; empty if the error names none.
        message: The library's own message.
        cure: Advice on what to do about it; empty if none is known.
    """

    node: str
    operator: str
    message: str
    cure: str = ""

    @property
    def text(self) -> str:
        """The error in one line."""
        where = " ".join(part for part in (self.node, f"({self.operator})" if self.operator else "") if part)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text}; try {self.cure}" if self.cure else text


@dataclass(frozen=True)
class BuildReport:
    """What the parser and the builder said about one graph.

    Args:
        version: Version of the library.
        parsed: True if the parser accepts the graph.
        built: True if the builder made an engine.
        errors: Errors of the two.
        inputs: Type and shape of each input of the parsed network, with -1 for a dynamic size.
        outputs: Type and shape of each output.
        parse_s: Time of the parser, in seconds.
        build_s: Time of the builder, in seconds.
        engine_bytes: Size of the engine, in bytes.
        weights_bytes: Memory of its weights on a GPU, in bytes.
        activation_bytes: Memory of its activations at the largest sizes of all profiles, in bytes.
        peak_bytes: Largest memory of the building process, in bytes.
        fused_attention: Number of layers with a fused attention kernel.
        layers: Number of layers of the engine.
    """

    version: str
    parsed: bool
    built: bool
    errors: tuple[NodeError, ...] = ()
    inputs: Mapping[str, tuple[str, tuple[int, ...]]] | None = None
    outputs: Mapping[str, tuple[str, tuple[int, ...]]] | None = None
    parse_s: float = 0.0
    build_s: float = 0.0
    engine_bytes: int = 0
    weights_bytes: int = 0
    activation_bytes: int = 0
    peak_bytes: int = 0
    fused_attention: int = 0
    layers: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> BuildReport:
        """Return a report from the data of :meth:`to_json`."""
        tensors = {
            side: None
            if content[side] is None
            else {name: (kind, tuple(shape)) for name, (kind, shape) in content[side].items()}
            for side in ("inputs", "outputs")
        }
        errors = tuple(NodeError(**error) for error in content["errors"])
        return cls(**{**content, **tensors, "errors": errors})
