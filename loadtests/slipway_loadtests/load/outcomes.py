"""Outcome and measures of each request, as its user saw them.

A :class:`RequestObserver` wraps a request: events pass through :meth:`RequestObserver.see`, and the end of
the request yields an :class:`Outcome`. Latency counts from the time at which the request was due, not from
the time at which it was sent, so that a queue in the client is not hidden.

Measures, in seconds unless stated otherwise:
  latency_s         from due to the complete answer
  lag_s             from due to sent
  first_progress_s  from due to the first progress, or to the first event of any kind
  step_s            duration of each denoising step, by the server's clock
  first_frame_s     from due to the first frames
  queue_s           time from sent to the answer minus service_s; includes the network
  service_s         duration of the work as the server reports it
  jitter_s          difference between the time between two blocks of a world and the length of the first
  stall_s           time for which a player's picture stood still before a block
  real_time_factor  seconds of video, sound or motion per second of latency
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
)
from slipway_serving.protocol.events import Event, Progress

# Several processes need a common time axis, and a step of the wall clock must not affect a run.
_EPOCH_S = time.time() - time.monotonic()

ANSWERED, REJECTED, CANCELLED, UNANSWERED = "answered", "rejected", "cancelled", "unanswered"
FAILURES: Mapping[type[SlipwayError], str] = {
    Overloaded: REJECTED,
    NotReady: "unavailable",
    DeadlineExceeded: "expired",
    InvalidRequest: "refused",
    Cancelled: "cut off",
}
"""Name of a request's end by type of error; any other error is "failed"."""


def now_s() -> float:
    """Return the time in seconds since the epoch; it never goes back."""
    return _EPOCH_S + time.monotonic()


@dataclass(frozen=True)
class Outcome:
    """Outcome of one request.

    Attributes:
        model: Model that served the request.
        due_s: Time at which the request was due, in seconds since the epoch.
        ended_s: Time at which it ended, in seconds since the epoch.
        ended: Name of its end: "answered", "cancelled" (by its user), "unanswered" (abandoned when the run
            ended), or one of :data:`FAILURES`.
        measures: Values by measure, as the module describes them; empty unless the request was answered.
        said: Text of the error.
    """

    model: str
    due_s: float
    ended_s: float
    ended: str
    measures: Mapping[str, tuple[float, ...]]
    said: str = ""


class RequestObserver:
    """Measures one request from sending to its end; suppresses a Slipway error, which becomes the outcome.

    Args:
        model: Model that serves the request.
        due_s: Time at which the request was due, in seconds since the epoch.
        keep: Callback that receives the outcome.

    Attributes:
        outcome: Outcome of the request; None until it has ended.
    """

    def __init__(self, model: str, due_s: float, keep: Callable[[Outcome], None]) -> None:
        self._model, self._due_s, self._keep = model, due_s, keep
        self._measures: defaultdict[str, list[float]] = defaultdict(list)
        self._server_s: float | None = None
        self._steps_s = 0.0
        self._cancelled = False
        self.outcome: Outcome | None = None

    def __enter__(self) -> RequestObserver:
        self._sent_s = now_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, SlipwayError):
            return False  # the run is ending, or there is a defect: neither is an outcome of the server
        ended_s, ended, said = now_s(), ANSWERED, ""
        if error is not None:
            ended, said = FAILURES.get(type(error), "failed"), str(error)
            ended = next((name for cls, name in FAILURES.items() if isinstance(error, cls)), ended)
        elif self._cancelled:
            ended = CANCELLED
        if ended == ANSWERED:
            self.note("latency_s", ended_s - self._due_s)
            self.note("lag_s", self._sent_s - self._due_s)
            if self._server_s is not None:
                self.note("service_s", self._server_s)
                self.note("queue_s", max(ended_s - self._sent_s - self._server_s, 0.0))
        measures = (
            {name: tuple(values) for name, values in self._measures.items()} if ended == ANSWERED else {}
        )
        self.outcome = Outcome(self._model, self._due_s, ended_s, ended, measures, said)
        self._keep(self.outcome)
        return True

    def note(self, name: str, value: float) -> None:
        """Add a value to a measure."""
        self._measures[name].append(value)

    def once(self, name: str) -> None:
        """Record the time since the request was due, on the first call for a measure only."""
        if name not in self._measures:
            self.note(name, now_s() - self._due_s)

    def took(self, server_s: float) -> None:
        """Record how long the work took according to the server, in seconds."""
        self._server_s = server_s

    def cancelled(self) -> None:
        """Record that the user cancels the request."""
        self._cancelled = True

    def see(self, event: Event) -> None:
        """Record an event when it arrives."""
        if isinstance(event, Progress) and event.phase is not None:
            return  # The request waits, and no step was done.
        self.once("first_progress_s")
        elapsed_s = getattr(event, "elapsed_s", None)
        if isinstance(event, Progress):
            self.note("step_s", event.elapsed_s - self._steps_s)
            self._steps_s = event.elapsed_s
        elif elapsed_s is not None:
            self.once("first_frame_s")
        if elapsed_s is not None:
            self.took(elapsed_s)
