"""State of a request that is set aside: in memory if it is small, else in a file of mode 0600."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, read_state

MEMORY_BYTES = 256 << 20
"""Largest state that a process holds in memory; each process holds at most one state."""


class SetAsideState:
    """State that waits until its request has a slot again.

    Args:
        state: State to hold.
        folder: Folder for a state that is too large for memory.
        memory_bytes: Largest state to hold in memory, in bytes.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
    """

    def __init__(self, state: DenoisingState, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        data = state.to_bytes()
        self._data: bytes | None = data if len(data) <= memory_bytes else None
        self._path: Path | None = None
        if self._data is None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkstemp creates the file with mode 0600.
            number, name = tempfile.mkstemp(suffix=".slipway", dir=folder)
            self._path = Path(name)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(data)
            except OSError:
                self._path.unlink(missing_ok=True)
                raise

    def take(self, where: str) -> DenoisingState:
        """Return the state, and free the memory or the file."""
        data = self._path.read_bytes() if self._path is not None else self._data or b""
        self.drop()
        return read_state(data, where)

    def drop(self) -> None:
        """Free the memory or the file."""
        self._data = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None
