"""LoRA files beside a checkpoint's weights, which an export must merge or decline, but never overlooks."""

from __future__ import annotations

from pathlib import Path

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.hub import is_weights
from slipway_export.checkpoint.layouts.weight_files import origin
from slipway_export.checkpoint.lora.keys import is_lora
from slipway_export.checkpoint.lora.requests import NONE, RequestedAdditions
from slipway_export.spec import Family
from slipway_serving.protocol.errors import InvalidRequest

_SHOWN = 3
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def check_beside(family: Family, checkpoint: Checkpoint, requested: RequestedAdditions) -> None:
    """Refuse a checkpoint with LoRA files that the user neither named nor declined.

    Args:
        family: Family of the checkpoint.
        checkpoint: Checkpoint; its folder and those of the parts that take a LoRA are searched.
        requested: LoRAs that the user named.

    Raises:
        InvalidRequest: There is such a file; the message names it and the two ways to go on.
    """
    parts = [part for part in family.parts if part.lora is not None]
    if requested.ignores_others or not parts:
        return
    merged = {lora.path.resolve() for lora in checkpoint.additions.loras}
    found = [
        (file, component)
        for path, (file, component) in _beside(family, checkpoint).items()
        if path.resolve() not in merged
    ]
    if found:
        file, component = found[0]
        names = ", ".join(file for file, _ in found[:_SHOWN])
        rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        several = len([part for part in parts if checkpoint.has(part.name)]) > 1
        name = f"{component or parts[0].lora}=" if component or several else ""
        raise InvalidRequest(
            f"checkpoint {checkpoint.source}: LoRA files beside the weights must be named or declined, got"
            f" {names}{rest}; try --lora {name}{file} to merge one, or --lora {NONE} to export without them"
        )


def _beside(family: Family, checkpoint: Checkpoint) -> dict[Path, tuple[str, str]]:
    """Return the LoRA files beside a checkpoint's weights, each with its name for the user and its component.

    Those that are only in the hub are told by their names.
    """
    folders: dict[Path, str] = {checkpoint.folder: ""}
    remote = [(checkpoint.hub, "", "")]
    for part in family.parts:
        location = checkpoint.part_locations.get(part.name)
        folder = checkpoint.folder / part.name if location is None else location.path
        if part.lora is not None:
            folders[folder] = part.lora
            remote.append((*checkpoint.in_hub(part.name), part.lora))
        # The files of a folder in another layout are elsewhere.
        if location is None and (original := origin(folder)) != folder:
            folders.setdefault(original, part.lora or "")
    found = {
        path: (str(path), component) for folder, component in folders.items() for path in _loras_in(folder)
    }
    for hub, inner, component in remote:
        for name in sorted(hub.names_in(inner)) if hub is not None else ():
            path = Path(inner, name)
            if hub is not None and is_weights(name) and _is_named(name):
                found.setdefault(hub.path / path, (hub.place(path.as_posix()), component))
    return found


def _loras_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if path.is_file() and _is_lora(path)]


def _is_named(name: str) -> bool:
    return "lora" in name.lower() or name.startswith("adapter_model.")


def _is_lora(path: Path) -> bool:
    named = _is_named(path.name)
    if path.suffix in _PICKLES:
        return named
    if path.suffix != ".safetensors":
        return False
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return is_lora(file.keys())
    except (SafetensorError, OSError):
        return named  # A broken file of weights is refused where it is read.
