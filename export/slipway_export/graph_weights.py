"""A graph's tensors that are read while it is written, from where a checkpoint has them.

:func:`bind` gives a traced graph tensors that know their place in the checkpoint's files (`weights.py`), and
read, convert and turn themselves when they are written, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, to_torch_dtype

from slipway_export.weights import Stored, stored_weights

# What is read at a time; a matrix that is turned around is read whole.
_CHUNK_BYTES = 64 * 2**20
# Tensors that the exporter's constant folding may look into.
_SMALL = 1024


class Weight(ir.LazyTensor):
    """A graph's tensor that lies in a checkpoint's file: converted, and turned around, while it is read.

    Args:
        stored: where it lies.
        dtype: of the graph's tensor.
        perm: order of the stored dimensions, as of a Transpose.
        name: of the tensor.
    """

    def __init__(
        self, stored: Stored, dtype: ir.DataType, perm: tuple[int, ...] | None = None, name: str | None = None
    ) -> None:
        self.stored, self.perm = stored, perm
        shape = stored.shape if perm is None else tuple(stored.shape[i] for i in perm)
        super().__init__(lambda: TorchTensor(self.tensor()), dtype, ir.Shape(shape), name=name)

    def turned(self, perm: tuple[int, ...], name: str | None) -> Weight:
        """Return the tensor with its dimensions in another order."""
        before = self.perm or tuple(range(len(self.stored.shape)))
        return Weight(self.stored, self.dtype, tuple(before[i] for i in perm), name)

    def tensor(self) -> torch.Tensor:
        """Read the tensor."""
        tensor = self.stored.read().to(to_torch_dtype(self.dtype))
        return tensor if self.perm is None else tensor.permute(self.perm).contiguous()

    def tofile(self, file: IO[bytes]) -> None:
        """Write the tensor's bytes, a part at a time where it lies in the file's order."""
        for part in self._parts():
            file.write(part.contiguous().flatten().view(torch.uint8).numpy().data)

    def _parts(self) -> Iterator[torch.Tensor]:
        shape = self.stored.shape
        if self.perm is not None or not shape or self.stored.bytes <= _CHUNK_BYTES:
            yield self.tensor()
            return
        rows = max(1, _CHUNK_BYTES // (self.stored.bytes // shape[0]))
        for begin in range(0, shape[0], rows):
            yield self.stored.read(begin, begin + rows).to(to_torch_dtype(self.dtype))


def bind(model: ir.Model, module: torch.nn.Module) -> None:
    """Give a traced graph the tensors of its network that lie on disk.

    Args:
        model: the graph, whose initializers are named as in the network, before any of them is folded.
        module: that was traced.
    """
    stored = stored_weights(module)
    for name, value in model.graph.initializers.items():
        place, traced = stored.get(name), value.const_value
        if place is None or traced is None:
            continue
        weight = Weight(place, traced.dtype, name=name)
        small = int(np.prod(place.shape, dtype=np.int64)) <= _SMALL
        value.const_value = TorchTensor(weight.tensor(), name) if small else weight


def keeps_weights(node: ir.Node) -> bool | None:
    """Say that a node is not folded if it takes a weight that lies on disk; for constant folding."""
    weights = (value is not None and isinstance(value.const_value, Weight) for value in node.inputs)
    return False if any(weights) else None


def fold_transposes(model: ir.Model) -> None:
    """Turn weights around where a graph would do it at each load."""
    for node in list(model.graph):
        value = node.inputs[0] if node.op_type == "Transpose" and not node.domain else None
        if value is None or not isinstance(value.const_value, Weight) or len(value.uses()) != 1:
            continue
        weight, out = value.const_value, node.outputs[0]
        if out.is_graph_output() or value.is_graph_output():
            continue
        perm = node.attributes.get("perm")
        order = tuple(perm.as_ints()) if perm else tuple(reversed(range(len(weight.shape))))
        turned = ir.Value(
            name=out.name, shape=out.shape, type=out.type, const_value=weight.turned(order, out.name)
        )
        out.replace_all_uses_with(turned)
        model.graph.remove(node, safe=True)
        model.graph.initializers.pop(str(value.name))
        model.graph.register_initializer(turned)
