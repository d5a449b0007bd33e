"""Keys of LoRA files: the module that a key belongs to, and the role of its tensor.

The layouts are those of diffusers, PEFT, ComfyUI, kohya's tools and lightx2v. They differ in prefix
(``transformer.``, ``base_model.model.``, ``diffusion_model.``, ``lora_unet_``) and in the names of the two
factors (``lora_A`` and ``lora_B``, or ``lora_down`` and ``lora_up``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Role of a tensor for its module."""

    DOWN = "down"
    UP = "up"
    UP_BIAS = "bias of up"
    ALPHA = "alpha"
    DIFFERENCE = "difference"
    BIAS_DIFFERENCE = "difference of bias"


_ROLES: tuple[tuple[re.Pattern[str], Role], ...] = tuple(
    (re.compile(f"^(.+){end}$"), role)
    for end, role in (
        (r"\.lora_A(?:(?:\.[^.]+)?\.weight)?", Role.DOWN),
        (r"\.lora_B(?:(?:\.[^.]+)?\.weight)?", Role.UP),
        (r"\.lora_B(?:\.[^.]+)?\.bias", Role.UP_BIAS),
        (r"[._]lora(?:_linear_layer)?[._]down\.weight", Role.DOWN),
        (r"[._]lora(?:_linear_layer)?[._]up\.weight", Role.UP),
        (r"\.alpha", Role.ALPHA),
        (r"\.diff", Role.DIFFERENCE),
        (r"\.diff_b", Role.BIAS_DIFFERENCE),
    )
)
_MODULATION = ".diff_m"
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\.(?:dora_scale|lora_magnitude_vector)(?:\.|$)"), "DoRA"),
    (re.compile(r"\.hada_w\d"), "LoHa"),
    (re.compile(r"\.lokr_[wt]\d"), "LoKr"),
    (re.compile(r"\.lora_mid\."), "LoCon with a Tucker core"),
    (re.compile(r"\.oft_|\.oft_blocks"), "OFT"),
    (re.compile(r"\.(?:set_weight|reshape_weight)$"), "a patch that replaces weights"),
)
_PREFIXES = (
    "base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "transformer_2.",
    "lora_unet__", "lora_unet_", "lora_transformer_",
)  # fmt: skip
_PARTS = ("transformer", "transformer_2")


@dataclass(frozen=True)
class Entry:
    """Key of a LoRA file, taken apart.

    Args:
        key: Key in the file.
        part: Part of a diffusers checkpoint that the key's prefix names; "" for other prefixes.
        module: Name of the module.
        role: Role of the tensor.
    """

    key: str
    part: str
    module: str
    role: Role


def entry_of(key: str) -> Entry | None:
    """Take a key apart; return None if it is no LoRA's."""
    part = next((part for part in _PARTS if key.startswith(f"{part}.")), "")
    name = key
    while prefix := next((prefix for prefix in _PREFIXES if name.startswith(prefix)), ""):
        name = name.removeprefix(prefix)
    if name.endswith(_MODULATION):
        return Entry(key, part, f"{name.removesuffix(_MODULATION)}.modulation", Role.DIFFERENCE)
    for pattern, role in _ROLES:
        if found := pattern.match(name):
            return Entry(key, part, found[1], role)
    return None


def kinds_refused(keys: Iterable[str]) -> list[str]:
    """Return the names of the methods other than LoRA that keys belong to."""
    keys = list(keys)
    return [name for pattern, name in _KINDS if any(pattern.search(key) for key in keys)]


def is_lora(keys: Iterable[str]) -> bool:
    """Return whether a file with these keys is a LoRA, or of a related method."""
    keys = list(keys)
    found = (entry_of(key) for key in keys)
    factors = (Role.DOWN, Role.UP)
    return any(entry is not None and entry.role in factors for entry in found) or bool(kinds_refused(keys))


def parts_of(keys: Iterable[str]) -> set[str]:
    """Return the parts of a diffusers checkpoint that the prefixes of keys name."""
    return {entry.part for key in keys if (entry := entry_of(key)) is not None and entry.part}


def alpha_of(config: Mapping[str, object], module: str, rank: int) -> float:
    """Return alpha over rank of a module, from the configuration of PEFT beside a LoRA.

    Args:
        config: Entries ``r``, ``lora_alpha``, ``rank_pattern``, ``alpha_pattern`` and ``use_rslora``; without
            them alpha is the rank.
        module: Name of the module, without prefixes.
        rank: Rank of the module's factors.
    """
    alpha = config.get("lora_alpha", rank)
    patterns = config.get("alpha_pattern")
    for pattern, value in (patterns if isinstance(patterns, Mapping) else {}).items():
        # PEFT matches a pattern with the end of the module's path.
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            alpha = value
            break
    divisor = rank**0.5 if config.get("use_rslora") else rank
    return float(alpha) / divisor  # type: ignore[arg-type]
