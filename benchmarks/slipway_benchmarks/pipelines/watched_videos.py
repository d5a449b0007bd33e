"""One request for a video as its caller sees it: when each step ended, when all ended, and the state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from slipway_client import Progress
from slipway_serving.protocol.diffusion.stopping import StatePart, Stopped
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import Event


@dataclass(frozen=True)
class WatchedVideo:
    """Times of one request, all on one clock, in seconds, and its state.

    Attributes:
        sent_s: Time at which the request was sent.
        step_ends_s: Times at which the notices of finished steps arrived.
        ended_s: Time of the last event.
        stopped_step: Number of finished steps at the stop; None if the video was finished.
        state: Last state that came as a whole; None if there was none.
        cpu_s: CPU time of the server's processes meanwhile; 0 if it was not read.
    """

    sent_s: float
    step_ends_s: tuple[float, ...]
    ended_s: float
    stopped_step: int | None = None
    state: bytes | None = None
    cpu_s: float = 0.0

    @property
    def whole_s(self) -> float:
        """Time from sending the request to its last event."""
        return self.ended_s - self.sent_s

    @property
    def first_step_s(self) -> float:
        """Time from sending the request to the end of its first step."""
        return self.step_ends_s[0] - self.sent_s

    @property
    def steps_s(self) -> tuple[float, ...]:
        """Times of the steps after the first one."""
        return tuple(later - earlier for earlier, later in pairwise(self.step_ends_s))

    @property
    def between_steps_s(self) -> float:
        """Time from the end of the first step to the end of the last one."""
        return self.step_ends_s[-1] - self.step_ends_s[0]

    @property
    def after_steps_s(self) -> float:
        """Time from the end of the last step to the last event."""
        return self.ended_s - self.step_ends_s[-1]


def watch_video(events: Iterable[Event], clock: Callable[[], float] = time.perf_counter) -> WatchedVideo:
    """Receive the events of a request to their end.

    Args:
        events: Events of the request, which is sent when the first one is asked for.
        clock: Clock, in seconds.

    Raises:
        Unrecoverable: Parts of a state are missing, or no step was reported.
    """
    sent_s = ended_s = clock()
    ends_s: list[float] = []
    parts: list[bytes] = []
    state, stopped_step = None, None
    for event in events:
        ended_s = clock()
        if isinstance(event, Progress) and event.phase is None:
            ends_s.append(ended_s)
        elif isinstance(event, StatePart):
            # Part 0 begins the next state.
            parts = [] if event.state_part == 0 else parts
            if event.state_part != len(parts):
                raise Unrecoverable(f"bench: part {len(parts)} of a state must come, got {event.state_part}")
            parts.append(event.state)
            state = b"".join(parts) if len(parts) == event.state_parts else state
        elif isinstance(event, Stopped):
            stopped_step = event.stopped_step
    if not ends_s:
        raise Unrecoverable("bench: a request for a video must report its steps, got none")
    return WatchedVideo(sent_s, tuple(ends_s), ended_s, stopped_step, state)
