"""Number of nodes in a graph, and in one of its transformer blocks.

The exporter stores each node's place in the network (`transformer.blocks.3.attn1`) in the node's metadata.
Nodes of a later pass (a quantizer, a rewriter) have none. Such a node belongs to the block of the nodes that
use its outputs if they agree, else to that of the nodes that make its inputs if they agree.
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
    """Number of nodes in a graph.

    Attributes:
        total: Number of all nodes.
        per_block: Number of nodes in one transformer block; None if the graph does not tell its blocks apart.
            The lower median of the blocks, since the first also contains the nodes that all of them share.
        operators: Number of nodes by operator, the most frequent first.
    """

    total: int
    per_block: int | None
    operators: dict[str, int]


def count_nodes(path: Path) -> NodeCount:
    """Count the nodes of a graph file, without reading its weights."""
    import onnx

    return count(onnx.load(path, load_external_data=False).graph.node)


def count(nodes: Sequence[onnx.NodeProto]) -> NodeCount:
    """Count nodes that are in topological order, as ONNX requires."""
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
    """Return the block of each node, or None for nodes outside all blocks."""
    scopes = [_scope(node) for node in nodes]
    blocks = [int(found[1]) if (found := _BLOCK.search(scope)) else None for scope in scopes]
    # A node whose scope names no block is outside; only nodes without a scope have to be assigned.
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
