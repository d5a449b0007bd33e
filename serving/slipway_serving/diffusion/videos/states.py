"""States of videos: who made them, what they contain, and whether a request may continue from one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol import images
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.requests import decode
from slipway_serving.protocol.snapshots.denoising_states import FIELD, DenoisingState, Origin, read_state
from slipway_serving.protocol.snapshots.parts import MANIFEST
from slipway_serving.protocol.texts import short

R = TypeVar("R", bound=DenoisingRequest)

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")


def read_origin(folder: Path, version: str = "1") -> Origin | None:
    """Read which models a pipeline's states come from, from the manifests of its family in the repository.

    Args:
        folder: Folder of the pipeline.
        version: Model version whose files count.

    Returns:
        The models, or None if the pipeline was not placed by an export, so that nothing tells which they are.
    """
    own = _manifest(folder / MANIFEST)
    if own is None:
        return None
    manifests = {folder.name: own}
    for path in sorted(folder.parent.glob(f"*/{MANIFEST}")):
        manifest = _manifest(path)
        if manifest is not None and manifest["family"] == own["family"]:
            manifests[path.parent.name] = manifest
    files = {
        f"{model}/{name}": digest
        for model, manifest in manifests.items()
        for name, digest in manifest["files"].items()
        if name.startswith(f"{version}/") and not name.endswith(".py")
    }
    weights = {
        name: digest
        for manifest in manifests.values()
        for made in manifest.get("made", {}).values()
        for name, digest in made["read"].items()
        if name.endswith(_WEIGHTS)
    }
    engines = {
        model: f"{manifest['engine']} {_precision(manifest.get('precision'))}"
        for model, manifest in sorted(manifests.items())
        if "engine" in manifest
    }
    return Origin(_digest(weights), _digest(files), engines)


def request_values(request: DenoisingRequest) -> dict[str, Any]:
    """Return the values of a request's fields for a state; pictures and files become uint8 arrays."""
    values = {field.name: getattr(request, field.name) for field in fields_of(type(request))}
    return {
        name: np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
        for name, value in values.items()
        if name not in (FIELD, "steps_seen")
    }


def continued_request(
    kind: type[R],
    tensors: Mapping[str, NDArray[Any]],
    where: str,
    defaults: Mapping[str, int | float] = MappingProxyType({}),
) -> tuple[R, DenoisingState | None]:
    """Decode a request, and the state from which it continues.

    Fields that are left out beside a state are those of the stopped request, except for the stop itself.

    Args:
        kind: Class of the request.
        tensors: Arrays by field name.
        where: Name of the pipeline, for messages.
        defaults: Values of fields that are left out without a state, where the request's own do not hold.

    Raises:
        InvalidRequest: A field or the state is invalid, or a field differs that must not change.
    """
    if FIELD not in tensors:
        own = {
            field.name: field.encode(defaults[field.name])
            for field in fields_of(kind)
            if field.name in defaults
        }
        return decode(kind, {**own, **tensors}, where), None
    field = next(field for field in fields_of(kind) if field.name == FIELD)
    raw, problem = field.decode(tensors[FIELD])
    raise_all(where, [problem or field.problem(raw)] if problem or field.problem(raw) else [])
    state = read_state(images.decode_if_base64(raw), where)
    if state.model != kind.model:
        raise InvalidRequest(
            f"{where}: {FIELD} must be the state of a video of {kind.model}, got one of {short(state.model)}"
        )
    filled = _filled(kind, tensors, state)
    request = decode(kind, filled, where)
    _check_unchanged(request, decode(kind, _stored(kind, state), where), where)
    return request, state


def check_origin(state: DenoisingState, origin: Origin, where: str) -> bool:
    """Check that the models of a server may continue from a state.

    Returns:
        True if they are the models that made it; False if another engine serves the same weights.

    Raises:
        InvalidRequest: They have other weights, another precision, or other files in the same engine.
    """
    made = state.origin
    if made.checkpoint != origin.checkpoint:
        raise InvalidRequest(
            f"{where}: {FIELD} must be of this server's checkpoint (weights {origin.checkpoint[:12]}), got"
            f" {short(made.checkpoint[:12])}; try a server with the checkpoint that made it"
        )
    if dict(made.engines) == dict(origin.engines):
        if made.files != origin.files:
            raise InvalidRequest(
                f"{where}: {FIELD} must be of this server's export (digest {origin.files[:12]}), got"
                f" {short(made.files[:12])}; try a server of the same export"
            )
        return True
    for model, described in origin.engines.items():
        before = made.engines.get(model, described)
        if before.partition(" ")[2] != described.partition(" ")[2]:
            raise InvalidRequest(
                f"{where}: {FIELD} must be made with the precision of {model},"
                f" {described.partition(' ')[2]}, got {short(before.partition(' ')[2])}; try a server of that"
                " precision"
            )
    return False


def engines_text(origin: Origin) -> str:
    """Return the engines of models in words."""
    return ", ".join(f"{model} {described}" for model, described in origin.engines.items())


def _filled(
    kind: type[R], tensors: Mapping[str, NDArray[Any]], state: DenoisingState
) -> dict[str, NDArray[Any]]:
    """Return the tensors of a request, with those that were left out from its state."""
    once = {
        "stop_after_step",
        "draft",
        "priority",
        "checkpoint_every_steps",
        "timeout_s",
        "preview",
        "output",
    }
    stored = {name: array for name, array in _stored(kind, state).items() if name not in once}
    return {**stored, **tensors}


def _stored(kind: type[R], state: DenoisingState) -> dict[str, NDArray[Any]]:
    """Return the tensors of the request in a state; invalid values are refused when they are decoded."""
    found = {}
    for field in fields_of(kind):
        value = state.request.get(field.name)
        if value is None:
            continue
        if isinstance(value, np.ndarray) and field.datatype == "BYTES":
            value = value.tobytes()
        try:
            found[field.name] = field.encode(value)
        except (TypeError, ValueError, OverflowError, AttributeError):
            raise InvalidRequest(
                f"{kind.model}: {FIELD} must have a valid {field.name}, got {short(value)}"
            ) from None
    return found


def _check_unchanged(request: R, stopped: R, where: str) -> None:
    """Refuse a request in which a field differs from the stopped one that must not change."""
    may_change = request.changeable | request.conditions
    problems = []
    for field in fields_of(type(request)):
        before, now = getattr(stopped, field.name), getattr(request, field.name)
        if field.name not in may_change and not _equal(before, now):
            fixes = "leaving it out, or a new video"
            problems.append(
                f"{field.name} must be that of the stopped video, {_shown(before)}, got {_shown(now)};"
                f" try {fixes}"
            )
    raise_all(where, problems)


def changed_conditions(request: DenoisingRequest, state: DenoisingState) -> list[str]:
    """Return the names of the conditions (prompt, guidance) that differ from those of the stopped video."""
    return [name for name in sorted(request.conditions) if getattr(request, name) != state.request.get(name)]


def _equal(before: Any, now: Any) -> bool:
    if isinstance(before, np.ndarray) or isinstance(now, np.ndarray):
        return bool(type(before) is type(now) and np.array_equal(before, now))
    return bool(before == now)


def _shown(value: Any) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes | np.ndarray) else short(value)


def _manifest(path: Path) -> dict[str, Any] | None:
    """Return a manifest, or None if there is none or it is not the manifest of an export."""
    try:
        found = dict(json.loads(path.read_text(encoding="utf-8")))
        return found if {"family", "files"} <= found.keys() else None
    except (OSError, ValueError, TypeError):
        return None


def _precision(precision: Any) -> str:
    return "/".join(sorted(set(precision.values()))) if isinstance(precision, dict) else str(precision)


def _digest(content: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
