"""Tables of names: each network's tensors in diffusers or transformers, and in files of other layouts.

A pair of a table has a pattern of each side, in which `*` stands for a number. A pattern names a module,
whose tensors and scales follow it, or a tensor. The same pairs serve both directions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Names:
    """Names of one network's tensors in a library and in files of a layout.

    Args:
        layout: Name of the layout, for messages.
        pairs: Pattern in the library and pattern in the file, of each module or tensor.
    """

    layout: str
    pairs: tuple[tuple[str, str], ...]

    def to_library(self, key: str) -> str | None:
        """Return the library's name of a file's tensor; None if the network has no such tensor."""
        return _translated(key, self._from_file)

    def to_file(self, key: str) -> str | None:
        """Return the name in a file of a library's tensor; None if the network has no such tensor."""
        return _translated(key, self._from_library)

    @cached_property
    def _from_file(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        return tuple((_pattern(file), library) for library, file in self.pairs)

    @cached_property
    def _from_library(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        return tuple((_pattern(library), file) for library, file in self.pairs)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", r"(\d+)") + r"(\..+|$)")


def _translated(key: str, patterns: tuple[tuple[re.Pattern[str], str], ...]) -> str | None:
    for pattern, other in patterns:
        if found := pattern.fullmatch(key):
            *numbers, rest = found.groups()
            return other.replace("*", "{}").format(*numbers) + rest
    return None


def _attention(library: str, file: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a Wan block's attention."""
    modules = {
        "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o", "norm_q": "norm_q", "norm_k": "norm_k",
        "add_k_proj": "k_img", "add_v_proj": "v_img", "norm_added_k": "norm_k_img",
    }  # fmt: skip
    return tuple((f"blocks.*.{library}.{a}", f"blocks.*.{file}.{b}") for a, b in modules.items())


_EMBEDDER = "condition_embedder"
WAN_TRANSFORMER = Names(
    "Wan's own names",
    (
        ("patch_embedding", "patch_embedding"),
        (f"{_EMBEDDER}.time_embedder.linear_1", "time_embedding.0"),
        (f"{_EMBEDDER}.time_embedder.linear_2", "time_embedding.2"),
        (f"{_EMBEDDER}.time_proj", "time_projection.1"),
        (f"{_EMBEDDER}.text_embedder.linear_1", "text_embedding.0"),
        (f"{_EMBEDDER}.text_embedder.linear_2", "text_embedding.2"),
        (f"{_EMBEDDER}.image_embedder.norm1", "img_emb.proj.0"),
        (f"{_EMBEDDER}.image_embedder.ff.net.0.proj", "img_emb.proj.1"),
        (f"{_EMBEDDER}.image_embedder.ff.net.2", "img_emb.proj.3"),
        (f"{_EMBEDDER}.image_embedder.norm2", "img_emb.proj.4"),
        (f"{_EMBEDDER}.image_embedder.pos_embed", "img_emb.emb_pos"),
        *_attention("attn1", "self_attn"),
        *_attention("attn2", "cross_attn"),
        # The authors count the norms in another order than they are applied.
        ("blocks.*.norm2", "blocks.*.norm3"),
        ("blocks.*.ffn.net.0.proj", "blocks.*.ffn.0"),
        ("blocks.*.ffn.net.2", "blocks.*.ffn.2"),
        ("blocks.*.scale_shift_table", "blocks.*.modulation"),
        ("scale_shift_table", "head.modulation"),
        ("proj_out", "head.head"),
    ),
)
"""Transformer of Wan: the authors' files, ComfyUI's, Kijai's, and GGUF."""

_BLOCK, _ATTENTION, _FEED_FORWARD = (
    "encoder.block.*",
    "encoder.block.*.layer.0.SelfAttention",
    "encoder.block.*.layer.1.DenseReluDense",
)
WAN_UMT5 = Names(
    "Wan's own names",
    (
        ("shared", "token_embedding"),
        *((f"{_ATTENTION}.{name}", f"blocks.*.attn.{name}") for name in "qkvo"),
        (f"{_ATTENTION}.relative_attention_bias", "blocks.*.pos_embedding.embedding"),
        (f"{_BLOCK}.layer.0.layer_norm", "blocks.*.norm1"),
        (f"{_BLOCK}.layer.1.layer_norm", "blocks.*.norm2"),
        (f"{_FEED_FORWARD}.wi_0", "blocks.*.ffn.gate.0"),
        (f"{_FEED_FORWARD}.wi_1", "blocks.*.ffn.fc1"),
        (f"{_FEED_FORWARD}.wo", "blocks.*.ffn.fc2"),
        ("encoder.final_layer_norm", "norm"),
    ),
)
"""UMT5 encoder in `models_t5_umt5-xxl-enc-bf16.pth` and in Kijai's files."""

GGUF_UMT5 = Names(
    "llama.cpp's names",
    (
        ("shared", "token_embd"),
        *((f"{_ATTENTION}.{name}", f"enc.blk.*.attn_{name}") for name in "qkvo"),
        (f"{_ATTENTION}.relative_attention_bias", "enc.blk.*.attn_rel_b"),
        (f"{_BLOCK}.layer.0.layer_norm", "enc.blk.*.attn_norm"),
        (f"{_BLOCK}.layer.1.layer_norm", "enc.blk.*.ffn_norm"),
        (f"{_FEED_FORWARD}.wi_0", "enc.blk.*.ffn_gate"),
        (f"{_FEED_FORWARD}.wi_1", "enc.blk.*.ffn_up"),
        (f"{_FEED_FORWARD}.wo", "enc.blk.*.ffn_down"),
        ("encoder.final_layer_norm", "enc.output_norm"),
    ),
)
"""UMT5 encoder in GGUF files, which llama.cpp's converter writes."""

_REFINER = "context_embedder.token_refiner.refiner_blocks.*"
_REFINER_FILE = "txt_in.individual_token_refiner.blocks.*"
_DOUBLE, _SINGLE = "transformer_blocks.*", "single_transformer_blocks.*"
_EMBED = "time_text_embed"
HUNYUAN_TRANSFORMER = Names(
    "HunyuanVideo's own names",
    (
        ("x_embedder.proj", "img_in.proj"),
        (f"{_EMBED}.timestep_embedder.linear_1", "time_in.mlp.0"),
        (f"{_EMBED}.timestep_embedder.linear_2", "time_in.mlp.2"),
        (f"{_EMBED}.guidance_embedder.linear_1", "guidance_in.mlp.0"),
        (f"{_EMBED}.guidance_embedder.linear_2", "guidance_in.mlp.2"),
        (f"{_EMBED}.text_embedder.linear_1", "vector_in.in_layer"),
        (f"{_EMBED}.text_embedder.linear_2", "vector_in.out_layer"),
        ("context_embedder.proj_in", "txt_in.input_embedder"),
        (f"context_embedder.{_EMBED}.timestep_embedder.linear_1", "txt_in.t_embedder.mlp.0"),
        (f"context_embedder.{_EMBED}.timestep_embedder.linear_2", "txt_in.t_embedder.mlp.2"),
        (f"context_embedder.{_EMBED}.text_embedder.linear_1", "txt_in.c_embedder.linear_1"),
        (f"context_embedder.{_EMBED}.text_embedder.linear_2", "txt_in.c_embedder.linear_2"),
        (f"{_REFINER}.norm1", f"{_REFINER_FILE}.norm1"),
        (f"{_REFINER}.norm2", f"{_REFINER_FILE}.norm2"),
        (f"{_REFINER}.attn.to_out.0", f"{_REFINER_FILE}.self_attn_proj"),
        (f"{_REFINER}.ff.net.0.proj", f"{_REFINER_FILE}.mlp.fc1"),
        (f"{_REFINER}.ff.net.2", f"{_REFINER_FILE}.mlp.fc2"),
        (f"{_REFINER}.norm_out.linear", f"{_REFINER_FILE}.adaLN_modulation.1"),
        (f"{_DOUBLE}.norm1.linear", "double_blocks.*.img_mod.linear"),
        (f"{_DOUBLE}.norm1_context.linear", "double_blocks.*.txt_mod.linear"),
        (f"{_DOUBLE}.attn.norm_q", "double_blocks.*.img_attn_q_norm"),
        (f"{_DOUBLE}.attn.norm_k", "double_blocks.*.img_attn_k_norm"),
        (f"{_DOUBLE}.attn.to_out.0", "double_blocks.*.img_attn_proj"),
        (f"{_DOUBLE}.attn.norm_added_q", "double_blocks.*.txt_attn_q_norm"),
        (f"{_DOUBLE}.attn.norm_added_k", "double_blocks.*.txt_attn_k_norm"),
        (f"{_DOUBLE}.attn.to_add_out", "double_blocks.*.txt_attn_proj"),
        (f"{_DOUBLE}.ff.net.0.proj", "double_blocks.*.img_mlp.fc1"),
        (f"{_DOUBLE}.ff.net.2", "double_blocks.*.img_mlp.fc2"),
        (f"{_DOUBLE}.ff_context.net.0.proj", "double_blocks.*.txt_mlp.fc1"),
        (f"{_DOUBLE}.ff_context.net.2", "double_blocks.*.txt_mlp.fc2"),
        (f"{_SINGLE}.norm.linear", "single_blocks.*.modulation.linear"),
        (f"{_SINGLE}.attn.norm_q", "single_blocks.*.q_norm"),
        (f"{_SINGLE}.attn.norm_k", "single_blocks.*.k_norm"),
        (f"{_SINGLE}.proj_out", "single_blocks.*.linear2"),
        ("proj_out", "final_layer.linear"),
    ),
)
"""Transformer of HunyuanVideo, without the matrices that its authors' files join (`lora/names.py`)."""
