"""Files of running requests, by which any process of the server can cancel a request of another process.

A pipeline's loop runs in one process of the server, and the request that cancels it reaches another. Both use
files in the server's folder (:mod:`slipway_serving.system.server_folder`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from slipway_serving.system.server_folder import runtime_folder

_CANCELLABLE_ID = re.compile(r"slipway-[0-9a-f]{32}")
_CANCELLED_SUFFIX = ".ended"
_STOPPED_SUFFIX = ".stopped"


class RunningRequest:
    """Running request that can be cancelled or stopped.

    Args:
        path: File of the request.
    """

    def __init__(self, path: Path) -> None:
        self._cancel_file = path.with_suffix(_CANCELLED_SUFFIX)
        self._stop_file = path.with_suffix(_STOPPED_SUFFIX)

    def is_cancelled(self) -> bool:
        """Return True if somebody asked to cancel the request."""
        return os.path.exists(self._cancel_file)  # noqa: PTH110 - faster, for every step

    def is_stop_asked(self) -> bool:
        """Return True if somebody asked the request to stop and to send its state."""
        return os.path.exists(self._stop_file)  # noqa: PTH110 - faster, for every step


@contextlib.contextmanager
def register_request(request_id: str) -> Iterator[RunningRequest | None]:
    """Register a request as running while the block runs; yield None if its id is not from Slipway's clients.

    The calls that a request makes to other models carry its id, so they end with it.

    Args:
        request_id: Id of the request. Ids of Slipway's clients are "slipway-" and 32 hexadecimal digits that
            nobody can guess. Any other id may occur twice, and cancelling one request would cancel both.
    """
    if not _CANCELLABLE_ID.fullmatch(request_id):
        yield None
        return
    folder = runtime_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / request_id
    try:
        path.touch(exist_ok=False)
    except FileExistsError:  # The file belongs to the request that makes this call to another model.
        yield RunningRequest(path)
        return
    try:
        yield RunningRequest(path)
    finally:
        for each in (path, *(path.with_suffix(suffix) for suffix in (_CANCELLED_SUFFIX, _STOPPED_SUFFIX))):
            each.unlink(missing_ok=True)


def cancel_request(request_id: str, *, stop: bool = False) -> bool:
    """Cancel a request, or ask it to stop; its loop checks for this at its next step.

    Args:
        request_id: Id of the request.
        stop: True if the request should send its state, from which it can be continued.

    Returns:
        True if the request is running on this server.
    """
    path = runtime_folder() / request_id
    if not _CANCELLABLE_ID.fullmatch(request_id) or not path.exists():
        return False
    signal_file = path.with_suffix(_STOPPED_SUFFIX if stop else _CANCELLED_SUFFIX)
    signal_file.touch()
    if path.exists():
        return True
    signal_file.unlink(missing_ok=True)  # The request has ended meanwhile.
    return False
