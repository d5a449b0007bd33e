"""Upstream's inference YAML: the mode, its denoising steps, and the size of the latents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES, PATCH
from slipway_serving.protocol.errors import InvalidRequest, raise_all

# Settings whose other values would mean another way to denoise; no public file has other values.
_FIXED: Mapping[str, Any] = {
    "warp_denoising_step": True,
    "ts_schedule": False,
    "num_frame_per_block": BLOCK_FRAMES,
    "context_noise": 0,
    "causal": True,
}
# Settings of an upstream run, which do not affect the network.
_WITHOUT_EFFECT = frozenset({"mixed_precision", "seed"})


@dataclass(frozen=True)
class Mode:
    """Inputs and weights of one of upstream's modes.

    Args:
        keyboard: Number of keyboard values per frame.
        mouse: True if there is a mouse.
        weights: Path of the network's file in `Skywork/Matrix-Game-2.0`.
    """

    keyboard: int
    mouse: bool
    weights: str

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the action inputs."""
        return ("mouse_cond", "keyboard_cond") if self.mouse else ("keyboard_cond",)


MODES: Mapping[str, Mode] = {
    "universal": Mode(4, True, "base_distilled_model/base_distill.safetensors"),
    "gta_drive": Mode(2, True, "gta_distilled_model/gta_keyboard2dim.safetensors"),
    "templerun": Mode(7, False, "templerun_distilled_model/templerun_7dim_onlykey.safetensors"),
}
"""Modes by name."""


@dataclass(frozen=True)
class Inference:
    """Content of an inference YAML.

    Args:
        mode: Name from `MODES`.
        denoising_step_list: Timesteps before they are warped, descending, 1 to 1000.
        timestep_shift: Shift of the noise schedule.
        model_config: Folder of the network's `config.json` in the checkpoint.
        latent_channels: Number of channels of the latents.
        latent_height: Height of the latents in latent pixels, even.
        latent_width: Width of the latents in latent pixels, even.
    """

    mode: str
    denoising_step_list: tuple[int, ...]
    timestep_shift: float
    model_config: str
    latent_channels: int
    latent_height: int
    latent_width: int


def inference_file(mode: str) -> str:
    """Return upstream's path of a mode's YAML."""
    return f"configs/inference_yaml/inference_{mode}.yaml"


def read_inference(path: Path, where: str) -> Inference:
    """Read an inference YAML.

    Args:
        path: Path of the file.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is missing or no YAML, or an entry is unknown, missing or has an invalid
            value; the message names all such entries.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidRequest(f"{where} must exist, got no such file") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{where} must be YAML, got {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"{where} must hold a mapping, got {type(content).__name__}")
    steps, shape = content.pop("denoising_step_list", None), content.pop("image_or_video_shape", None)
    mode, options = content.pop("mode", None), content.pop("model_kwargs", None)
    options = options if isinstance(options, dict) else {}
    shift, folder = options.get("timestep_shift"), options.get("model_config")
    rules = (
        (isinstance(mode, str) and mode in MODES, f"mode must be one of {', '.join(MODES)}, got {mode!r}"),
        (
            _are_steps(steps),
            f"denoising_step_list must descend from 1000 at most to 1 at least, got {steps!r}",
        ),
        (
            _is_shape(shape),
            f"image_or_video_shape must be [batch, channels, frames, height, width] of sides that {PATCH}"
            f" divides, got {shape!r}",
        ),
        (
            isinstance(shift, int | float) and not isinstance(shift, bool) and 0 < shift < math.inf,
            f"model_kwargs.timestep_shift must be a finite number above 0, got {shift!r}",
        ),
        (
            isinstance(folder, str) and not Path(folder).is_absolute() and ".." not in Path(folder).parts,
            f"model_kwargs.model_config must be a folder within the checkpoint, got {folder!r}",
        ),
    )
    problems = [text for fits, text in rules if not fits]
    problems += [
        f"{key} must be {_FIXED[key]!r}, got {value!r}"
        for key, value in content.items()
        if key in _FIXED and value != _FIXED[key]
    ]
    unknown = [key for key in content if key not in _FIXED and key not in _WITHOUT_EFFECT]
    unknown += [f"model_kwargs.{key}" for key in options if key not in ("timestep_shift", "model_config")]
    problems += [f"{key} must be left out, got an entry that is not known here" for key in unknown]
    raise_all(where, problems)
    _, channels, _, height, width = shape
    return Inference(mode, tuple(steps), float(shift or 0), str(folder), channels, height, width)


def _are_steps(steps: object) -> bool:
    return (
        isinstance(steps, list)
        and bool(steps)
        and all(type(step) is int and 1 <= step <= 1000 for step in steps)
        and sorted(set(steps), reverse=True) == steps
    )


def _is_shape(shape: object) -> bool:
    whole = isinstance(shape, list) and len(shape) == 5 and all(isinstance(n, int) and n >= 1 for n in shape)
    return whole and not any(side % PATCH for side in shape[3:])  # type: ignore[index]
