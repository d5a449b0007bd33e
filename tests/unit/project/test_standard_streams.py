"""What a command says is dropped where nobody takes it, and the command goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = """
from slipway_serving.system.standard_streams import open_closed_streams, print_line

open_closed_streams()
for word in ("first", "second"):
    print_line(word)
    print_line(word, err=True)
with open({done!r}, "w") as done:
    done.write("went on")
"""


def says(done: Path) -> list[str]:
    return [sys.executable, "-c", SAYS.format(done=str(done))]


@pytest.mark.parametrize("streams", ["", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
def test_command_goes_on_when_a_stream_cannot_be_written(tmp_path: Path, streams: str) -> None:
    done = tmp_path / "done"
    shell = ["bash", "-c", f'exec "$@" {streams}', "bash", *says(done)]
    ended = subprocess.run(shell, check=False, capture_output=True, text=True)
    assert (ended.returncode, done.read_text()) == (0, "went on")
    shut = streams.split()
    assert ended.stdout == ("" if {">&-", ">/dev/full"} & set(shut) else "first\nsecond\n")
    assert ended.stderr == ("" if {"2>&-", "2>/dev/full"} & set(shut) else "first\nsecond\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_command_goes_on_when_the_reader_of_a_stream_has_gone(tmp_path: Path, stream: str) -> None:
    done = tmp_path / "done"
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run(says(done), check=False, **{stream: writes})
    os.close(writes)
    assert (ended.returncode, done.read_text()) == (0, "went on")
