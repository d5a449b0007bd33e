"""Layouts and variants of the weight files that were chosen for a checkpoint's parts."""

from __future__ import annotations

from collections.abc import Iterable

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.layouts.weight_files import LAYOUT_FILE
from slipway_serving.protocol.errors import InvalidRequest


def layouts_of(checkpoint: Checkpoint, parts: Iterable[str]) -> dict[str, str]:
    """Return the layout or the variant of each part whose files the libraries do not look for themselves."""
    found: dict[str, str] = {}
    for part in parts:
        if checkpoint.is_presented(part):
            found[part] = str(checkpoint.config(f"{part}/{LAYOUT_FILE}").get("layout"))
        elif (files := checkpoint.weight_files(part)) is not None and not files.is_read_by_library:
            found[part] = f"variant {files.variant}" if files.variant else files.entry
    return found


def check_variant(checkpoint: Checkpoint, parts: Iterable[str]) -> None:
    """Refuse the name of a variant that no part has.

    Args:
        checkpoint: Checkpoint with the name of the variant that the user chose, if any.
        parts: Names of the family's parts.

    Raises:
        InvalidRequest: No part has this variant; the message names those that the parts have.
    """
    wanted = checkpoint.variant_file
    if not wanted:
        return
    found = {part: checkpoint.variants(part) for part in parts}
    if not any(wanted in words for words in found.values()):
        has = [f"{', '.join(sorted(words))} of {part}" for part, words in found.items() if words]
        raise InvalidRequest(
            f"checkpoint {checkpoint.source}: variant-file must be the variant of a part's weights, got"
            f" {wanted}; the checkpoint has {' and '.join(has) or 'no variants'}; try without --variant-file"
        )
