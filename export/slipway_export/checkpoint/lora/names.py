"""Names of a network's modules in LoRA files: diffusers' names, and those of the original repositories.

A LoRA may be trained on the original network, whose modules have other names, and some of whose matrices hold
several of diffusers' one after another (``img_attn_qkv``). Kohya's tools also write an underscore for each
dot. The names are those of the checkpoints (:mod:`slipway_export.checkpoint.layouts.names`).
:func:`modules_by_name` lists every name under which a file may mean a module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slipway_export.checkpoint.layouts.names import HUNYUAN_TRANSFORMER, WAN_TRANSFORMER

_ORIGINALS = {
    "WanTransformer3DModel": WAN_TRANSFORMER,
    "HunyuanVideoTransformer3DModel": HUNYUAN_TRANSFORMER,
    "HunyuanVideoFramepackTransformer3DModel": HUNYUAN_TRANSFORMER,
}
# Original matrices that hold several of diffusers' in this order: blocks in diffusers, matrix, modules.
_JOINED = (
    ("transformer_blocks", "double_blocks.{}.img_attn_qkv", ("attn.to_q", "attn.to_k", "attn.to_v")),
    (
        "transformer_blocks",
        "double_blocks.{}.txt_attn_qkv",
        ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    ),
    (
        "single_transformer_blocks",
        "single_blocks.{}.linear1",
        ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    ),
    (
        "context_embedder.token_refiner.refiner_blocks",
        "txt_in.individual_token_refiner.blocks.{}.self_attn_qkv",
        ("attn.to_q", "attn.to_k", "attn.to_v"),
    ),
)
# The original stores shift and scale in the other order than diffusers.
_SWAPPED = ("norm_out.linear", "final_layer.adaLN_modulation.1")
_BLOCK = re.compile(r"^(.+?)\.(\d+)\.")


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
    for name, meanings in _originals(network, rows).items():
        found.setdefault(name, []).extend(each for each in meanings if each not in found.get(name, ()))
    spaced = {name.replace(".", "_"): meanings for name, meanings in found.items()}
    return {name: tuple(meanings) for name, meanings in (spaced | found).items()}


def original_name(network: str, module: str) -> str | None:
    """Return the original name of a diffusers module; None if it has none of its own."""
    return _ORIGINALS[network].to_file(module) if network in _ORIGINALS else None


def _originals(network: str, rows: Mapping[str, int]) -> dict[str, list[Meaning]]:
    """Return the modules that each original name means."""
    found = {
        name: [Meaning(module)] for module in rows if (name := original_name(network, module)) is not None
    }
    return found | _rearranged(rows) if _ORIGINALS.get(network) is HUNYUAN_TRANSFORMER else found


def _rearranged(rows: Mapping[str, int]) -> dict[str, list[Meaning]]:
    """Return the modules of HunyuanVideo whose rows are elsewhere in the original's matrices."""
    found: dict[str, list[Meaning]] = {}
    blocks = {(block[1], block[2]) for module in rows if (block := _BLOCK.match(module))}
    for own, name, parts in _JOINED:
        for number in sorted(number for place, number in blocks if place == own):
            modules = [f"{own}.{number}.{part}" for part in parts]
            if all(module in rows for module in modules):
                found[name.format(number)] = _joined(modules, rows)
    module, name = _SWAPPED
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
