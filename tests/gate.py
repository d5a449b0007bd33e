"""A denoiser that works only when it is told to, so that what is under way stays so on any machine.

:func:`gated` copies a `wan_t2v` repository and puts a Python model in the place of the first denoiser: each
call of it waits at the gate. A test says how many calls may pass, and knows by that which step is under way.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from server_fixtures import logged
from tritonclient.grpc import model_config_pb2

from slipway_serving.triton.server import Server

GATED = "wan_t2v_denoiser_high"
_ALL = 1 << 60
_MODEL = """
import os
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

GATE = Path({folder!r})


class TritonPythonModel:
    def initialize(self, args):
        self.calls = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        self.calls += 1
        (GATE / "calls.new").write_text(str(self.calls))
        os.replace(GATE / "calls.new", GATE / "calls")
        while self.calls > int((GATE / "allowed").read_text()):
            time.sleep(0.005)
        latents = pb_utils.get_input_tensor_by_name(request, "hidden_states").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("sample", np.zeros_like(latents))])
"""


@dataclass(frozen=True)
class Gate:
    """What the first denoiser waits at; shut at first."""

    folder: Path

    @property
    def calls(self) -> int:
        """Calls that came so far, the one that waits included."""
        return int((self.folder / "calls").read_text())

    @property
    def is_waited_at(self) -> bool:
        """True while a call waits."""
        return self.calls > self._allowed

    def let(self, calls: int) -> None:
        """Let so many calls pass, counted from now; one that waits is the first of them."""
        self._allow(self.calls - self.is_waited_at + calls)

    def open(self) -> None:
        """Let all pass."""
        self._allow(_ALL)

    @property
    def _allowed(self) -> int:
        return int((self.folder / "allowed").read_text())

    def _allow(self, calls: int) -> None:
        (self.folder / "allowed.new").write_text(str(calls))
        os.replace(self.folder / "allowed.new", self.folder / "allowed")  # noqa: PTH105 - one file for another


def gated(repository: Path, folder: Path, *, spares: bool = False) -> tuple[Path, Gate]:
    """Return a copy of a repository whose first denoiser waits at a gate, and the gate.

    Args:
        repository: of an export of `wan_t2v`.
        folder: new, for both.
        spares: whether the pipeline keeps the instances that hold waiting requests; without them, requests
            wait in Triton's queue.
    """
    copy = Path(shutil.copytree(repository, folder / "models"))
    gate = Gate(folder)
    (folder / "calls").write_text("0")
    gate._allow(0)
    if not spares:
        without_spares(copy / "wan_t2v" / "config.pbtxt")
    config = text_format.Parse((copy / GATED / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    config.backend = "python"
    for field in ("platform", "parameters", "model_warmup", "default_model_filename", "optimization"):
        config.ClearField(field)
    shutil.rmtree(copy / GATED)
    (copy / GATED / "1").mkdir(parents=True)
    (copy / GATED / "config.pbtxt").write_text(text_format.MessageToString(config))
    (copy / GATED / "1" / "model.py").write_text(_MODEL.format(folder=str(folder)))
    return copy, gate


def without_spares(file: Path) -> None:
    """Take the instances that hold waiting requests from a pipeline's config."""
    config = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    config.instance_group[0].count = int(config.parameters["concurrent_requests"].string_value)
    file.write_text(text_format.MessageToString(config))


def reports(server: Server) -> list[dict[str, Any]]:
    """What the log says of the requests to wan_t2v, in order."""
    return [report for report in logged(server, "adapter") if report["model"] == "wan_t2v"]


def ended(server: Server) -> list[dict[str, Any]]:
    """The reports of requests that have ended, however they did."""
    return [report for report in reports(server) if report["event"] not in ("started", "traceback")]


def settled(server: Server) -> set[str]:
    """Return the ids of the requests so far, once the log has the end of each; for when none is under way.

    It is written when an answer was sent, so a caller who was answered may look before.
    """
    deadline = time.monotonic() + 300
    while True:
        over = {report["request_id"] for report in ended(server)}
        begun = {report["request_id"] for report in reports(server)}
        if begun <= over:
            return begun
        assert time.monotonic() < deadline, f"no end of {begun - over}"
        time.sleep(0.02)


def let_it_notice(server: Server, gate: Gate, before: set[str]) -> dict[str, Any]:
    """Return the report of the request after these, which was told to end while it waits at the gate.

    A loop sees only between its steps that nobody wants it any more, and nothing tells when the server has
    heard so. So one step passes after the other, ever more slowly.
    """

    def found() -> dict[str, Any] | None:
        return next((report for report in ended(server) if report["request_id"] not in before), None)

    pause_s, deadline = 0.5, time.monotonic() + 300
    while (report := found()) is None:
        assert time.monotonic() < deadline, "the loop goes on"
        look_again = time.monotonic() + pause_s
        while found() is None and time.monotonic() < look_again:
            time.sleep(0.02)
        gate.let(1)
        pause_s = min(2 * pause_s, 8.0)
    gate.let(0)
    return report
