"""Settings from upstream's `config.json` on which the network depends, checked key by key.

The public files omit the settings that are the same in all of them (patch, norms). A file may contain these
keys only with the values that upstream's network uses by default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway_serving.protocol.errors import InvalidRequest, raise_all

BLOCK_FRAMES = 3
"""Latent frames that are denoised together and attend to each other (`num_frame_per_block`)."""
PATCH = 2
"""Latent pixels per token, along height and width."""
POSITIONS = 1024
"""Number of latent frames with a position: upstream's table, and thus a world, ends there."""
CLIP_DIM = 1280
"""Width of the image encoder's features (CLIP ViT-H/14)."""
CLIP_TOKENS = 257
"""Number of the image encoder's features: one of the class token, and those of 16 x 16 patches."""

# Settings whose other values would mean another network; no public checkpoint has other values.
_FIXED: Mapping[str, Any] = {
    "_class_name": "CausalWanModel",
    "model_type": "i2v",
    "patch_size": [1, PATCH, PATCH],
    "qk_norm": True,
    "cross_attn_norm": True,
    "sink_size": 0,
    "inject_sample_info": False,
}
_ACTION_FIXED: Mapping[str, Any] = {
    "enable_keyboard": True,
    "patch_size": [1, PATCH, PATCH],
    "qk_norm": True,
    "qkv_bias": False,
}
# Settings of the text path, which this network lacks, and the version of the library that wrote the file.
_WITHOUT_EFFECT = frozenset({"_diffusers_version", "text_len", "text_dim"})


@dataclass(frozen=True)
class ActionConfig:
    """Sizes of the action module, under upstream's names.

    Args:
        blocks: Indices of the network's blocks that have an action module.
        enable_mouse: True if there is a mouse besides the keyboard.
        keyboard_dim_in: Number of keyboard values per frame.
        mouse_dim_in: Number of mouse values per frame.
        hidden_size: Width of a frame's embedded keyboard input.
        keyboard_hidden_dim: Width of the keyboard's attention.
        mouse_hidden_dim: Width of the mouse's attention.
        img_hidden_size: Width of the network.
        heads_num: Number of heads of either attention.
        rope_dim_list: Channels of a head that rotate with time, height and width; the grid has one place, so
            only those of time rotate.
        mouse_qk_dim_list: Copy of `rope_dim_list`.
        rope_theta: Base of the frequencies.
        vae_time_compression_ratio: Video frames per latent frame.
        windows_size: Number of latent frames whose actions a frame receives.
    """

    blocks: tuple[int, ...]
    keyboard_dim_in: int
    enable_mouse: bool = True
    mouse_dim_in: int = 2
    hidden_size: int = 128
    keyboard_hidden_dim: int = 1024
    mouse_hidden_dim: int = 1024
    img_hidden_size: int = 1536
    heads_num: int = 16
    rope_dim_list: tuple[int, ...] = (8, 28, 28)
    mouse_qk_dim_list: tuple[int, ...] = (8, 28, 28)
    rope_theta: float = 256
    vae_time_compression_ratio: int = 4
    windows_size: int = 3

    @property
    def window_rows(self) -> int:
        """Number of rows of actions that a latent frame receives."""
        return self.windows_size * self.vae_time_compression_ratio

    def rows(self, frames: int) -> int:
        """Return the number of rows of actions that `frames` latent frames receive together."""
        return self.window_rows + self.vae_time_compression_ratio * (frames - 1)


@dataclass(frozen=True)
class Config:
    """Sizes of the network, under upstream's names.

    Args:
        action: Sizes of the action module (`action_config`).
        dim: Width of the residual stream.
        ffn_dim: Width of the feed-forward.
        freq_dim: Width of the timestep's sinusoids.
        in_dim: Channels of the latents plus those of `cond_concat`.
        out_dim: Channels of the latents.
        num_heads: Number of attention heads.
        num_layers: Number of blocks.
        local_attn_size: Number of latent frames that a block of frames attends to, its own included; -1 for
            all earlier frames.
        eps: Epsilon of the norms.
    """

    action: ActionConfig
    dim: int = 1536
    ffn_dim: int = 8960
    freq_dim: int = 256
    in_dim: int = 36
    out_dim: int = 16
    num_heads: int = 12
    num_layers: int = 30
    local_attn_size: int = -1
    eps: float = 1e-6

    @property
    def cond_dim(self) -> int:
        """Number of channels of `cond_concat`: a mask, and the first picture's latents."""
        return self.in_dim - self.out_dim

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.dim // self.num_heads

    @property
    def held_frames(self) -> int:
        """Number of latent frames before a block of frames to which the block attends.

        Raises:
            InvalidRequest: A block attends to all earlier frames, or to none.
        """
        if self.local_attn_size <= BLOCK_FRAMES:
            raise InvalidRequest(
                f"config: local_attn_size must be above {BLOCK_FRAMES} for a window of keys and values, got"
                f" {self.local_attn_size}; try the full-sequence network"
            )
        return self.local_attn_size - BLOCK_FRAMES


def read_config(content: Mapping[str, Any], where: str) -> Config:
    """Read the content of a `config.json`.

    Args:
        content: Content of the parsed file.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: A key is unknown or missing, or no such network has its value; the message names all
            such keys.
    """
    settings = dict(content)
    action = settings.pop("action_config", None)
    if not isinstance(action, Mapping):
        raise InvalidRequest(f"{where}: action_config must be an object, got {action!r}")
    problems = [
        *_key_problems(Config, settings, _FIXED, ""),
        *_key_problems(ActionConfig, action, _ACTION_FIXED),
    ]
    raise_all(where, problems)
    config = Config(action=ActionConfig(**_of(ActionConfig, action)), **_of(Config, settings))
    raise_all(where, _size_problems(config))
    return config


def _key_problems(
    kind: type[Any], settings: Mapping[str, Any], fixed: Mapping[str, Any], prefix: str = "action_config."
) -> list[str]:
    """Return the problems with the keys of a configuration."""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name != "action"}
    problems = []
    for key, value in settings.items():
        if key in fixed:
            if value != fixed[key]:
                problems.append(f"{prefix}{key} must be {fixed[key]!r}, got {value!r}")
        elif key in fields:
            problems += [f"{prefix}{key} must be {rule}, got {value!r}" for rule in _broken(key, value)]
        elif prefix or key not in _WITHOUT_EFFECT:
            problems.append(f"{prefix}{key} must be left out, got {value!r}, which is not known here")
    return problems + [
        f"{prefix}{name} must be given, got none"
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in settings
    ]


def _broken(key: str, value: object) -> list[str]:
    """Return the rule of a key that a value breaks; empty if it breaks none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if key == "enable_mouse":
        fits, rule = isinstance(value, bool), "true or false"
    elif key == "blocks" or key.endswith("_list"):
        fits = isinstance(value, list) and all(isinstance(each, int) and each >= 0 for each in value)
        rule = "a list of whole numbers from 0"
    elif key == "local_attn_size":
        fits, rule = whole and (value == -1 or value >= BLOCK_FRAMES), f"-1, or {BLOCK_FRAMES} or more"  # type: ignore[operator]
    elif key in ("eps", "rope_theta"):
        fits, rule = number and 0 < value < math.inf, "a finite number above 0"  # type: ignore[operator]
    else:
        fits, rule = whole and value >= 1, "a whole number from 1"  # type: ignore[operator]
    return [] if fits else [rule]


def _size_problems(config: Config) -> list[str]:
    """Return the problems with the sizes of a configuration."""
    action = config.action
    rules = (
        (
            config.dim % (2 * config.num_heads) == 0,
            f"dim must be a multiple of {2 * config.num_heads}",
            config.dim,
        ),
        (config.freq_dim % 2 == 0, "freq_dim must be even", config.freq_dim),
        (config.in_dim > config.out_dim, f"in_dim must be above out_dim {config.out_dim}", config.in_dim),
        (
            all(block < config.num_layers for block in action.blocks),
            f"action_config.blocks must be below num_layers {config.num_layers}",
            list(action.blocks),
        ),
        (
            action.img_hidden_size == config.dim,
            f"action_config.img_hidden_size must be dim {config.dim}",
            action.img_hidden_size,
        ),
        (
            action.mouse_qk_dim_list == action.rope_dim_list,
            f"action_config.mouse_qk_dim_list must be rope_dim_list {list(action.rope_dim_list)}",
            list(action.mouse_qk_dim_list),
        ),
        *(
            (
                width == action.heads_num * sum(action.rope_dim_list),
                f"action_config.{name} must be heads_num times the sum of rope_dim_list,"
                f" {action.heads_num * sum(action.rope_dim_list)}",
                width,
            )
            for name, width in (
                ("keyboard_hidden_dim", action.keyboard_hidden_dim),
                ("mouse_hidden_dim", action.mouse_hidden_dim if action.enable_mouse else None),
            )
            if width is not None
        ),
    )
    return [f"{rule}, got {value}" for fits, rule, value in rules if not fits]


def _of(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    lists = {key: tuple(value) for key, value in settings.items() if isinstance(value, list)}
    return {key: lists.get(key, value) for key, value in settings.items() if key in names}
