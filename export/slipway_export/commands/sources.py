"""Where a checkpoint comes from on the command line: parts of their own, single parts, trained models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slipway_serving.protocol.errors import InvalidRequest, raise_all

if TYPE_CHECKING:
    from slipway_export.spec import Family


def trained_family(family: Family) -> Family:
    """Return the family of the models that users train for a family.

    Raises:
        InvalidRequest: there are none.
    """
    from slipway_export.families import families, family_named

    if family.trained is None:
        able = ", ".join(other.name for other in families() if other.trained is not None)
        raise InvalidRequest(
            f"model must be left out for {family.name}, whose checkpoints are not trained here, got one;"
            f" families with trained models: {able}"
        )
    return family_named(family.trained)


def parse_parts(texts: Sequence[str]) -> dict[str, str]:
    """Parse the places of parts, ``name=DIR|HUB_ID`` each; names may have dashes for underscores.

    Raises:
        InvalidRequest: a text is not of that form, or a part is given twice.
    """
    parts: dict[str, str] = {}
    for text in texts:
        name, _, place = text.partition("=")
        name = name.replace("-", "_")
        if not name or not place:
            raise InvalidRequest(f"part must be NAME=DIR|HUB_ID, got {text!r}")
        if name in parts:
            raise InvalidRequest(f"part {name} must be given once, got {parts[name]!r} and {place!r}")
        parts[name] = place
    return parts


def part_alone(
    family: Family,
    components: Sequence[str],
    model_path: str | None,
    subfolder: str | None,
    parts: Mapping[str, str],
) -> dict[str, str]:
    """Return the place of the one checkpoint part that the components are made of.

    Args:
        family: Family of the components.
        components: Names of the components to export.
        model_path: Folder or hub id of the part, or of a checkpoint that contains it.
        subfolder: Folder of the part within `model_path`.
        parts: Places of the parts that other options name.

    Raises:
        InvalidRequest: `model_path` is missing, or the components are not made of one part.
    """
    found = {part.name for part in family.parts if set(components) & set(part.components)}
    able = family.parts_alone
    problems = []
    if model_path is None:
        problems.append(f"subfolder must be given with --model-path, got {subfolder} alone")
    if len(found) != 1 or not set(components) <= set(able):
        rule = f"one --component of {', '.join(able)}" if able else "another option; try --checkpoint"
        got = ", ".join(components) or "none"
        problems.append(f"model-path must be given with {rule} for {family.name}, got {got}")
    problems += [f"part {name} must be given once, got --model-path too" for name in found & parts.keys()]
    raise_all("export", problems)
    return {found.pop(): f"{model_path}/{subfolder}" if subfolder else str(model_path)}
