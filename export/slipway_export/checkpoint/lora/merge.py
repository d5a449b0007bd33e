"""Merge of LoRAs into stored weights: W + scale * alpha / rank * up @ down, tensor by tensor.

:func:`merged` replaces the stored tensors that a LoRA changes with ones that add its matrices when they are
read. Nothing is written, and only the tensor being read is in memory. The sum is computed in float32 and
converted to the graph's type afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from slipway_export.checkpoint.lora.adapters import Adapter
from slipway_export.checkpoint.lora.keys import Role, alpha_of, entry_of
from slipway_export.checkpoint.lora.names import Meaning, modules_by_name
from slipway_export.checkpoint.stored_weights import StoredTensor
from slipway_serving.protocol.errors import InvalidRequest, raise_all

_SHOWN = 3


@dataclass(frozen=True)
class Change:
    """Change of a tensor by one LoRA: scale * up @ down, or scale * up.

    Args:
        up: Left factor, or the change itself.
        scale: Factor of the product.
        down: Right factor; None if `up` is the change itself.
        rows: Ranges of rows of `up` that change the tensor, in their order; all when empty.
    """

    up: StoredTensor
    scale: float
    down: StoredTensor | None = None
    rows: tuple[tuple[int, int], ...] = ()

    def read(self, shape: tuple[int, ...], begin: int | None, end: int | None) -> torch.Tensor:
        """Compute rows of the change of a tensor with this shape, in float32."""
        up = self.up.read().float()
        if self.rows:
            up = torch.cat([up[first:last] for first, last in self.rows])
        if self.down is None:
            whole = up.reshape(shape)
            return (whole[begin:end] if shape else whole) * self.scale
        product = up.flatten(1)[begin:end] @ self.down.read().float().flatten(1)
        return product.mul_(self.scale).reshape(len(product), *shape[1:])


@dataclass(frozen=True)
class MergedTensor(StoredTensor):
    """Stored tensor to which the changes of LoRAs are added when it is read, in float32.

    Args:
        base: Tensor without the changes.
        changes: Changes, in the order in which they are added.
    """

    base: StoredTensor | None = None
    changes: tuple[Change, ...] = field(default=(), repr=False)

    @property
    def disk_bytes(self) -> int:
        """Size on disk without the LoRAs, in bytes."""
        return self.base.disk_bytes if self.base is not None else self.bytes

    def read(self, begin: int | None = None, end: int | None = None) -> torch.Tensor:
        """Read the tensor, or rows of it, with the changes of the LoRAs."""
        assert self.base is not None
        found = self.base.read(begin, end).to(torch.float32, copy=True)
        for change in self.changes:
            found += change.read(self.shape, begin, end)
        return found


def merged(
    weights: Mapping[str, StoredTensor], adapters: Sequence[Adapter], network: str
) -> dict[str, StoredTensor]:
    """Return stored weights with LoRAs merged into them.

    Args:
        weights: Tensors of the network by diffusers' keys.
        adapters: LoRAs, in their order.
        network: Name of the network's class in diffusers.

    Raises:
        InvalidRequest: A LoRA has keys that do not belong to the network, a shape that does not fit, or is of
            another method, such as DoRA. Nothing of a LoRA is ever left out.
    """
    changes: dict[str, list[Change]] = {}
    for adapter in adapters:
        for key, change in _changes(weights, adapter, network):
            changes.setdefault(key, []).append(change)
    result = dict(weights)
    for key, added in changes.items():
        base = weights[key]
        result[key] = MergedTensor(base.file, base.key, base.shape, torch.float32, base, tuple(added))
    return result


def _changes(weights: Mapping[str, StoredTensor], adapter: Adapter, network: str) -> list[tuple[str, Change]]:
    """Return the changes of one LoRA, each with the key of the tensor that it changes."""
    tensors = adapter.tensors()
    adapter.check_kind(tensors)
    rows = {_module(key): tensor.shape[0] for key, tensor in weights.items() if tensor.shape}
    meanings = modules_by_name(network, rows)
    modules: dict[str, dict[Role, StoredTensor]] = {}
    unknown = []
    for key, tensor in tensors.items():
        entry = entry_of(key)
        if entry is None or entry.module not in meanings:
            unknown.append(key)
        elif entry.role in (parts := modules.setdefault(entry.module, {})):
            raise InvalidRequest(
                f"{adapter.where} must have one {entry.role.value} for each module, got another one, {key}"
            )
        else:
            parts[entry.role] = tensor
    if unknown:
        raise InvalidRequest(
            f"{adapter.where} must have keys of {network}'s modules only, got {_shown(unknown)}; try a LoRA"
            " that was trained for this network"
        )
    found: list[tuple[str, Change]] = []
    problems: list[str] = []
    for name, parts in modules.items():
        for meaning in meanings[name]:
            try:
                found += _module_changes(weights, adapter, name, parts, meaning)
            except InvalidRequest as error:
                problems.append(str(error))
    raise_all(adapter.where, _few(problems))
    return found


def _module_changes(
    weights: Mapping[str, StoredTensor],
    adapter: Adapter,
    name: str,
    parts: Mapping[Role, StoredTensor],
    meaning: Meaning,
) -> list[tuple[str, Change]]:
    """Return the changes of one module's weight and bias."""
    module = meaning.module
    weight, bias = (module if module in weights else f"{module}.weight"), f"{module}.bias"
    found: list[tuple[str, Change]] = []
    up, down, scale = parts.get(Role.UP), parts.get(Role.DOWN), adapter.scale
    if (up is None) != (down is None) or (up is None and parts.keys() & {Role.ALPHA, Role.UP_BIAS}):
        missing = Role.UP if up is None else Role.DOWN
        raise InvalidRequest(f"{name} must have both factors, got none of role {missing.value}")
    if up is not None and down is not None:
        rank = down.shape[0]
        if Role.ALPHA in parts:
            scale *= float(parts[Role.ALPHA].read().float()) / rank
        else:
            scale *= alpha_of(adapter.config, name, rank)
        found.append((weight, Change(up, scale, down, meaning.rows)))
    for role, key, factor in (
        (Role.UP_BIAS, bias, scale),
        (Role.DIFFERENCE, weight, adapter.scale),
        (Role.BIAS_DIFFERENCE, bias, adapter.scale),
    ):
        if role in parts:
            found.append((key, Change(parts[role], factor, None, meaning.rows)))
    for key, change in found:
        _check_shape(weights, key, change, name, meaning)
    return found


def _check_shape(
    weights: Mapping[str, StoredTensor], key: str, change: Change, name: str, meaning: Meaning
) -> None:
    if key not in weights:
        raise InvalidRequest(f"{name} must change tensors of the network, got one for {key}, which it lacks")
    shape, up = weights[key].shape, change.up.shape
    total = (meaning.total or shape[0]) if shape else 1
    if change.down is None:
        fits = math.prod(up) == total * math.prod(shape[1:])
        got = list(up)
    else:
        down = change.down.shape
        fits = (
            len(up) >= 2
            and up[0] == total
            and math.prod(up[1:]) == down[0]
            and math.prod(down[1:]) == math.prod(shape[1:])
        )
        got = [up[0], *down[1:]]
    if not fits:
        raise InvalidRequest(f"{name} must have shape {[total, *shape[1:]]}, got {got}")


def _module(key: str) -> str:
    """Return the module of a weight or a bias, or the key of another parameter."""
    return key.removesuffix(".weight").removesuffix(".bias")


def _few(problems: Sequence[str]) -> list[str]:
    rest = len(problems) - _SHOWN
    return [*problems[:_SHOWN], *([f"and {rest} more of the kind"] if rest > 0 else [])]


def _shown(keys: Sequence[str]) -> str:
    rest = len(keys) - _SHOWN
    return ", ".join(keys[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
