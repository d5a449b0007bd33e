"""Requests under way, known to all processes of one server: each has a file, by which another can end it.

A pipeline's loop runs in one process of the server, and the request to end it reaches another. Both find the
server's folder (:mod:`slipway_serving.server_folder`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from slipway_serving.server_folder import folder_here

_CAN_BE_ENDED = re.compile(r"slipway-[0-9a-f]{32}")
_ENDED = ".ended"


class UnderWay:
    """One request that can be ended.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self._ended = path.with_suffix(_ENDED)

    def is_ended(self) -> bool:
        """Tell whether somebody asked to end it."""
        return os.path.exists(self._ended)  # noqa: PTH110 - asked at every step


@contextlib.contextmanager
def under_way(request_id: str) -> Iterator[UnderWay | None]:
    """Have a request known while the block runs; None where its id is not one that can be ended.

    The calls that a request makes of other models carry its id: they end with it.

    Args:
        request_id: of Slipway's clients, "slipway-" and 32 hexadecimal digits that nobody can guess. Others
            may come twice, and the end of the one would be that of the other.
    """
    if not _CAN_BE_ENDED.fullmatch(request_id):
        yield None
        return
    folder = folder_here()
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / request_id
    try:
        path.touch(exist_ok=False)
    except FileExistsError:  # of the request on whose behalf this call is made
        yield UnderWay(path)
        return
    try:
        yield UnderWay(path)
    finally:
        for each in (path, path.with_suffix(_ENDED)):
            each.unlink(missing_ok=True)


def end(request_id: str) -> bool:
    """Ask to end a request; its loop sees so at its next step.

    Returns:
        Whether it is under way on this server.
    """
    path = folder_here() / request_id
    if not _CAN_BE_ENDED.fullmatch(request_id) or not path.exists():
        return False
    path.with_suffix(_ENDED).touch()
    if path.exists():
        return True
    path.with_suffix(_ENDED).unlink(missing_ok=True)  # it ended between
    return False
