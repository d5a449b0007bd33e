"""Start a program without showing its secret arguments on the command line.

Triton accepts the key to its administration only as an argument. Every user of the machine can read the
command line of a process (`ps`, `/proc/PID/cmdline`), but not its environment. :func:`start` puts the secret
into the environment and a placeholder on the command line. It halts the process after the program is loaded
and before it runs, and points the argument at the text in the environment. The secret is never visible.
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

from slipway_serving.system.private_files import UMASK

# These constants are from <sys/ptrace.h>.
_SEIZE, _CONT, _DETACH, _TRACE_EXEC, _EVENT_EXEC = 0x4206, 7, 17, 0x10, 4
_WALL = 0x40000000
_NAME = "SLIPWAY_ARGUMENT_"
# The shell waits for a line, so that the tracer can seize it before `exec` turns it into the program. Its
# process id and session stay the same.
_LAUNCHER = ("/bin/sh", "-c", 'read -r _; exec "$@" </dev/null', "sh")


def start(
    arguments: Sequence[str], hidden: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: IO[bytes]
) -> tuple[subprocess.Popen[bytes], bool]:
    """Start a program in its own session, without input and with its output in a file.

    Only the user of the program can read the files that it writes.

    Args:
        arguments: Path of the program and the arguments that anybody may see.
        hidden: Further arguments that contain secrets, as `--name=value`.
        env: Environment of the program, which its owner and root can read.
        cwd: Working directory of the program.
        log: File that receives stdout and stderr of the program.

    Returns:
        The process, and True if its secrets are hidden. If the kernel or a sandbox forbids tracing, the
        secrets are on its command line and the value is False.

    Raises:
        OSError: The program does not exist.
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
    """Let the launcher become the program and halt it; return False if tracing is forbidden."""
    if process.stdin is None:
        raise RuntimeError("the launcher has no standard input")
    with process.stdin as line:
        if not _ptrace(_SEIZE, process.pid, _TRACE_EXEC):
            return False
        line.write(b"\n")
    started = os.fsencode(program) + b"\0"
    # If the process is seized early enough, it also halts when it becomes the shell.
    while os.WIFSTOPPED(status := os.waitpid(process.pid, _WALL)[1]):
        line_now = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        if status >> 8 == signal.SIGTRAP | _EVENT_EXEC << 8 and line_now.startswith(started):
            return True
        _ptrace(_CONT, process.pid, 0)
    return False


def _point_at_environment(pid: int, stand_ins: Mapping[str, str]) -> None:
    """Replace pointers to arguments by pointers to environment variables' values in a halted process.

    Args:
        pid: Process id of a process at its first instruction, so that its stack begins with the pointers to
            its arguments.
        stand_ins: Names of environment variables by the argument that each replaces.
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
