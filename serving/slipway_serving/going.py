"""A server that is going refuses what comes: its models are told by files in the server's folder.

First the pipelines refuse, whose requests take long, while those under way go on, with all the models that
they call; when nothing is under way any more, every Python model does. A caller that is refused connects
anew, and reaches another server.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from slipway_serving.errors import NotReady
from slipway_serving.server_folder import folder_here


class Refused(NotReady):
    """The server is going: no fault of its, and another one answers."""


class Going(Enum):
    """How far a server is on its way; the value is the name of the file that says so."""

    PIPELINES_REFUSE = "pipelines_refuse"
    ALL_REFUSE = "all_refuse"


def tell(folder: Path, going: Going) -> None:
    """Have a server's models refuse what comes from now on.

    Args:
        folder: of the server.
        going: which of them.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / going.value).touch()


class Door:
    """Whether a model takes requests.

    Args:
        model: its name.
        is_pipeline: whether it works on long requests, with the help of other models.
    """

    def __init__(self, model: str, *, is_pipeline: bool) -> None:
        refusing = [Going.ALL_REFUSE, *([Going.PIPELINES_REFUSE] if is_pipeline else [])]
        self._model = model
        self._marks = [folder_here() / going.value for going in refusing]

    def check(self) -> None:
        """Let a request in.

        Raises:
            Refused: the server is going.
        """
        if any(os.path.exists(mark) for mark in self._marks):  # noqa: PTH110 - asked for every request
            raise Refused(
                f"{self._model}: server must be staying to take a request, got one that is about to stop;"
                " try again on a new connection"
            )
