"""Comparison of the keys and shapes of stored weights with those of a network, and the network's dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slipway_export.spec.formats import Precision
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

_SHOWN_KEYS = 5
_TORCH_DTYPES = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.BF16: "bfloat16"}


def check_keys(
    name: str, found: Mapping[str, tuple[int, ...]], skeleton: torch.nn.Module, prefix: str = ""
) -> None:
    """Check the keys and shapes of stored tensors against those of a network.

    Args:
        name: Location and file of the tensors, for messages.
        found: Stored shapes by key.
        skeleton: Network, with or without weights.
        prefix: Prefix of the stored keys.

    Raises:
        InvalidRequest: Keys are missing or unknown, or have another shape. The message names the first.
    """
    expected = {prefix + key: tuple(tensor.shape) for key, tensor in skeleton.state_dict().items()}
    # A checkpoint may store a tied weight under either of its names.
    tied = getattr(skeleton, "_tied_weights_keys", None) or {}
    twins = dict(tied) if isinstance(tied, Mapping) else {}
    optional = {
        prefix + key for pair in twins.items() for key in pair if any(prefix + n in found for n in pair)
    }
    problems = []
    if missing := sorted(expected.keys() - found.keys() - optional):
        problems.append(f"missing keys {shown_keys(missing)}")
    if unknown := sorted(found.keys() - expected.keys()):
        problems.append(f"unknown keys {shown_keys(unknown)}")
    problems += [
        f"{key} must have shape {list(expected[key])}, got {list(found[key])}"
        for key in sorted(expected.keys() & found.keys())
        if expected[key] != found[key]
    ][:_SHOWN_KEYS]
    if problems:
        raise InvalidRequest(
            f"{name} must have the keys of {type(skeleton).__name__}, got {'; '.join(problems)}"
        )


def torch_dtype(precision: Precision) -> torch.dtype:
    """Return the torch dtype of a floating-point precision."""
    import torch

    dtype: torch.dtype = getattr(torch, _TORCH_DTYPES[precision])
    return dtype


def dtypes_of(network: type[Any], dtype: torch.dtype) -> Callable[[str], torch.dtype]:
    """Return a function that gives a weight's dtype, by key, for a network that is loaded in `dtype`."""
    import torch

    float32_modules = tuple(getattr(network, "_keep_in_fp32_modules", None) or ())
    return lambda key: torch.float32 if any(name in key.split(".") for name in float32_modules) else dtype


def cast(skeleton: torch.nn.Module, dtype_of: Callable[[str], torch.dtype]) -> None:
    """Convert a network without weights to the dtypes that its weights would have."""
    for name, weight in skeleton.named_parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype_of(name))


def shown_keys(keys: Sequence[str]) -> str:
    """Return the first of some keys, and how many more there are."""
    rest = len(keys) - _SHOWN_KEYS
    return ", ".join(keys[:_SHOWN_KEYS]) + (f" and {rest} more" if rest > 0 else "")
