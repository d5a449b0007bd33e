"""What became of each request, as its user saw it.

A :class:`Watch` is put around a request: events go through :meth:`Watch.see`, and its end is an
:class:`Outcome`. Latency counts from the moment at which the request was due, not from that at which it could
be sent, so that a queue in the client is not hidden.

Measures, seconds unless said otherwise:
  latency_s         from due to the whole answer
  lag_s             from due to being sent
  first_progress_s  from due to the first progress, or whatever came first
  step_s            of each denoising step, by the server's clock
  first_frame_s     from due to the first frames
  queue_s           what the latency is longer than the server's own account of the work; network included
  service_s         that account
  jitter_s          by how much the time between two blocks of a world differs from what the first lasts
  stall_s           how long a player's picture stood still before a block
  real_time_factor  seconds of video, sound or motion for each second of latency
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from slipway_serving.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
)
from slipway_serving.events import Event, Progress

# Several processes share one axis of time, and no step of the wall clock falls into a run.
_EPOCH_S = time.time() - time.monotonic()

ANSWERED, REJECTED, CANCELLED, UNANSWERED = "answered", "rejected", "cancelled", "unanswered"
FAILURES: Mapping[type[SlipwayError], str] = {
    Overloaded: REJECTED,
    NotReady: "unavailable",
    DeadlineExceeded: "expired",
    InvalidRequest: "refused",
    Cancelled: "cut off",
}
"""How a request ended, by the error; "failed" for any other."""


def now_s() -> float:
    """Return the time, seconds since the epoch; it never goes back."""
    return _EPOCH_S + time.monotonic()


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    Attributes:
        model: that was asked.
        due_s: when the request came, seconds since the epoch.
        ended_s: when it ended.
        ended: "answered", "cancelled" (by its user), "unanswered" (given up when the run ended), or one of
            :data:`FAILURES`.
        measures: see above; of an answered request only.
        said: the error's text.
    """

    model: str
    due_s: float
    ended_s: float
    ended: str
    measures: Mapping[str, tuple[float, ...]]
    said: str = ""


class Watch:
    """Measures one request from its sending to its end; an error of ours ends it and goes no further.

    Args:
        model: that is asked.
        due_s: when the request came.
        keep: takes the outcome.

    Attributes:
        outcome: of the request, once it has ended.
    """

    def __init__(self, model: str, due_s: float, keep: Callable[[Outcome], None]) -> None:
        self._model, self._due_s, self._keep = model, due_s, keep
        self._measures: defaultdict[str, list[float]] = defaultdict(list)
        self._server_s: float | None = None
        self._steps_s = 0.0
        self._cancelled = False
        self.outcome: Outcome | None = None

    def __enter__(self) -> Watch:
        self._sent_s = now_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, SlipwayError):
            return False  # the run ends, or a defect: no outcome of the server's
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
        """Measure the time since the request was due, the first time that this is said of a name."""
        if name not in self._measures:
            self.note(name, now_s() - self._due_s)

    def took(self, server_s: float) -> None:
        """Take note of what the server says the work took, seconds."""
        self._server_s = server_s

    def cancelled(self) -> None:
        """Take note that the user cancels it."""
        self._cancelled = True

    def see(self, event: Event) -> None:
        """Take note of an event as it comes."""
        self.once("first_progress_s")
        elapsed_s = getattr(event, "elapsed_s", None)
        if isinstance(event, Progress):
            self.note("step_s", event.elapsed_s - self._steps_s)
            self._steps_s = event.elapsed_s
        elif elapsed_s is not None:
            self.once("first_frame_s")
        if elapsed_s is not None:
            self.took(elapsed_s)
