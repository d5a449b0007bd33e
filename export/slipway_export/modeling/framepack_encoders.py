"""The encoders of prompts and pictures of FramePack, in transformers' networks, with float32 at their edges.

Each gives the one tensor that the transformer takes of it; layers that have no part in it are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, LlamaModel, SiglipVisionModel

SKIPPED_LAYERS = 2
"""Layers of LLaMA, from its end, that are not run: HunyuanVideo takes what those before them give."""


class LlamaText(nn.Module):
    """LLaMA without its last layers and norm: token ids to hidden states."""

    def __init__(self, llama: LlamaModel) -> None:
        super().__init__()
        self.llama = llama
        del llama.layers[-SKIPPED_LAYERS:]
        llama.norm = nn.Identity()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode prompts in their template.

        Args:
            input_ids: [batch, tokens], int64.
            attention_mask: [batch, tokens], int64, ones and then zeros.

        Returns:
            Hidden states before the last `SKIPPED_LAYERS` layers, [batch, tokens, hidden_size], float32;
            those of the template's tokens too.
        """
        batch, tokens = input_ids.shape
        # For every row its own: the operator of the rotation wants a table of each.
        positions = torch.arange(tokens, device=input_ids.device)[None].expand(batch, -1)
        hidden: Tensor = self.llama(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        return hidden.float()


class ClipText(nn.Module):
    """CLIP's text encoder: token ids to one vector."""

    def __init__(self, clip: CLIPTextModel) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, input_ids: Tensor) -> Tensor:
        """Encode prompts.

        Args:
            input_ids: [batch, tokens], int64, each row with the token that ends a text.

        Returns:
            The state of that token, [batch, hidden_size], float32.
        """
        pooled: Tensor = self.clip(input_ids=input_ids).pooler_output
        return pooled.float()


class SiglipImage(nn.Module):
    """SigLIP's view of a picture: the states of its patches."""

    def __init__(self, siglip: SiglipVisionModel) -> None:
        super().__init__()
        self.siglip = siglip
        siglip.use_head = False
        if hasattr(siglip, "head"):
            del siglip.head

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Encode pictures.

        Args:
            pixel_values: [batch, 3, size, size], float32, resized and normalized as the checkpoint's
                `feature_extractor` says.

        Returns:
            Hidden states, [batch, patches, hidden_size], float32: 729 of 1152 for so400m at 384 px.
        """
        dtype = self.siglip.embeddings.patch_embedding.weight.dtype
        states: Tensor = self.siglip(pixel_values.to(dtype)).last_hidden_state
        return states.float()
