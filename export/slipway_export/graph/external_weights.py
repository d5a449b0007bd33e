"""Graph tensors that are read from the checkpoint's files while the graph is written.

:func:`bind` replaces a traced graph's tensors with ones that know their location in the checkpoint's files
(`checkpoint/stored_weights.py`). Each tensor is read, converted and transposed only when it is written, one
after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, to_torch_dtype

from slipway_export.checkpoint.stored_weights import StoredTensor, stored_weights

# Bytes read at a time; a tensor that is transposed is read whole.
_CHUNK_BYTES = 64 * 2**20
# Most elements of a tensor that is read at once, so that constant folding can use its values.
_SMALL = 1024


class Weight(ir.LazyTensor):
    """Graph tensor stored in a checkpoint's file, which is converted and transposed when it is read.

    Args:
        stored: Location of the stored tensor.
        dtype: Dtype of the graph's tensor.
        perm: Order of the stored dimensions, as in an ONNX Transpose; None for the stored order.
        name: Name of the tensor.
    """

    def __init__(
        self,
        stored: StoredTensor,
        dtype: ir.DataType,
        perm: tuple[int, ...] | None = None,
        name: str | None = None,
    ) -> None:
        self.stored, self.perm = stored, perm
        shape = stored.shape if perm is None else tuple(stored.shape[i] for i in perm)
        super().__init__(lambda: TorchTensor(self.tensor()), dtype, ir.Shape(shape), name=name)

    def transposed(self, perm: tuple[int, ...], name: str | None) -> Weight:
        """Return the tensor with its dimensions in another order."""
        before = self.perm or tuple(range(len(self.stored.shape)))
        return Weight(self.stored, self.dtype, tuple(before[i] for i in perm), name)

    def tensor(self) -> torch.Tensor:
        """Read, convert and transpose the tensor."""
        tensor = self.stored.read().to(to_torch_dtype(self.dtype))
        return tensor if self.perm is None else tensor.permute(self.perm).contiguous()

    def tofile(self, file: IO[bytes]) -> None:
        """Write the tensor's bytes, in parts unless it must be transposed."""
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
    """Replace a traced graph's initializers with the network's tensors that are stored on disk.

    Args:
        model: Graph before constant folding, with initializers named as in the network.
        module: Network that was traced.
    """
    stored = stored_weights(module)
    for name, value in model.graph.initializers.items():
        location, traced = stored.get(name), value.const_value
        if location is None or traced is None:
            continue
        weight = Weight(location, traced.dtype, name=name)
        small = int(np.prod(location.shape, dtype=np.int64)) <= _SMALL
        value.const_value = TorchTensor(weight.tensor(), name) if small else weight


def keeps_weights(node: ir.Node) -> bool | None:
    """Return False if a node must not be folded because an input is a weight on disk, else None."""
    weights = (value is not None and isinstance(value.const_value, Weight) for value in node.inputs)
    return False if any(weights) else None


def fold_transposes(model: ir.Model) -> None:
    """Fold Transpose nodes into their weights on disk, which saves transposing at each load of the graph."""
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
            name=out.name, shape=out.shape, type=out.type, const_value=weight.transposed(order, out.name)
        )
        out.replace_all_uses_with(turned)
        model.graph.remove(node, safe=True)
        model.graph.initializers.pop(str(value.name))
        model.graph.register_initializer(turned)
