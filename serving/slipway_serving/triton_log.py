r"""Read what `tritonserver` writes to its log.

A record of the server's own is one line, severity first (`E1120 22:14:09.123456 77 file.cc:12] "text"`,
line ends written as `\n`); lines that models print lie between. :func:`load_failures` says per model why
it could not be loaded, :func:`still_loading` which models have not answered, and :func:`follow` hands
new text on while a server runs. :func:`record` adds what the server's supervisor has to say.
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

from slipway_serving import private_files

LIMIT_BYTES = 32 * 2**20
"""Size at which a log begins anew, after some hundred thousand requests; in a container it may be memory."""
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
        # A stub that ends before it has initialised is waited for without an end.
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


def plain(reason: str) -> str:
    """Return a failure's own words: no stack, no exception class, no code for the wire."""
    text = _STATUS.sub("", _STACK.sub("", reason).strip())
    while (shorter := _WRAPPED.sub("", text)) != text:
        text = shorter
    return text


def load_failures(log: str) -> dict[str, str]:
    """Return why models could not be loaded, by model name, in the order of the log."""
    failures: dict[str, str] = {}
    for text in _records(log):
        for pattern in _FAILURES:
            if match := pattern.search(text):
                model = match["model"]
                failures.setdefault(model, plain(match["reason"]).removeprefix(f"{model}: "))
                break
    for match in _PROTOBUF.finditer(log):
        failures[match["model"]] = f"config.pbtxt cannot be read: {match['reason']}"
    return failures


def begun(log: str) -> list[str]:
    """Return the models whose load was begun, in that order."""
    return _found(r"loading: (.+):-?\d+$", log)


def loaded(log: str) -> list[str]:
    """Return the models that were loaded, in the order in which they were."""
    return _found(r"successfully loaded '([^']+)'", log)


def still_loading(log: str) -> list[str]:
    """Return the models whose load was begun and neither succeeded nor failed yet."""
    ended = {*loaded(log), *_found(r"failed to load '([^']+)'", log)}
    return [model for model in begun(log) if model not in ended]


def _found(pattern: str, log: str) -> list[str]:
    """Return what a pattern finds at the beginning of lines of the server's records, each once."""
    texts = "\n".join(_records(log))
    return list(dict.fromkeys(re.findall(f"^{pattern}", texts, re.MULTILINE)))


def printed(log: str) -> list[str]:
    """Return the lines that are no records of the server: processes of models, or a shell, printed them."""
    return [line for line in log.splitlines() if line.strip() and not _ANY_RECORD.match(line)]


def fatal(log: str) -> str | None:
    """Return why the server itself could not start, where the log says so."""
    found = [match["text"] for pattern in _FATAL if (match := pattern.search(log))]
    return " ".join(found[0].split()) if found else None


def record(path: Path, event: str, **facts: Any) -> OSError | None:
    """Append a line of JSON to a server's log, in the form that those of its models have there.

    Returns:
        The reason why the log could not be written, for example a full disk; None where it was. Whoever looks
        after a server must go on in that case, so nothing is raised.
    """
    now = datetime.now(UTC)
    line = json.dumps(json.dumps({"event": event, **facts}))
    try:
        with open(path, "a", opener=private_files.open_private) as log:
            log.write(f"W{now:%m%d %H:%M:%S.%f} {os.getpid()} supervision.py:1] {line}\n")
    except OSError as error:
        return error
    return None


@contextlib.contextmanager
def appending(path: Path) -> Iterator[IO[bytes]]:
    """Open a log for a process that appends to it; one that cannot be opened takes nothing and keeps nothing.

    A process that is started anew must not fail because the folder of its log is gone.
    """
    with contextlib.ExitStack() as opened:
        try:
            log = opened.enter_context(open(path, "ab", opener=private_files.open_private))
        except OSError:
            log = opened.enter_context(Path(os.devnull).open("ab"))
        yield log


def text(path: Path) -> str:
    """Return a log file's text; nothing where it does not exist or cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def follow(
    path: Path, write: Callable[[str], object], stop: threading.Event, interval_s: float = 0.2
) -> None:
    """Hand the lines of a growing file to `write` until `stop` is set and all of them are handed on.

    A file that does not exist yet is waited for; one that :func:`bound` emptied is read from its beginning.
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


def bound(path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Keep a log that others append to from growing: a longer one becomes PATH.1, in place of an earlier one.

    A line that is written in that moment may be in neither. Where PATH.1 cannot be written, say because the
    disk is full, the log begins anew without it and says so in its first line.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return
    except OSError:
        return
    earlier, lost = path.with_name(f"{path.name}.1"), None
    try:
        earlier.unlink(missing_ok=True)  # gives a full disk room for its successor
        private_files.make_empty(earlier)
        shutil.copyfile(path, earlier)
    except OSError as error:
        lost = error
        with contextlib.suppress(OSError):
            earlier.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.truncate(path, 0)
    if lost is not None:
        record(path, "earlier_log_lost", reason=str(lost))
