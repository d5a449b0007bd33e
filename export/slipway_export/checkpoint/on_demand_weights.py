"""Networks of any size in float32 and little memory, which read each weight when an operator needs it.

A weight stored in a checkpoint's file is replaced by a tensor of the same shape that declares float32 and
has no content. For each operator call the values are read, converted to float32 and moved to the device. A
network of 14 billion parameters thus runs in float32 with one of its matrices in memory at a time; each run
reads the files again, mostly from the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from slipway_export.checkpoint.stored_weights import StoredTensor, stored_weights

_aten = torch.ops.aten
# Operators that look up rows of a table: only the rows are converted to float32, not the whole table.
_LOOKUPS = (_aten.embedding.default, _aten.index_select.default)


class OnDemand(torch.Tensor):
    """Float32 tensor whose values stay in a checkpoint's file, in any dtype, until an operator uses it.

    A tensor stored as integers keeps its dtype.

    Args:
        stored: Location of the stored tensor.
        device: Device on which operators receive the values.
    """

    stored: StoredTensor

    @staticmethod
    def __new__(cls, stored: StoredTensor, device: torch.device) -> OnDemand:  # noqa: D102
        dtype = torch.float32 if stored.dtype.is_floating_point else stored.dtype
        tensor: OnDemand = torch.Tensor._make_wrapper_subclass(cls, stored.shape, dtype=dtype, device=device)
        tensor.stored = stored
        return tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDemand({self.stored.key}, shape={list(self.stored.shape)})"

    def values(self) -> torch.Tensor:
        """Read the values in the tensor's dtype, on its device."""
        return self.stored.read().to(self.device, self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without its class
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator on the values; detach returns another tensor on disk."""
        if func is _aten.detach.default:
            (tensor,) = args
            return cls(tensor.stored, tensor.device)
        if func in _LOOKUPS and isinstance(args[0], cls):
            table, *rest = args
            rows = [part.cpu() if isinstance(part, torch.Tensor) else part for part in rest]
            if func is _aten.embedding.default:
                return table.stored.rows(rows[0]).to(table.device, table.dtype)
            return func(table.stored.read(), *rows).to(table.device, table.dtype)
        args, kwargs = tree_map_only(cls, cls.values, (args, kwargs or {}))
        return func(*args, **kwargs)


def read_on_demand(module: nn.Module, device: torch.device) -> nn.Module:
    """Make a network read its weights from the checkpoint's files when operators need them.

    Args:
        module: Network loaded in float32 with its weights left on disk; it is changed in place.
        device: Device to compute on.

    Returns:
        The module, on the device.
    """
    for name, stored in stored_weights(module).items():
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        tensor = OnDemand(stored, device)
        if attribute in owner._parameters:
            setattr(owner, attribute, nn.Parameter(tensor, requires_grad=False))
        else:
            owner._buffers[attribute] = tensor
    for owner in module.modules():
        # Tensors that are not in the checkpoint, such as positions and frequencies, are moved as they are.
        for name, buffer in owner._buffers.items():
            if buffer is not None and not isinstance(buffer, OnDemand):
                owner._buffers[name] = buffer.to(device)
        for name, weight in owner._parameters.items():
            if weight is not None and not isinstance(weight, OnDemand):
                owner._parameters[name] = nn.Parameter(weight.to(device), requires_grad=False)
    return module
