"""Source of an export: what the user's options resolve to, before anything is staged."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.provenance import Digests, ReadRecord
from slipway_export.options import ExportOptions
from slipway_export.spec import Axis, Family, Plan


@dataclass(frozen=True)
class ExportSource:
    """Source of an export: its family, checkpoint, plan and options.

    Args:
        family: Family, in the requested variant.
        checkpoint: Checkpoint of the family.
        axes: Axes with the ranges of the export.
        plan: Plan of the checkpoint.
        planned: Record of what was read to make the plan.
        options: Options from the user.
        digests: Hashes of files that were read before.
    """

    family: Family
    checkpoint: Checkpoint
    axes: tuple[Axis, ...]
    plan: Plan
    planned: ReadRecord
    options: ExportOptions
    digests: Digests = field(default_factory=Digests)
