"""Peers that answer requests for videos by a script: events, states in parts, and errors in their order."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from counting_peer import Asked, Peer, counting_peer
from either_client import Sync

from slipway_client import ContactSheet, Continued, Progress, RetryPolicy, Stopped, TextToVideoRequest
from slipway_client.tensors import Tensors, datatype_of
from slipway_serving.protocol.diffusion.stopping import StatePart
from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.protocol.events import Event, FramesPart, VideoPart, as_base64, tensors, to_wire_form
from slipway_serving.protocol.requests import encode
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin

PROMPT = "a lake"
QUICK = RetryPolicy(budget_s=60, base_s=0.001, max_s=0.002)
SHORT = RetryPolicy(budget_s=0.05, base_s=0.001, max_s=0.002)
Item = Event | SlipwayError | Callable[[], object]


def state(step: int, reason: str = "", model: str = "wan_t2v", **fields: Any) -> DenoisingState:
    """Return a state of a video of four steps."""
    values = {"prompt": PROMPT, "steps": 4, "seed": 7, "output": "frames", "priority": "low", **fields}
    return DenoisingState(model, Origin("weights", "files"), values, reason, step, 4, {"step": step})


STATES = {step: [*state(step).parts()] for step in range(5)}
"""Parts of states, by their steps. Each state has another name, so equal bytes mean the same state."""


def state_bytes(step: int) -> bytes:
    return b"".join(STATES[step])


def sent_state(step: int) -> list[Item]:
    """Return the events that carry a state, cut into two parts of no meaning."""
    data = state_bytes(step)
    pieces = [data[:100], data[100:]]
    return [StatePart(piece, number, 2, step) for number, piece in enumerate(pieces)]


def stopped(step: int, reason: str) -> list[Item]:
    """Return the events at the end of a stopped video."""
    return [*sent_state(step), Stopped(reason, step, 4)]


def steps(*numbers: int) -> list[Item]:
    return [Progress(number, 4, 0.5) for number in numbers]


def continued(step: int, same_engine: bool = True) -> Continued:
    return Continued(step, same_engine, "engines")


def part(data: bytes, first: int, total: int = 4, **more: Any) -> VideoPart:
    """Return a fragment of a video of two frames a fragment."""
    return VideoPart(
        first // 2, None, 1.5, data, first_frame=first, part_frames=2, frames_total=total, **more
    )


WHOLE: list[Item] = [part(b"ab", 0), part(b"cd", 2)]
SHEET = ContactSheet(b"png", 2)


class Script:
    """Answers of a peer: one list of items for each request, in their order.

    Args:
        runs: Events to send, errors that end an answer, and functions to call between them.
    """

    def __init__(self, *runs: Iterable[Item]) -> None:
        self.runs = [list(run) for run in runs]
        self.as_text = False

    def __call__(self, asked: Asked) -> Iterator[Tensors]:
        # The last run is repeated, for peers that always do the same.
        for item in self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]:
            if isinstance(item, SlipwayError):
                raise item
            if isinstance(item, Event):
                yield self._wire(item)
            else:
                item()

    def _wire(self, event: Event) -> Tensors:
        if self.as_text and isinstance(event, VideoPart):
            event = VideoPart(**{**vars(event), "video": as_base64(event.video)})
        if self.as_text and isinstance(event, FramesPart):
            event = event.as_text()
        return {n: to_wire_form(array, as_text=self.as_text) for n, array in tensors(event).items()}


def request(**fields: Any) -> TextToVideoRequest:
    return TextToVideoRequest(prompt=PROMPT, steps=4, seed=7, **fields)


EVERYTHING = request(
    timeout_s=9.0, checkpoint_every_steps=1, stop_after_step=1, draft="video", continue_from=state_bytes(1),
    steps_seen=1,
)  # fmt: skip
INPUTS = {name: (datatype_of(array), list(array.shape)) for name, array in encode(EVERYTHING).items()}


@dataclass
class Fleet:
    """Peers of one protocol and a client of either kind.

    Attributes:
        protocol: Protocol of the peers.
        asynchronous: Whether the client is the one for asyncio.
        peers: The peers in the order of their addresses.
        urls: Their addresses.
        ask: The client.
    """

    protocol: str
    asynchronous: bool
    stack: ExitStack
    peers: list[Peer] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    ask: Any = None

    def start(self, *scripts: Script, retry: RetryPolicy = QUICK) -> Fleet:
        """Start a peer for each script, and a client of all of them."""
        for script in scripts:
            self.add(script)
        self.connect(",".join(self.urls), retry)
        return self

    def add(self, script: Script) -> Peer:
        script.as_text = self.protocol == "http"
        peer = Peer(script, {"wan_t2v": INPUTS})
        peer.ready.add("wan_t2v")
        self.peers.append(peer)
        self.urls.append(self.stack.enter_context(counting_peer(self.protocol, peer)))
        return peer

    def connect(self, url: str, retry: RetryPolicy = QUICK) -> None:
        self.ask = Sync(url, self.asynchronous, retry)
        self.stack.callback(self.ask.close)

    def until_error(self, sent: TextToVideoRequest, **named: Any) -> tuple[list[Any], SlipwayError | None]:
        """Return what `generate` yields, and the error with which it ends."""
        events, found = self.ask.client.generate(sent, **named), []
        while True:
            try:
                found.append(self.ask.next(events))
            except (StopIteration, StopAsyncIteration):
                return found, None
            except SlipwayError as error:
                return found, error


def sent_fields(asked: Asked) -> dict[str, Any]:
    """Return the values of a request, whatever protocol carried them."""
    found = {}
    for name, (value,) in asked.values.items():
        text = value.encode() if isinstance(value, str) else value
        if name == "continue_from" and not text.startswith(b"\x93"):
            text = base64.b64decode(text)
        found[name] = text
    return found


@contextlib.contextmanager
def service(ports: list[int]) -> Iterator[int]:
    """Yield the port of a service: each new connection is passed on to the first port of a list.

    Args:
        ports: Ports of the servers behind it; the caller may change the list.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", ports[0]))
                ends.extend((caller, server))
                for pair in ((caller, server), (server, caller)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        for each in (listener, *ends):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
