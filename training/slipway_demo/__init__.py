"""Small trained checkpoints, one folder for each family, in the layouts of the public ones.

`slipway train weights FAMILY` makes them; each has its model card, `README.md`. They are a distribution of
their own, `slipway-triton-demo`, so that nobody's install carries them who does not ask for them.
"""

from __future__ import annotations

from pathlib import Path


def folder(family: str) -> Path:
    """Return the folder of a family's checkpoint.

    Raises:
        FileNotFoundError: there is none.
    """
    found = Path(__file__).parent / family
    if not found.is_dir():
        raise FileNotFoundError(found)
    return found
