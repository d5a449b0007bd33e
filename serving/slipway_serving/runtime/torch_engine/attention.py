"""Choice of the attention backend of a network, according to the library that defines the network.

Networks of diffusers take any backend of its dispatcher. Networks of transformers take torch's attention
function, which the dispatcher calls native. Any other network has no choice of attention.
"""

from __future__ import annotations

from torch import nn

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.torch_engine.options import SDPA


def set_attention(module: nn.Module, attention: str, where: str) -> None:
    """Set the attention backend of a network.

    Args:
        module: Network; it may be without weights.
        attention: Name of a backend of diffusers' dispatcher, or ``sdpa``.
        where: Name of the network, for messages.

    Raises:
        InvalidRequest: There is no such backend, it is not installed, or the network does not support it.
    """
    from diffusers import ModelMixin
    from transformers import PreTrainedModel

    networks = [part for part in module.modules() if isinstance(part, ModelMixin)]
    if networks:
        for network in networks:
            try:
                network.set_attention_backend("native" if attention == SDPA else attention)
            except (ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise InvalidRequest(
                    f"{where}: attention must be an installed backend of diffusers' dispatcher, got"
                    f" {attention}: {reason}; try --attention sdpa"
                ) from None
        return
    encoders = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    if not encoders or attention != SDPA:
        rule = (
            "sdpa (the network does not use diffusers' dispatcher)"
            if encoders
            else "left out (the network has no choice of attention)"
        )
        raise InvalidRequest(f"{where}: attention must be {rule}, got {attention}")
    for encoder in encoders:
        encoder.set_attn_implementation(SDPA)
