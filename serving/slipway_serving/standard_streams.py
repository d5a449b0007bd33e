"""Write to standard output and standard error whether or not anybody can read them.

A server outlives the pipe or terminal that it was started from, and its standard error may be a file on a
full disk. :func:`open_closed` gives a process the streams that it was started without; :func:`say` writes a
line and drops it where the stream does not take it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

import typer

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed() -> None:
    """Open each standard stream that the process was started without on the null device.

    Python sets such a stream (`2>&-` in a shell) to None, and the next file that is opened takes its place.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open


def say(line: str, *, err: bool = False, end: str = "\n") -> None:
    """Write a line; drop it where the stream cannot be written.

    Args:
        line: Text, which may carry ANSI styles; they are removed where the stream is no terminal.
        err: Whether the line goes to standard error instead of standard output.
        end: Text that is written after the line.
    """
    try:
        typer.echo(f"{line}{end}", err=err, nl=False)
    except OSError:
        # Looked up again: a library may have replaced the stream.
        _drop_what_is_buffered(sys.stderr if err else sys.stdout)


def _drop_what_is_buffered(stream: TextIO) -> None:
    """Empty a stream's buffer, on which each later write and the interpreter's exit would fail again."""
    descriptor = stream.fileno()
    kept = os.dup(descriptor)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, descriptor)
        with contextlib.suppress(OSError):
            stream.flush()
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(sink)
