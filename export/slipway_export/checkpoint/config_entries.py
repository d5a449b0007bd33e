"""Entries of a checkpoint's configuration files, with errors for files that describe no network.

:meth:`slipway_export.checkpoint.checkpoint.Checkpoint.config` reads a JSON file as a :class:`ConfigEntries`.
If a family's plan fails because of such a file, :func:`refusing_malformed` raises an error that names the
entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from slipway_serving.protocol.errors import InvalidRequest, SlipwayError


@dataclass
class LastRead:
    """Record of the configuration file or entry that was read last.

    Attributes:
        text: File, key and value, for messages; empty before the first read.
    """

    text: str = field(default="", compare=False)


class ConfigEntries(dict[str, Any]):
    """Content of a configuration file; access to a missing entry raises an error that names it.

    Args:
        content: The parsed JSON object.
        where: Name of the file, for messages.
        last: Record that is updated each time an entry is read.
    """

    def __init__(
        self,
        content: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        where: str = "configuration",
        last: LastRead | None = None,
    ) -> None:
        super().__init__(content)
        self._where, self._last = where, last or LastRead()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        self._last.text = f"{self._where}: {key} = {value!r}"
        return value

    def __missing__(self, key: str) -> Any:
        raise InvalidRequest(f"{self._where}: {key} must be given, got none")

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        # Copies are made for libraries, whose reads are not recorded.
        return dict, (dict(self),)

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry, or the default if it is missing."""
        if key not in self:
            return default
        return self[key]


@contextmanager
def refusing_malformed(what: str, last: LastRead) -> Iterator[None]:
    """Turn an unexpected error in the block into an InvalidRequest about the configuration files.

    Args:
        what: Start of the message: the files, and the networks that they must describe.
        last: Record of the entry that was read last.

    Raises:
        InvalidRequest: The block failed with an error that is not a SlipwayError, OSError, ImportError or
            MemoryError.
    """
    try:
        yield
    except (SlipwayError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # Libraries may raise anything for a value of the wrong type.
        reason = " ".join(str(error).split())[:300]
        entry = f"; what was read last is {last.text}" if last.text else ""
        raise InvalidRequest(f"{what}, got {type(error).__name__}: {reason}{entry[:400]}") from error
