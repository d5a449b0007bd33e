"""Names of a network's modules in LoRA files: diffusers' names, and those of the original repositories.

A LoRA may be trained on the original network, whose modules have other names, and some of whose matrices hold
several of diffusers' one after another (``img_attn_qkv``). Kohya's tools also write an underscore for each
dot. Wan's names are those of its checkpoints (:mod:`slipway_export.checkpoint.layouts.names`).
:func:`modules_by_name` lists every name under which a file may mean a module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slipway_export.checkpoint.layouts.names import WAN_TRANSFORMER

_HUNYUAN_DOUBLE = {
    "norm1.linear": "img_mod.linear",
    "norm1_context.linear": "txt_mod.linear",
    "attn.norm_q": "img_attn_q_norm",
    "attn.norm_k": "img_attn_k_norm",
    "attn.to_out.0": "img_attn_proj",
    "attn.norm_added_q": "txt_attn_q_norm",
    "attn.norm_added_k": "txt_attn_k_norm",
    "attn.to_add_out": "txt_attn_proj",
    "ff.net.0.proj": "img_mlp.fc1",
    "ff.net.2": "img_mlp.fc2",
    "ff_context.net.0.proj": "txt_mlp.fc1",
    "ff_context.net.2": "txt_mlp.fc2",
}
_HUNYUAN_SINGLE = {
    "norm.linear": "modulation.linear",
    "attn.norm_q": "q_norm",
    "attn.norm_k": "k_norm",
    "proj_out": "linear2",
}
_HUNYUAN_REFINER = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.to_out.0": "self_attn_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
    "norm_out.linear": "adaLN_modulation.1",
}
_HUNYUAN = {
    "x_embedder.proj": "img_in.proj",
    "time_text_embed.timestep_embedder.linear_1": "time_in.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "time_in.mlp.2",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.mlp.0",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.mlp.2",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "context_embedder.proj_in": "txt_in.input_embedder",
    "context_embedder.time_text_embed.timestep_embedder.linear_1": "txt_in.t_embedder.mlp.0",
    "context_embedder.time_text_embed.timestep_embedder.linear_2": "txt_in.t_embedder.mlp.2",
    "context_embedder.time_text_embed.text_embedder.linear_1": "txt_in.c_embedder.linear_1",
    "context_embedder.time_text_embed.text_embedder.linear_2": "txt_in.c_embedder.linear_2",
    "proj_out": "final_layer.linear",
}
# Original matrices that hold several of diffusers', in this order.
_HUNYUAN_JOINED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "transformer_blocks": {
        "img_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
        "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    },
    "single_transformer_blocks": {"linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")},
    "context_embedder.token_refiner.refiner_blocks": {
        "self_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v")
    },
}
_HUNYUAN_BLOCKS = {
    "transformer_blocks": ("double_blocks", _HUNYUAN_DOUBLE),
    "single_transformer_blocks": ("single_blocks", _HUNYUAN_SINGLE),
    "context_embedder.token_refiner.refiner_blocks": (
        "txt_in.individual_token_refiner.blocks",
        _HUNYUAN_REFINER,
    ),
}
# The original stores shift and scale in the other order than diffusers.
_HUNYUAN_SWAPPED = ("norm_out.linear", "final_layer.adaLN_modulation.1")
_BLOCK = re.compile(r"^(.+?)\.(\d+)\.(.+)$")


@dataclass(frozen=True)
class Meaning:
    """Module that a name in a LoRA file means.

    Args:
        module: Path of the module in diffusers; of the parameter for one that is no module's weight or bias.
        rows: Ranges of rows of the file's matrix that make up the module's, in their order; all when empty.
        total: Number of rows that the file's matrix must have; None for that of the module.
    """

    module: str
    rows: tuple[tuple[int, int], ...] = ()
    total: int | None = None


def modules_by_name(network: str, rows: Mapping[str, int]) -> dict[str, tuple[Meaning, ...]]:
    """Return the modules that each name in a LoRA file may mean.

    Args:
        network: Name of the network's class in diffusers, which decides the original names.
        rows: Number of rows of each module's weight, by its path in diffusers.
    """
    found: dict[str, list[Meaning]] = {module: [Meaning(module)] for module in rows}
    for name, meanings in _ORIGINALS.get(network, _none)(rows).items():
        found.setdefault(name, []).extend(each for each in meanings if each not in found.get(name, ()))
    spaced = {name.replace(".", "_"): meanings for name, meanings in found.items()}
    return {name: tuple(meanings) for name, meanings in (spaced | found).items()}


def original_name(network: str, module: str) -> str | None:
    """Return the original name of a diffusers module; None if it has none of its own."""
    tables = {
        "WanTransformer3DModel": WAN_TRANSFORMER.to_file,
        **dict.fromkeys(_HUNYUAN_NETWORKS, _hunyuan_name),
    }
    return tables[network](module) if network in tables else None


def _none(_: Mapping[str, int]) -> dict[str, list[Meaning]]:
    return {}


def _wan(rows: Mapping[str, int]) -> dict[str, list[Meaning]]:
    return {
        name: [Meaning(module)] for module in rows if (name := WAN_TRANSFORMER.to_file(module)) is not None
    }


def _hunyuan_name(module: str) -> str | None:
    for own, (other, table) in _HUNYUAN_BLOCKS.items():
        block = _BLOCK.match(module)
        if block is not None and block[1] == own:
            return f"{other}.{block[2]}.{table[block[3]]}" if block[3] in table else None
    return _HUNYUAN.get(module)


def _hunyuan(rows: Mapping[str, int]) -> dict[str, list[Meaning]]:
    found = {name: [Meaning(module)] for module in rows if (name := _hunyuan_name(module)) is not None}
    blocks = {(m[1], m[2]) for module in rows if (m := _BLOCK.match(module)) and m[1] in _HUNYUAN_JOINED}
    for own, number in sorted(blocks):
        for joined, parts in _HUNYUAN_JOINED[own].items():
            modules = [f"{own}.{number}.{part}" for part in parts]
            if all(module in rows for module in modules):
                found[f"{_HUNYUAN_BLOCKS[own][0]}.{number}.{joined}"] = _joined(modules, rows)
    module, name = _HUNYUAN_SWAPPED
    if module in rows:
        half = rows[module] // 2
        found[name] = [Meaning(module, ((half, 2 * half), (0, half)), 2 * half)]
    return found


def _joined(modules: list[str], rows: Mapping[str, int]) -> list[Meaning]:
    total, found, begin = sum(rows[module] for module in modules), [], 0
    for module in modules:
        found.append(Meaning(module, ((begin, begin + rows[module]),), total))
        begin += rows[module]
    return found


_HUNYUAN_NETWORKS = ("HunyuanVideoTransformer3DModel", "HunyuanVideoFramepackTransformer3DModel")
_ORIGINALS: Mapping[str, Callable[[Mapping[str, int]], dict[str, list[Meaning]]]] = {
    "WanTransformer3DModel": _wan,
    **dict.fromkeys(_HUNYUAN_NETWORKS, _hunyuan),
}
