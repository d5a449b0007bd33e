"""Chooses the attention of a network's transformers, by the library that made them.

diffusers' networks take any backend of its dispatcher; those of transformers take torch's function, which is
what that dispatcher calls native. Any other network has no attention to choose.
"""

from __future__ import annotations

from torch import nn

from slipway_serving.errors import InvalidRequest
from slipway_serving.torch_engine.options import SDPA


def set_attention(module: nn.Module, attention: str, where: str) -> None:
    """Have a network attend by a backend.

    Args:
        module: the network; it may be without weights.
        attention: a name of diffusers' dispatcher, or ``sdpa``.
        where: how messages name the network.

    Raises:
        InvalidRequest: there is no such backend, it is not installed, or the network cannot take it.
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
            "sdpa: the network is not one of diffusers' dispatcher" if encoders else "left out: it has none"
        )
        raise InvalidRequest(f"{where}: attention must be {rule}, got {attention}")
    for encoder in encoders:
        encoder.set_attn_implementation(SDPA)
