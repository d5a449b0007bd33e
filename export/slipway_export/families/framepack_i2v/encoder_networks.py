"""Wrappers of FramePack's encoders of prompts and pictures, with float32 inputs and outputs.

The networks are those of transformers. Each returns the one tensor that FramePack's transformer needs; layers
that do not contribute to it are removed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, LlamaModel, SiglipVisionModel

SKIPPED_LAYERS = 2
"""Number of LLaMA's last layers that are not run: HunyuanVideo uses the output of the layer before them."""


class LlamaText(nn.Module):
    """LLaMA without its last layers and norm, which maps token ids to hidden states."""

    def __init__(self, llama: LlamaModel) -> None:
        super().__init__()
        self.llama = llama
        del llama.layers[-SKIPPED_LAYERS:]
        llama.norm = nn.Identity()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode prompts in their template.

        Args:
            input_ids: Token ids, [batch, tokens], int64.
            attention_mask: Mask of the tokens, [batch, tokens], int64, ones and then zeros.

        Returns:
            Hidden states before the last `SKIPPED_LAYERS` layers, [batch, tokens, hidden_size], float32,
            including those of the template's tokens.
        """
        batch, tokens = input_ids.shape
        # Each row has its own positions, since the rotation operator needs a table for each row.
        positions = torch.arange(tokens, device=input_ids.device)[None].expand(batch, -1)
        hidden: Tensor = self.llama(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        return hidden.float()


class ClipText(nn.Module):
    """CLIP's text encoder, which maps token ids to one vector."""

    def __init__(self, clip: CLIPTextModel) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, input_ids: Tensor) -> Tensor:
        """Encode prompts.

        Args:
            input_ids: Token ids, [batch, tokens], int64; each row contains the token that ends a text.

        Returns:
            Hidden state of that token, [batch, hidden_size], float32.
        """
        pooled: Tensor = self.clip(input_ids=input_ids).pooler_output
        return pooled.float()


class SiglipImage(nn.Module):
    """SigLIP's image encoder, which maps a picture to the hidden states of its patches."""

    def __init__(self, siglip: SiglipVisionModel) -> None:
        super().__init__()
        self.siglip = siglip
        siglip.use_head = False
        if hasattr(siglip, "head"):
            del siglip.head

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Encode pictures.

        Args:
            pixel_values: Pictures, [batch, 3, size, size], float32, resized and normalized as the
                checkpoint's `feature_extractor` specifies.

        Returns:
            Hidden states, [batch, patches, hidden_size], float32: 729 of 1152 for so400m at 384 px.
        """
        dtype = self.siglip.embeddings.patch_embedding.weight.dtype
        states: Tensor = self.siglip(pixel_values.to(dtype)).last_hidden_state
        return states.float()
