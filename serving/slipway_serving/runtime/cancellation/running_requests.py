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

from slipway_serving.system.server_folder import folder_here

_CAN_BE_ENDED = re.compile(r"slipway-[0-9a-f]{32}")
_ENDED = ".ended"


class UnderWay:
    """Running request that can be cancelled.

    Args:
        path: File of the request.
    """

    def __init__(self, path: Path) -> None:
        self._ended = path.with_suffix(_ENDED)

    def is_ended(self) -> bool:
        """Return whether somebody asked to end the request."""
        return os.path.exists(self._ended)  # noqa: PTH110 - asked at every step


@contextlib.contextmanager
def under_way(request_id: str) -> Iterator[UnderWay | None]:
    """Register a request as running while the block runs; yield None if its id is not from Slipway's clients.

    The calls that a request makes to other models carry its id, so they end with it.

    Args:
        request_id: Id of the request. Ids of Slipway's clients are "slipway-" and 32 hexadecimal digits that
            nobody can guess. Any other id may occur twice, and cancelling one request would cancel both.
    """
    if not _CAN_BE_ENDED.fullmatch(request_id):
        yield None
        return
    folder = folder_here()
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / request_id
    try:
        path.touch(exist_ok=False)
    except FileExistsError:  # The file belongs to the request that makes this call to another model.
        yield UnderWay(path)
        return
    try:
        yield UnderWay(path)
    finally:
        for each in (path, path.with_suffix(_ENDED)):
            each.unlink(missing_ok=True)


def end(request_id: str) -> bool:
    """Ask to end a request; its loop checks for this at its next step.

    Returns:
        True if the request is running on this server.
    """
    path = folder_here() / request_id
    if not _CAN_BE_ENDED.fullmatch(request_id) or not path.exists():
        return False
    path.with_suffix(_ENDED).touch()
    if path.exists():
        return True
    path.with_suffix(_ENDED).unlink(missing_ok=True)  # The request has ended in the meantime.
    return False
