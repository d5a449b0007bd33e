"""A scripted server for `slipway generate` and `slipway continue`, and the states that it answers with."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import slipway_client
from slipway_cli import root
from slipway_client import ContactSheet, Stopped, Video
from slipway_serving.diffusion.videos.states import request_values
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin

Events = Iterator[Any]
Script = Callable[[DenoisingRequest, threading.Event], Events]
WAN = TextToVideoRequest("a lake", frames=17, height=64, width=64, steps=8, seed=3, stop_after_step=3)
FRAMES = np.zeros((17, 64, 64, 3), np.uint8)
VIDEO = Video(b"mp4", 1.0)


def state_of(request: DenoisingRequest, step: int = 3) -> bytes:
    kept = {"latents": np.zeros((1, 16, 5, 8, 8), np.float32)}
    values = request_values(request)
    return DenoisingState(request.model, Origin("c", "f", {}), values, "step", step, 8, kept).to_bytes()


def sheet(width: int = 90, height: int = 60) -> ContactSheet:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "blue").save(file, "PNG")
    return ContactSheet(file.getvalue(), 3)


def stopped(reason: str = "step", step: int = 3) -> Stopped:
    return Stopped(reason, step, 8, state_of(WAN, step))


class Server:
    """Stands in for the client: answers each request with a script, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.parameters: dict[str, str] = {}
        self.script: Script = lambda request, stop: iter([VIDEO])

    def __call__(self, url: str, protocol: str, *, tls: Path | None = None) -> Server:
        self.url = url
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def model_parameters(self, _: str) -> dict[str, str]:
        return self.parameters

    def generate(self, request: DenoisingRequest, *, stop: threading.Event | None = None) -> Events:
        self.requests.append(request)
        assert stop is not None
        yield from self.script(request, stop)


def served(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Server:
    """Put a scripted server in the client's place, and let commands run in a folder."""
    found = Server()
    monkeypatch.setattr(slipway_client, "Client", found)
    monkeypatch.chdir(folder)
    return found


def generate(*flags: str) -> int:
    size = ["--frames", "17", "--size", "64x64", "--steps", "8", "--seed", "3"]
    return root.run(["generate", "wan_t2v", "a lake", *size, "--url", "grpc://server:8001", *flags])


def continue_video(*flags: str) -> int:
    return root.run(["continue", *flags, "--url", "grpc://server:8001"])
