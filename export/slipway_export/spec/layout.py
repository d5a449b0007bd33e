"""Layout of a checkpoint: its parts, and the files that may be given by options of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """A folder of a checkpoint, which may also lie in a place of its own (``--part NAME=DIR|FILE|HUB_ID``).

    Args:
        name: Name of the folder, e.g. ``text_encoder``.
        files: Paths of the required files within the folder.
        optional: True if a checkpoint may lack the part.
        components: Names of the components made of this part alone, so that it may also be given by itself
            (``--model-path``).
        lora: Name of the component that a LoRA of this part is given for (``--lora``); None if the part takes
            no LoRA.
    """

    name: str
    files: tuple[str, ...] = ()
    optional: bool = False
    components: tuple[str, ...] = ()
    lora: str | None = None


@dataclass(frozen=True)
class NamedFile:
    """A file of a checkpoint that may be given by an option of its own, under any name.

    Args:
        path: Path within the layout.
        default: Path of the file if its option is left out; None if the option is required.
        leads_to: Function that finds the other files of a layout that belong to the file; it returns their
            places by path within the layout.
    """

    path: str
    default: Path | None = None
    leads_to: Callable[[Path], Mapping[str, Path]] | None = None
