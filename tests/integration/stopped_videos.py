"""Videos that are stopped and continued, in process or on servers, and their undisturbed equals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_exports import exported_once

from slipway_client import Client
from slipway_serving.protocol.diffusion.stopping import Continued, DenoisingRequest, StatePart, Stopped
from slipway_serving.protocol.events import Event, FramesPart, Progress, read
from slipway_serving.protocol.requests import encode
from slipway_serving.runtime.in_process import InProcessModels, read_config
from slipway_serving.runtime.program import Call, Program, Settings, load_program

EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 5.0}


@dataclass
class Answer:
    """What a server sent for one request.

    Attributes:
        frames: Frames by their index in the video; later ones replace earlier ones.
        state: Last state, all parts joined.
        steps: Numbers of the steps that were done, in order.
        stopped: Notice of a stop.
        continued: Notice that a state was continued.
        cache_hit_rate: Share of the evaluations that reused the first-block cache.
        events: All other events.
    """

    frames: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    state: bytes = b""
    steps: list[int] = field(default_factory=list)
    stopped: Stopped | None = None
    continued: Continued | None = None
    cache_hit_rate: float | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def video(self) -> NDArray[np.uint8]:
        return np.stack([self.frames[index] for index in sorted(self.frames)])


def answer_of(events: Iterable[Event]) -> Answer:
    """Collect the events of one request."""
    found = Answer()
    for event in events:
        match event:
            case StatePart():
                found.state = (b"" if event.state_part == 0 else found.state) + event.state
            case FramesPart(draft_step=None):
                found.cache_hit_rate = event.cache_hit_rate
                for index, frame in enumerate(event.pixels, event.first_frame):
                    found.frames[index] = frame
            case Progress(phase=None):
                found.steps.append(event.step)
            case Stopped():
                found.stopped = event
            case Continued():
                found.continued = event
            case _:
                found.events.append(event)
    return found


class LocalPipeline:
    """A pipeline of a repository that runs in this process, as Triton would run it."""

    def __init__(self, repository: Path, request: type[DenoisingRequest]) -> None:
        self.models = InProcessModels(repository, threads=1)
        folder = repository / request.model
        self._program: Program = load_program(Settings(request.model, folder / "1", read_config(folder)))

    def run(self, request: DenoisingRequest) -> Answer:
        return answer_of(
            read(request.events, tensors, request.model)
            for tensors in self._program.run(Call(encode(request), self.models))
        )

    def close(self) -> None:
        self._program.close()
        self.models.close()


def served(client: Client, request: DenoisingRequest) -> Answer:
    """Send a request to a server, and collect its events as they came."""
    return answer_of(client.stream(request))


def in_pieces(run: Any, request: DenoisingRequest, stops: Iterable[int]) -> Answer:
    """Return the answer to a request that is stopped after each of some steps and continued.

    Args:
        run: Function that answers a request, or an iterator of one function for each piece.
        request: Request without a stop.
        stops: Numbers of steps in ascending order.
    """
    runs = run if hasattr(run, "__next__") else iter(lambda: run, None)
    whole, state = Answer(), None
    for stop in (*stops, None):
        piece = next(runs)(replace(request, stop_after_step=stop, continue_from=state))  # type: ignore[type-var]
        assert (piece.stopped is None) == (stop is None), piece
        if piece.stopped is not None:
            assert (piece.stopped.stop_reason, piece.stopped.stopped_step) == ("step", stop)
        whole.frames |= piece.frames
        whole.steps += piece.steps
        whole.cache_hit_rate = piece.cache_hit_rate
        state = piece.state
    return whole


def equal(first: Answer, second: Answer) -> bool:
    """Whether two answers have the same frames to the bit, took the same steps once, and hit as often."""
    counts = [(each.steps, each.cache_hit_rate) for each in (first, second)]
    return counts[0] == counts[1] and np.array_equal(first.video, second.video)


def with_scheduler(repository: Path, target: Path, scheduler: dict[str, Any]) -> Path:
    """Copy a repository of wan_t2v, whose pipeline takes another scheduler."""
    shutil.copytree(repository, target)
    facts = target / "wan_t2v" / "1" / "pipeline.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"scheduler": scheduler}))
    return target


def cached_export(shared: Path, checkpoint: Path) -> Path:
    """Return the tiny repository with a first-block cache, made once for a test run. Read only."""
    return exported_once(shared, "wan_t2v", str(checkpoint), variant="first-block-cache")[0]
