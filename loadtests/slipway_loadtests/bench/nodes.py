"""How many nodes a graph has, and how many of them belong to one transformer block.

The exporter leaves each node's place in the network (`transformer.blocks.3.attn1`) in the node's metadata.
Nodes that a later pass made (a quantizer, a rewriter) have none: such a node belongs to the block of
those that use its outputs, else to that of those that made its inputs, if they agree.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_BLOCK = re.compile(r"\bblocks\.(\d+)\b")
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class NodeCount:
    """The nodes of a graph.

    Attributes:
        total: all of them.
        per_block: of one transformer block; None where the graph does not tell its blocks apart. The lower
            median of the blocks, since the first also holds what all of them share.
        operators: how often each operator occurs, the most frequent first.
    """

    total: int
    per_block: int | None
    operators: dict[str, int]


def count_nodes(path: Path) -> NodeCount:
    """Count the nodes of a graph file; its weights are not read."""
    import onnx

    return count(onnx.load(path, load_external_data=False).graph.node)


def count(nodes: Sequence[onnx.NodeProto]) -> NodeCount:
    """Count nodes that are in topological order, as ONNX demands."""
    blocks = Counter(block for block in _blocks(nodes) if block is not None)
    operators = Counter(_operator(node) for node in nodes)
    return NodeCount(
        total=len(nodes),
        per_block=statistics.median_low(blocks.values()) if blocks else None,
        operators=dict(operators.most_common()),
    )


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _blocks(nodes: Sequence[onnx.NodeProto]) -> list[int | None]:
    """Return the block of each node, None for those outside of all."""
    scopes = [_scope(node) for node in nodes]
    blocks = [int(found[1]) if (found := _BLOCK.search(scope)) else None for scope in scopes]
    # A node with a scope that names no block is outside; only those without any are to be placed.
    placed = [bool(scope) for scope in scopes]
    maker = {name: index for index, node in enumerate(nodes) for name in node.output}
    users: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.input:
            if name in maker:
                users.setdefault(maker[name], []).append(index)
    for index in reversed(range(len(nodes))):
        if not placed[index]:
            blocks[index] = _agreed(blocks[user] for user in users.get(index, []))
            placed[index] = blocks[index] is not None
    for index, node in enumerate(nodes):
        if not placed[index]:
            blocks[index] = _agreed(blocks[maker[name]] for name in node.input if name in maker)
    return blocks


def _scope(node: onnx.NodeProto) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "")


def _agreed(blocks: Iterable[int | None]) -> int | None:
    found = set(blocks)
    return found.pop() if len(found) == 1 else None
