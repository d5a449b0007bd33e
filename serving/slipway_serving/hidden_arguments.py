"""Start a program whose secret arguments are not on its command line.

Triton takes the key to its administration as an argument and in no other way, and a process's command line
(`ps`, `/proc/PID/cmdline`) can be read by every user of the machine, unlike its environment. :func:`start`
puts the secret into the environment and a stand-in on the command line, halts the process when the program
has been loaded and not begun, and points its argument at the environment's text. No moment shows the secret.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from slipway_serving.private_files import UMASK

# <sys/ptrace.h>
_SEIZE, _CONT, _DETACH, _TRACE_EXEC, _EVENT_EXEC = 0x4206, 7, 17, 0x10, 4
_WALL = 0x40000000
_NAME = "SLIPWAY_ARGUMENT_"
# Waits for a line, so that it can be seized before it becomes the program; same process, same session.
_LAUNCHER = ("/bin/sh", "-c", 'read -r _; exec "$@" </dev/null', "sh")


def start(
    arguments: Sequence[str], hidden: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: IO[bytes]
) -> tuple[subprocess.Popen[bytes], bool]:
    """Start a program in a session of its own, with no input and its output in a file.

    What it writes can be read by its user alone.

    Args:
        arguments: the program's path and the arguments that anybody may see.
        hidden: further arguments that hold secrets, as `--name=value`.
        env: its environment, which its owner and root can read.
        cwd: its working directory.
        log: gets what it writes.

    Returns:
        The process, and whether its secrets are hidden; not where the kernel or a sandbox lets no process
        be traced: then they are on its command line.

    Raises:
        OSError: there is no such program.
    """
    names = [f"{_NAME}{index}" for index in range(len(hidden))]
    shown = [f"{argument.partition('=')[0]}=({name})" for name, argument in zip(names, hidden, strict=True)]
    process = subprocess.Popen(
        [*_LAUNCHER, *arguments, *shown],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env={**env, **dict(zip(names, hidden, strict=True))},
        start_new_session=True,
        umask=UMASK,
    )
    if _becomes_program(process, arguments[0]):
        try:
            _point_at_environment(process.pid, dict(zip(shown, names, strict=True)))
        except BaseException:
            process.kill()
            raise
        finally:
            _ptrace(_DETACH, process.pid, 0)
        return process, True
    process.kill()
    process.wait()
    plain = subprocess.Popen(
        [*arguments, *hidden],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=env,
        start_new_session=True,
        umask=UMASK,
    )
    return plain, False


def _becomes_program(process: subprocess.Popen[bytes], program: str) -> bool:
    """Let the launcher become the program, loaded and halted; return False where that is forbidden."""
    if process.stdin is None:
        raise RuntimeError("the launcher has no standard input")
    with process.stdin as line:
        if not _ptrace(_SEIZE, process.pid, _TRACE_EXEC):
            return False
        line.write(b"\n")
    started = os.fsencode(program) + b"\0"
    # Seized early enough, it halts where it becomes the shell too.
    while os.WIFSTOPPED(status := os.waitpid(process.pid, _WALL)[1]):
        line_now = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        if status >> 8 == signal.SIGTRAP | _EVENT_EXEC << 8 and line_now.startswith(started):
            return True
        _ptrace(_CONT, process.pid, 0)
    return False


def _point_at_environment(pid: int, stand_ins: Mapping[str, str]) -> None:
    """Replace pointers to arguments by pointers to environment variables' values in a halted process.

    Args:
        pid: of a process at its first instruction: its stack begins with the pointers to its arguments.
        stand_ins: names of variables by the arguments to be replaced.
    """
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^([0-9a-f]+)-([0-9a-f]+) .*\[stack\]$", maps, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"process {pid} has no stack")
    begin, end = (int(text, 16) for text in found.groups())
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        memory.seek(begin)
        stack = memory.read(end - begin)
        for argument, name in stand_ins.items():
            address = begin + stack.index(b"\0" + argument.encode() + b"\0") + 1
            variable = f"\0{name}=".encode()
            value = begin + stack.index(variable) + len(variable)
            memory.seek(begin + stack.index(struct.pack("=Q", address)))
            memory.write(struct.pack("=Q", value))


def _ptrace(request: int, pid: int, data: int) -> bool:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_long
    return bool(call(request, pid, None, data) == 0)
