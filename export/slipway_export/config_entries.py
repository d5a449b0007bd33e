"""Entries of a checkpoint's configuration files, and how a file that describes no network is refused.

:meth:`slipway_export.checkpoint.Checkpoint.config` reads a JSON file as a :class:`ConfigEntries`. Where a
family's plan fails over what it read there, :func:`refusing_malformed` names the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from slipway_serving.errors import InvalidRequest, SlipwayError


@dataclass
class LastRead:
    """The configuration file, or the entry of one, that was read last.

    Attributes:
        text: The file, the key and the value, for messages; empty before the first.
    """

    text: str = field(default="", compare=False)


class ConfigEntries(dict[str, Any]):
    """The content of a configuration file; an entry that is missing is refused by name.

    Args:
        content: The parsed JSON object.
        where: Name of the file, for messages.
        last: Takes note of each entry that is read.
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
        # A copy is a library's own: it need not say what is read of it.
        return dict, (dict(self),)

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry, or the default where it is missing."""
        if key not in self:
            return default
        return self[key]


@contextmanager
def refusing_malformed(what: str, last: LastRead) -> Iterator[None]:
    """Turn an error of any kind into a refusal of the configuration files that were read.

    Args:
        what: What the files must describe, for the message.
        last: What was read last.

    Raises:
        InvalidRequest: The work inside failed other than by an error of ours or of the system.
    """
    try:
        yield
    except (SlipwayError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # Whatever a library does with a value of another type.
        reason = " ".join(str(error).split())[:300]
        entry = f"; what was read last is {last.text}" if last.text else ""
        raise InvalidRequest(f"{what}, got {type(error).__name__}: {reason}{entry[:400]}") from error
