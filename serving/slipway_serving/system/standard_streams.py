"""Output to standard output and standard error that never fails.

A server outlives the pipe or terminal that it was started from, and its standard error may be a file on a
full disk. :func:`open_closed_streams` opens the standard streams that a process was started without.
:func:`print_line` writes a line and drops it if the stream cannot be written.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

import typer

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed_streams() -> None:
    """Open each standard stream that the process was started without on the null device.

    Python sets such a stream (`2>&-` in a shell) to None, and the next opened file gets its descriptor.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open


def print_line(line: str, *, err: bool = False, end: str = "\n") -> None:
    """Write a line; drop it if the stream cannot be written.

    Args:
        line: Text, which may contain ANSI styles; they are removed if the stream is not a terminal.
        err: True if the line goes to standard error instead of standard output.
        end: Text that is written after the line.
    """
    try:
        typer.echo(f"{line}{end}", err=err, nl=False)
    except OSError:
        # We read the stream from sys now, since a library may have replaced it.
        _drop_buffer(sys.stderr if err else sys.stdout)


def _drop_buffer(stream: TextIO) -> None:
    """Discard a stream's buffer, since each later write and the interpreter's exit would fail on it again."""
    descriptor = stream.fileno()
    saved = os.dup(descriptor)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, descriptor)
        with contextlib.suppress(OSError):
            stream.flush()
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)
        os.close(sink)
