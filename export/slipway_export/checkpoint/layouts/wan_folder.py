"""Wan's original layout of a whole checkpoint, presented as a folder in diffusers' layout.

| original | diffusers |
|---|---|
| `high_noise_model/`, `low_noise_model/`, or the folder itself | `transformer/`, `transformer_2/` |
| `models_t5_umt5-xxl-enc-bf16.pth` | `text_encoder/` |
| `Wan2.1_VAE.pth`, `Wan2.2_VAE.pth` | `vae/` |
| `google/umt5-xxl/` | `tokenizer/` |

The scheduler and the boundary between the experts are in the authors' code: `wan/configs/` and `generate.py`
of Wan-Video/Wan2.1 and Wan-Video/Wan2.2.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.layouts.part_files import link_part, shards_of, write_config
from slipway_serving.protocol.errors import InvalidRequest

_T5, _TOKENIZER = "models_t5_umt5-xxl-enc-bf16.pth", "google/umt5-xxl"
_VAE, _VAE_2_2 = "Wan2.1_VAE.pth", "Wan2.2_VAE.pth"
_HIGH, _LOW = "high_noise_model", "low_noise_model"
_STEM = "diffusion_pytorch_model"


@dataclass(frozen=True)
class _Model:
    """A public model in the original layout.

    Args:
        name: Name of the model.
        shift: Flow shift of the authors' scheduler.
        boundary: Part of the noise levels at which the low-noise expert takes over; None for one expert.
        vae: File of the VAE.
        pipeline: Class of diffusers' pipeline.
        expand_timesteps: True if each token has a timestep of its own.
    """

    name: str
    shift: float
    boundary: float | None = None
    vae: str = _VAE
    pipeline: str = "WanPipeline"
    expand_timesteps: bool = False


# Models by their type and whether they have two experts. The numbers are `sample_shift` and `boundary` in
# wan/configs/ of Wan-Video/Wan2.2; for Wan2.1 in its generate.py.
_READ = {
    ("t2v", True): _Model("Wan2.2-T2V-A14B", 12.0, 0.875),
    ("t2v", False): _Model("Wan2.1-T2V", 5.0),
    ("i2v", True): _Model("Wan2.2-I2V-A14B", 5.0, 0.9, pipeline="WanImageToVideoPipeline"),
    ("ti2v", False): _Model("Wan2.2-TI2V-5B", 5.0, vae=_VAE_2_2, expand_timesteps=True),
}
# Checkpoints in diffusers' layout of models that are not read in the original one, by type.
_IN_DIFFUSERS = {
    "i2v": "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
    "flf2v": "Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers",
}


def is_original(folder: Path) -> bool:
    """Return whether a folder is in Wan's original layout."""
    return not (folder / "model_index.json").exists() and _model_type(folder) is not None


def files_of_original(files: Collection[str]) -> list[str]:
    """Return those files of a repository in Wan's original layout that are read; none for other layouts.

    Args:
        files: Paths of the repository's files.
    """
    experts = {_HIGH, _LOW} if f"{_HIGH}/config.json" in files else {""}
    if "model_index.json" in files or not {_T5, posixpath.join(min(experts), "config.json")} <= set(files):
        return []
    single = (_T5, _VAE, _VAE_2_2)
    found = [file for file in files if file in single or file.startswith(f"{_TOKENIZER}/")]
    for file in files:
        folder, name = posixpath.split(file)
        is_shard = name.startswith(_STEM) and name.endswith(".safetensors")
        if folder in experts and (name == "config.json" or is_shard):
            found.append(file)
    return found


def is_config(file: str) -> bool:
    """Return whether a file of the layout describes a transformer."""
    return posixpath.basename(file) == "config.json"


def check_type(folder: Path, source: str) -> None:
    """Refuse a model that is not read in its original layout.

    Args:
        folder: Folder in the original layout; the configurations of its transformers suffice.
        source: Name of the checkpoint in messages.

    Raises:
        InvalidRequest: The model is none of those that are read. The message names a checkpoint that is.
    """
    if _kind(folder) not in _READ:
        model_type = _kind(folder)[0]
        other = _IN_DIFFUSERS.get(model_type)
        way = f"; try --checkpoint {other}" if other else ""
        read = ", ".join(model.name for model in _READ.values())
        raise InvalidRequest(
            f"checkpoint {source} must be in diffusers' layout, got Wan's original layout of a model of"
            f" type {model_type}, which is read for {read} only{way}"
        )


def present(folder: Path, presented: Path) -> None:
    """Present a checkpoint in Wan's original layout as one in diffusers' layout.

    Args:
        folder: Folder in the original layout.
        presented: Empty folder that gets links and configurations.

    Raises:
        InvalidRequest: The model is not read in this layout, or files are missing. The message names the
            model and what to do.
    """
    check_type(folder, str(folder))
    model = _READ[_kind(folder)]
    experts = {"transformer": folder}
    if model.boundary is not None:
        experts = {"transformer": folder / _HIGH, "transformer_2": folder / _LOW}
    required = [folder / _T5, folder / model.vae, folder / _TOKENIZER]
    required += [expert / "config.json" for expert in experts.values()]
    if missing := [path.relative_to(folder).as_posix() for path in required if not path.exists()]:
        raise InvalidRequest(
            f"checkpoint {folder}: this is Wan's original layout of {model.name}: {', '.join(missing)} must"
            " exist; try to download what is missing into it"
        )
    parts = {part: _weights(expert) for part, expert in experts.items()}
    parts |= {"text_encoder": [folder / _T5], "vae": [folder / model.vae]}
    for part, files in parts.items():
        link_part(presented / part, part, files)
        write_config(presented / part, part, folder)
    (presented / "tokenizer").symlink_to(folder / _TOKENIZER)
    _write(presented / "scheduler/scheduler_config.json", _scheduler(model.shift))
    _write(presented / "model_index.json", _index(model))


def _kind(folder: Path) -> tuple[str, bool]:
    """Return the type of a model, and whether it has two experts."""
    return str(_model_type(folder)), (folder / _HIGH).is_dir()


def _model_type(folder: Path) -> str | None:
    """Return the type that the authors' configuration of a transformer states; None for any other folder."""
    for place in (folder / _HIGH, folder):
        try:
            config = json.loads((place / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict) and "model_type" in config and "dim" in config:
            return str(config["model_type"])
    return None


def _weights(expert: Path) -> list[Path]:
    """Return the weight file of an expert, or all its shards."""
    files = sorted(expert.glob(f"{_STEM}*.safetensors"))
    if not files:
        raise InvalidRequest(f"checkpoint {expert} must contain {_STEM}*.safetensors, got none")
    return shards_of(files[0])


def _scheduler(shift: float) -> dict[str, Any]:
    return {
        "_class_name": "UniPCMultistepScheduler",
        "prediction_type": "flow_prediction",
        "use_flow_sigmas": True,
        "num_train_timesteps": 1000,
        "flow_shift": shift,
    }


def _index(model: _Model) -> dict[str, Any]:
    transformer = ["diffusers", "WanTransformer3DModel"]
    return {
        "_class_name": model.pipeline,
        "boundary_ratio": model.boundary,
        "expand_timesteps": model.expand_timesteps,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": transformer,
        "transformer_2": [None, None] if model.boundary is None else transformer,
        "vae": ["diffusers", "AutoencoderKLWan"],
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
