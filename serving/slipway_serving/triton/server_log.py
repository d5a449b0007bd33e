r"""Parser and writer for the log of `tritonserver`.

A record of the server itself is one line that starts with the severity
(`E1120 22:14:09.123456 77 file.cc:12] "text"`, with line ends written as `\n`). Lines that models print are
in between. :func:`load_failures` returns per model why it could not be loaded, :func:`loading_models` returns
the models that have not finished loading, and :func:`follow` passes on new lines while a server runs.
:func:`append_event` adds events of the server's supervisor, and :func:`log_errors` the errors of callbacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from slipway_serving.system import private_files

LIMIT_BYTES = 32 * 2**20
"""Size at which a log starts over, reached after some hundred thousand requests; in a container, the log's
file system may be in memory."""
_RECORD = re.compile(r"^[EWIF]\d{4} [\d:.]+ \d+ [\w.]+:\d+\]\s+\"?(?P<text>.*?)\"?$", re.MULTILINE)
_ANY_RECORD = re.compile(r"[EWIF]\d{4} ")
_FAILURES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"failed to load (?:model )?'(?P<model>[^']+)'(?: version -?\d+)?: (?P<reason>.+)",
        r"Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.+)",
        r"Invalid argument: ensemble '(?P<model>[^']+)' "
        r"(?P<reason>depends on '[^']+' which has no loaded version)",
        r"Invalid argument: ensemble (?P<model>\S+) (?P<reason>contains models that .+)",
        # Triton waits forever for a stub that ends before it has initialised.
        r"Failed to preinitialize Python stub: (?P<reason>Python model file not found in "
        r"'.*/(?P<model>[^/']+)/[^/']+/[^/']+')",
    )
)
_PROTOBUF = re.compile(
    r"^\[libprotobuf ERROR .*?\] (?P<reason>.*)\n.*Poll failed for model directory '(?P<model>[^']+)'", re.M
)
_FATAL = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:error: |[EF]\d{4} .*?\] \"?)(?P<text>(?:creating server|failed to (?:start|create)).*?)\"?$",
        r"tritonserver: (?P<text>unrecognized option '.*')$",
        r"^(?P<text>Bad option: .*\n.+)$",
    )
)
_STACK = re.compile(r"\s*\n+(?:At:|Traceback ).*", re.DOTALL)
_STATUS = re.compile(r"^(?:Internal|Invalid argument|Unavailable|Not found|Unsupported|Unknown): ")
_WRAPPED = re.compile(r"^TritonModelException: |^\[[A-Z_]+\] ")


def _records(log: str) -> list[str]:
    """Return the texts of the server's own records."""
    return [match["text"].replace("\\n", "\n") for match in _RECORD.finditer(log)]


def plain_reason(reason: str) -> str:
    """Return the message of a failure without stack trace, exception class and error code prefix."""
    text = _STATUS.sub("", _STACK.sub("", reason).strip())
    while (shorter := _WRAPPED.sub("", text)) != text:
        text = shorter
    return text


def load_failures(log: str) -> dict[str, str]:
    """Return the reasons why models could not be loaded, by model name, in the order of the log."""
    failures: dict[str, str] = {}
    for text in _records(log):
        for pattern in _FAILURES:
            if match := pattern.search(text):
                model = match["model"]
                failures.setdefault(model, plain_reason(match["reason"]).removeprefix(f"{model}: "))
                break
    for match in _PROTOBUF.finditer(log):
        failures[match["model"]] = f"config.pbtxt cannot be read: {match['reason']}"
    return failures


def begun_models(log: str) -> list[str]:
    """Return the models that began to load, in that order."""
    return _find_models(r"loading: (.+):-?\d+$", log)


def loaded_models(log: str) -> list[str]:
    """Return the models that were loaded, in that order."""
    return _find_models(r"successfully loaded '([^']+)'", log)


def loading_models(log: str) -> list[str]:
    """Return the models whose load has begun and has neither succeeded nor failed yet."""
    ended = {*loaded_models(log), *_find_models(r"failed to load '([^']+)'", log)}
    return [model for model in begun_models(log) if model not in ended]


def _find_models(pattern: str, log: str) -> list[str]:
    """Return the distinct matches of a pattern at line starts in the server's records."""
    texts = "\n".join(_records(log))
    return list(dict.fromkeys(re.findall(f"^{pattern}", texts, re.MULTILINE)))


def unloaded_models(path: Path, since: int) -> set[str]:
    """Return the models that were unloaded after a log had a size.

    Args:
        path: Log of the server.
        since: Size of the log, in bytes; a log that has become smaller is read from its beginning.
    """
    try:
        with path.open("rb") as log:
            log.seek(since if os.fstat(log.fileno()).st_size >= since else 0)
            text = log.read().decode(errors="replace")
    except OSError:
        return set()
    return set(_find_models(r"successfully unloaded '([^']+)'", text))


def printed_lines(log: str) -> list[str]:
    """Return the lines that are not records of the server, printed by a model's process or a shell."""
    return [line for line in log.splitlines() if line.strip() and not _ANY_RECORD.match(line)]


def fatal_reason(log: str) -> str | None:
    """Return the reason why the server itself could not start; None if the log gives none."""
    found = [match["text"] for pattern in _FATAL if (match := pattern.search(log))]
    return " ".join(found[0].split()) if found else None


def append_event(path: Path, event: str, **facts: Any) -> OSError | None:
    """Append a line of JSON to a server's log, in the form that its models use there.

    Returns:
        The error if the log could not be written, for example because of a full disk, else None. It is not
        raised, since supervision must continue.
    """
    now = datetime.now(UTC)
    line = json.dumps(json.dumps({"event": event, **facts}))
    try:
        with open(path, "a", opener=private_files.open_private) as log:
            log.write(f"W{now:%m%d %H:%M:%S.%f} {os.getpid()} supervision.py:1] {line}\n")
    except OSError as error:
        return error
    return None


def log_errors(path: Path, callback: Callable[[str], object]) -> Callable[[str], None]:
    """Wrap a callback so that its exceptions go to a server's log; supervision must continue.

    Args:
        path: Log of the server.
        callback: Callback that receives a line.
    """

    def call_or_log(line: str) -> None:
        try:
            callback(line)
        except Exception as error:  # noqa: BLE001 - the caller's function may raise anything
            append_event(path, "not_told", line=line, reason=repr(error))

    return call_or_log


@contextlib.contextmanager
def open_for_append(path: Path) -> Iterator[IO[bytes]]:
    """Open a log for a process that appends to it, or the null device if the log cannot be opened.

    A restart of a process must not fail because the folder of its log is gone.
    """
    with contextlib.ExitStack() as opened:
        try:
            log = opened.enter_context(open(path, "ab", opener=private_files.open_private))
        except OSError:
            log = opened.enter_context(Path(os.devnull).open("ab"))
        yield log


def read_text(path: Path) -> str:
    """Return a log file's text; "" if it does not exist or cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def follow(
    path: Path, write: Callable[[str], object], stop: threading.Event, interval_s: float = 0.2
) -> None:
    """Pass the lines of a growing file to `write` until `stop` is set and all lines are passed on.

    The function waits for a file that does not exist yet. After :func:`limit_size` has emptied the file, it
    reads from the beginning.
    """
    while not path.exists():
        if stop.wait(interval_s):
            return
    with path.open("rb") as file:
        while True:
            ending = stop.is_set()
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)
            while line := file.readline():
                write(line.decode(errors="replace"))
            if ending:
                return
            stop.wait(interval_s)


def limit_size(path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Limit the size of a log that others append to: move a longer one to PATH.1 and replace an earlier one.

    A line that is written at that moment may be lost. If PATH.1 cannot be written, for example because the
    disk is full, the log starts over without it and says so in its first line.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return
    except OSError:
        return
    earlier, copy_error = path.with_name(f"{path.name}.1"), None
    try:
        earlier.unlink(missing_ok=True)  # This frees space on a full disk for the copy.
        private_files.make_empty(earlier)
        shutil.copyfile(path, earlier)
    except OSError as error:
        copy_error = error
        with contextlib.suppress(OSError):
            earlier.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.truncate(path, 0)
    if copy_error is not None:
        append_event(path, "earlier_log_lost", reason=str(copy_error))
