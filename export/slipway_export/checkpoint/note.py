"""Note of a checkpoint to those who use it, such as what it does badly.

The file ``note.txt`` of a checkpoint has it. The export writes it into the configuration of the served
model, and a form shows it.
"""

from __future__ import annotations

from slipway_export.checkpoint.checkpoint import Checkpoint

FILE = "note.txt"


def checkpoint_note(checkpoint: Checkpoint) -> str:
    """Return the note of a checkpoint; an empty text if it has none."""
    return checkpoint.file(FILE).read_text(encoding="utf-8").strip() if checkpoint.has(FILE) else ""
