"""Sources of a checkpoint on the command line: separate parts, a single part, trained models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slipway_serving.protocol.errors import InvalidRequest, raise_all

if TYPE_CHECKING:
    from slipway_export.spec import Family


def trained_family(family: Family) -> Family:
    """Return the family of the models that users train for a family.

    Raises:
        InvalidRequest: Slipway trains no models of the family.
    """
    from slipway_export.families import families, family_named

    if family.trained is None:
        able = ", ".join(other.name for other in families() if other.trained is not None)
        raise InvalidRequest(
            f"model must be left out for {family.name}, which has no trained models; families with trained"
            f" models: {able}"
        )
    return family_named(family.trained)


def parse_parts(texts: Sequence[str]) -> dict[str, str]:
    """Parse the sources of parts, ``NAME=DIR|FILE|HUB_ID`` each; names may have dashes for underscores.

    Raises:
        InvalidRequest: A text is not of that form, or a part is given twice.
    """
    parts: dict[str, str] = {}
    for text in texts:
        name, _, source = text.partition("=")
        name = name.replace("-", "_")
        if not name or not source:
            raise InvalidRequest(f"part must be NAME=DIR|FILE|HUB_ID, got {text!r}")
        if name in parts:
            raise InvalidRequest(f"part {name} must be given once, got {parts[name]!r} and {source!r}")
        parts[name] = source
    return parts


def part_alone(
    family: Family,
    components: Sequence[str],
    model_path: str | None,
    subfolder: str | None,
    parts: Mapping[str, str],
) -> dict[str, str]:
    """Return the source of the one checkpoint part that the components need.

    Args:
        family: Family of the components.
        components: Names of the components to export.
        model_path: Folder or hub id of the part, or of a checkpoint that contains it.
        subfolder: Folder of the part within `model_path`.
        parts: Sources of the parts that other options name.

    Raises:
        InvalidRequest: `model_path` is missing, or the components need more than one part.
    """
    needed = {part.name for part in family.parts if set(components) & set(part.components)}
    able = family.parts_alone
    problems = []
    if model_path is None:
        problems.append(f"subfolder requires --model-path, got {subfolder} without it")
    if len(needed) != 1 or not set(components) <= set(able):
        rule = f"one --component of {', '.join(able)}" if able else "another option; try --checkpoint"
        got = ", ".join(components) or "none"
        problems.append(f"model-path must be given with {rule} for {family.name}, got {got}")
    problems += [
        f"part {name} must be given once, got --model-path as well" for name in needed & parts.keys()
    ]
    raise_all("export", problems)
    return {needed.pop(): f"{model_path}/{subfolder}" if subfolder else str(model_path)}
