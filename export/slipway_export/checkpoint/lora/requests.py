"""LoRAs as the user asks for them, ``--lora [COMPONENT=]FILE|HUB_ID[:SCALE]``, and their files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.lora.adapters import Lora
from slipway_export.checkpoint.lora.hub_loras import CONFIG_FILE, PEFT_FILE, lora_in_hub
from slipway_export.checkpoint.lora.keys import is_lora, kinds_refused, parts_of
from slipway_export.spec.schedule_defaults import ScheduleDefaults
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_export.spec.family import Family
    from slipway_export.spec.layout import Part

NONE = "none"
"""Value of ``--lora`` that declines the LoRA files beside the weights."""
_NAMED = re.compile(r"^([A-Za-z][\w-]*)=(.+)$", re.DOTALL)
_SCALED = re.compile(r"^(.+):([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)$", re.DOTALL)
_HUB_FILE = re.compile(r"^([A-Za-z0-9][\w.-]*/[\w.-]+)(?:/(.+))?$")
_FORM = "[COMPONENT=]FILE|HUB_ID[:SCALE]"
_USUAL_NAMES = ("pytorch_lora_weights.safetensors", PEFT_FILE)
_METADATA = "lora_adapter_metadata"
_SHOWN = 5


@dataclass(frozen=True)
class LoraRequest:
    """One ``--lora``.

    Args:
        source: Local file or folder, hub id, or file in a hub repository.
        component: Name of a component or of a part; "" if the user named none.
        scale: Factor of its changes.
    """

    source: str
    component: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class RequestedAdditions:
    """What the user adds to a checkpoint.

    Args:
        loras: LoRAs to merge into its weights.
        schedule: Defaults of the served model's schedule.
        ignores_others: True if the user declined the LoRA files beside the weights.
    """

    loras: tuple[LoraRequest, ...] = ()
    schedule: ScheduleDefaults = field(default_factory=ScheduleDefaults)
    ignores_others: bool = False


NO_ADDITIONS = RequestedAdditions()


def parse_loras(texts: Sequence[str]) -> tuple[LoraRequest, ...]:
    """Parse the values of ``--lora``; :data:`NONE` is left out.

    Raises:
        InvalidRequest: A text is not of the form.
    """
    return tuple(_parse(text) for text in texts if text != NONE)


def _parse(text: str) -> LoraRequest:
    component, source, scale = "", text, 1.0
    if not Path(text).exists() and (named := _NAMED.match(text)):
        component, source = named[1].replace("-", "_"), named[2]
    if not Path(source).exists() and (scaled := _SCALED.match(source)):
        source, scale = scaled[1], float(scaled[2])
    if not source or source == NONE or not math.isfinite(scale):
        raise InvalidRequest(f"lora must be {_FORM}, got {text!r}; try --lora FILE:0.8")
    return LoraRequest(source, component, scale)


def recorded_additions(checkpoint: Mapping[str, Any]) -> RequestedAdditions:
    """Return the LoRAs that a manifest's entry ``checkpoint`` names."""
    loras = checkpoint.get("loras", ())
    return RequestedAdditions(
        tuple(LoraRequest(lora["source"], lora["component"], float(lora["scale"])) for lora in loras)
    )


def find_loras(
    family: Family, parts: Sequence[str], requests: Sequence[LoraRequest], headers: Path | None = None
) -> tuple[Lora, ...]:
    """Return the LoRAs that a user asks for, after finding or downloading their files.

    Args:
        family: Family of the checkpoint.
        parts: Names of the parts that the checkpoint has.
        requests: LoRAs as the user named them.
        headers: Folder for files with the headers alone of LoRAs in a hub; None to download these.

    Raises:
        InvalidRequest: The family or the checkpoint has no such component, a file is missing or no LoRA, or
            nothing tells which of several components a LoRA is for.
    """
    able = [part for part in family.parts if part.lora is not None and part.name in parts]
    if requests and not able:
        raise InvalidRequest(
            f"lora must be left out for {family.name}, whose checkpoint has no component that takes one, got"
            f" {requests[0].source}"
        )
    return tuple(lora for request in requests for lora in _find(able, request, headers))


def _find(able: Sequence[Part], request: LoraRequest, headers: Path | None) -> list[Lora]:
    named = [part for part in able if request.component in (part.name, part.lora)]
    if request.component and not named:
        components = ", ".join(str(part.lora) for part in able)
        raise InvalidRequest(f"lora: component must be one of {components}, got {request.component}")
    path, commit = _locate(request.source, headers)
    keys, metadata = _header(path, request.source)
    prefixes = parts_of(keys)
    chosen = named or [part for part in able if len(able) == 1 or part.name in prefixes - {"transformer"}]
    if not named and len(prefixes) > 1:
        chosen = [part for part in able if part.name in prefixes]
    if not chosen:
        tries = " or ".join(f"--lora {part.lora}={request.source}" for part in able)
        raise InvalidRequest(
            f"lora {request.source}: component must be named, since this checkpoint has several that take a"
            f" LoRA, got none; try {tries}, or both"
        )
    config = _config(path, metadata)
    return [
        Lora(
            part.name,
            str(part.lora),
            request.source,
            path,
            request.scale,
            part.name if len(prefixes) > 1 else "",
            _of_part(config, part.name),
            commit,
        )
        for part in chosen
    ]


def _locate(source: str, headers: Path | None) -> tuple[Path, str | None]:
    """Return the location of a LoRA's file, and the commit of a hub snapshot."""
    path = Path(source)
    if path.is_dir():
        return path / _choose(source, sorted(file.name for file in path.iterdir())), None
    if path.exists():
        return path, None
    found = _HUB_FILE.match(source)
    if path.is_absolute() or found is None or (not found[2] and source.endswith(".safetensors")):
        raise InvalidRequest(f"lora must be an existing file or a hub id, got {source!r}")
    return lora_in_hub(source, found[1], found[2], partial(_choose, source), headers)


def _choose(source: str, names: Sequence[str]) -> str:
    """Return the one LoRA file of a folder or repository."""
    usual = [name for name in _USUAL_NAMES if name in names]
    found = usual[:1] or [name for name in names if name.endswith(".safetensors")]
    if len(found) != 1:
        shown = ", ".join(found[:_SHOWN]) + (" and more" if len(found) > _SHOWN else "") or "none"
        raise InvalidRequest(
            f"lora {source} must contain one file of safetensors, got {shown}; try --lora {source}/FILE"
        )
    return found[0]


def _header(path: Path, source: str) -> tuple[list[str], dict[str, str]]:
    """Return the keys and the metadata of a LoRA's file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            keys, metadata = list(file.keys()), dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InvalidRequest(f"lora {source} must be a complete safetensors file, got {error}") from None
    if not is_lora(keys):
        shown = ", ".join(keys[:_SHOWN]) or "none"
        raise InvalidRequest(
            f"lora {source} must have the keys of a LoRA (lora_A and lora_B, or lora_down and lora_up), got"
            f" {shown}"
        )
    if kinds := kinds_refused(keys):
        raise InvalidRequest(
            f"lora {source} must be a LoRA, got {', '.join(kinds)}, which is not supported; try a file of its"
            " weights already merged, as --part"
        )
    return keys, metadata


def _config(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of PEFT in a file's metadata, or beside the file."""
    beside = path.parent / CONFIG_FILE
    text = metadata.get(_METADATA)
    if text is None and path.name == PEFT_FILE and beside.is_file():
        text = beside.read_text(encoding="utf-8")
    if text is None:
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"lora {path}: its configuration must be JSON, got {error}") from None
    if not isinstance(config, dict):
        raise InvalidRequest(f"lora {path}: its configuration must be a JSON object, got {config!r:.80}")
    return config


def _of_part(config: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the entries of a part; diffusers writes them with the part's name in front."""
    for prefix in (f"{part}.", "transformer."):
        found = {key.removeprefix(prefix): v for key, v in config.items() if key.startswith(prefix)}
        if found:
            return found
    return dict(config)
