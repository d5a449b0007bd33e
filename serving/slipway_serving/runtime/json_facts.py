"""Reader for the JSON facts that an export writes next to a model; they become frozen dataclasses.

The reader refuses unknown and missing keys, so that an export and a server of different versions do not agree
by accident. Lists become tuples, and objects become the dataclass that annotates the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from slipway_serving.protocol.errors import InvalidRequest

T = TypeVar("T")


def read_facts(kind: type[T], path: Path) -> T:
    """Read facts from a JSON file.

    Args:
        kind: Dataclass that describes the facts.
        path: Path of the file.

    Raises:
        InvalidRequest: The file is missing, is not JSON, or has unknown or missing keys.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path}: must be the JSON file that the export writes, got {error}") from error
    return facts_from_json(kind, raw, str(path))


def facts_from_json(kind: type[T], raw: Any, where: str) -> T:
    """Build facts from parsed JSON; see :func:`read_facts`."""
    known = {field.name: field.default is MISSING for field in fields(kind)}  # type: ignore[arg-type]
    given = set(raw) if isinstance(raw, Mapping) else set()
    needed = {name for name, is_needed in known.items() if is_needed}
    unknown, missing = sorted(given - set(known)), sorted(needed - given)
    if unknown or missing:
        raise InvalidRequest(
            f"{where}: keys must be {', '.join(known)}, got unknown {unknown} and missing {missing}; "
            "try exporting again with this version"
        )
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in raw.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    for kind in (hint, *get_args(hint)):  # An object may be optional.
        if isinstance(kind, type) and is_dataclass(kind) and (kind is hint or value is not None):
            return facts_from_json(kind, value, where)
    return tuple(_value(None, item, where) for item in value) if isinstance(value, list) else value
