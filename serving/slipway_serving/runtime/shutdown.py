"""Admission gate that rejects new requests while the server shuts down.

Shutdown is signalled by files in the server's folder, which each model checks for. At first only the
pipelines refuse, whose requests take long; running requests go on, with all the models that they call. When
no request runs any more, every Python model refuses. A refused caller reconnects and reaches another server.
A server that should not wait for whole videos also makes its pipelines stop them at a step boundary; their
callers continue them on another server. Turns that read the state of a session or end it do not pass the
gate, so that a caller can move its session to another server at any stage.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.server_folder import runtime_folder


class ShuttingDown(NotReady):
    """The server refuses a request because it shuts down; another server can answer it."""


class ShutdownStage(Enum):
    """Stage of a server's shutdown; the value is the name of the file that signals it.

    In the optional stage `PIPELINES_STOP`, each pipeline stops its running videos at their next step boundary
    and sends their states. The loops of pipelines check for its file; :class:`AdmissionGate` does not.
    """

    PIPELINES_REFUSE = "pipelines_refuse"
    PIPELINES_STOP = "pipelines_stop"
    ALL_REFUSE = "all_refuse"


def announce(folder: Path, stage: ShutdownStage) -> None:
    """Announce a stage of a server's shutdown to its models; it lasts until the server's end.

    Args:
        folder: The server's runtime folder.
        stage: Stage of the shutdown, which decides which models refuse new requests or stop running ones.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / stage.value).touch()


def is_stopping() -> bool:
    """Return True if this server's pipelines must stop their requests at the next step boundary."""
    return os.path.exists(runtime_folder() / ShutdownStage.PIPELINES_STOP.value)  # noqa: PTH110 - faster


class AdmissionGate:
    """Gate of one model that refuses requests during shutdown.

    Args:
        model: Name of the model.
        is_pipeline: True if the model is a pipeline: it works on long requests and calls other models.
    """

    def __init__(self, model: str, *, is_pipeline: bool) -> None:
        stages = [ShutdownStage.ALL_REFUSE, *([ShutdownStage.PIPELINES_REFUSE] if is_pipeline else [])]
        self._model = model
        self._signal_files = [runtime_folder() / stage.value for stage in stages]

    @property
    def is_open(self) -> bool:
        """True unless the server shuts down."""
        return not any(os.path.exists(file) for file in self._signal_files)  # noqa: PTH110 - faster, for every request

    def check(self) -> None:
        """Admit a request unless the server shuts down.

        Raises:
            ShuttingDown: The server shuts down.
        """
        if not self.is_open:
            raise ShuttingDown(
                f"{self._model}: server is shutting down and takes no new requests; retry on a new connection"
            )
