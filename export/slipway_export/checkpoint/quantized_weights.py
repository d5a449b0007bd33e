"""Refusal of checkpoints with quantized weights, whose products are kernels of a library and not operators.

Such a checkpoint says so in its configuration, or has integers or float8 where its network has floats, with
scales beside them. Slipway quantizes graphs itself, from the original weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

    from slipway_export.checkpoint.stored_weights import StoredTensor

_ALTERNATIVE = (
    "try the checkpoint before its quantization, with --precision int8 or int4 to quantize the graph"
)
_SHOWN = 3
# Last words of the keys that libraries store beside a quantized weight: torchao and compressed-tensors,
# Hugging Face's fp8, bitsandbytes, GPTQ and AWQ, and the single files of ComfyUI.
_BESIDE = (
    "weight_scale", "weight_scale_inv", "weight_zero_point", "input_scale", "scale_weight", "scale_input",
    "SCB", "absmax", "quant_map", "nested_absmax", "nested_quant_map", "qweight", "qzeros", "scales", "g_idx",
    "weight_packed", "comfy_quant",
)  # fmt: skip


def check_config(where: str, config: Mapping[str, Any]) -> None:
    """Refuse the configuration of a quantized network.

    Args:
        where: Name of the file in messages.
        config: Content of the file.

    Raises:
        InvalidRequest: The configuration has a ``quantization_config``. The message names the method and the
            modules that are not quantized.
    """
    found = config.get("quantization_config")
    if not found:
        return
    stated = found if isinstance(found, Mapping) else {}
    method = stated.get("quant_method") or "an unnamed method"
    left = stated.get("modules_to_not_convert") or stated.get("ignore") or ()
    others = f" except {', '.join(map(str, left))}" if left else ""
    raise InvalidRequest(
        f"{where}: quantization_config must be left out, got {method}: its Linear modules{others} are"
        f" kernels that ONNX has no operators for; {_ALTERNATIVE}"
    )


def check_stored(where: str, stored: Mapping[str, StoredTensor], skeleton: torch.nn.Module) -> None:
    """Refuse stored tensors that are quantized weights of a network.

    Args:
        where: Name of the part in messages.
        stored: Tensors of the part, by the network's keys.
        skeleton: Network without weights.

    Raises:
        InvalidRequest: Modules have integers, float8 or scales in place of floats. The message names the
            first of them.
    """
    floats = {key for key, tensor in skeleton.state_dict().items() if tensor.is_floating_point()}
    modules: dict[str, str] = {}
    for key, tensor in stored.items():
        module, _, name = key.rpartition(".")
        narrow = key in floats and (not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1)
        if narrow:
            modules[module] = str(tensor.dtype).removeprefix("torch.")
        elif name in _BESIDE and key not in floats:
            modules.setdefault(module, f"with {name}")
    if modules:
        shown = [f"{module} ({kind})" for module, kind in list(modules.items())[:_SHOWN]]
        rest = f" and {len(modules) - _SHOWN} more" if len(modules) > _SHOWN else ""
        raise InvalidRequest(
            f"{where} must have weights that are not quantized, got {', '.join(shown)}{rest}; {_ALTERNATIVE}"
        )
