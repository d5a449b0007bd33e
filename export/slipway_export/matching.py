"""Has onnxscript's rewriter compare a node before it lists the graph's.

For a pattern with several outputs, onnxscript 0.7 lists all nodes of the graph for each node of it, whatever
that node is: of a network of 30 layers this took longer than everything else that its optimizer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def nodes_compared_first() -> Iterator[None]:
    """Skip, within the block, what cannot match: the rewriter's results stay what they are."""
    from onnxscript.rewriter import MatchResult
    from onnxscript.rewriter._matcher import SimplePatternMatcher

    listing = SimplePatternMatcher.match

    def comparing(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        # The node given is the candidate for the first of the pattern's outputs alone.
        first, *others = self.pattern.output_nodes
        if others and first.op_identifier() not in (None, node.op_identifier()):
            return MatchResult().fail("The node is of another operator than the pattern's first output.")
        return listing(self, model, graph, node, **options)

    SimplePatternMatcher.match = comparing  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SimplePatternMatcher.match = listing  # type: ignore[method-assign]
