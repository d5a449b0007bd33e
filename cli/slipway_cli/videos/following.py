"""One request for a video from its sending to its end or its stop.

The events of the client are sorted: progress and moves are reported to people, states are written to the
state file as they arrive, and results and the draft are returned.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_cli.videos.files import continue_hint
from slipway_cli.videos.interrupts import stop_on_interrupt
from slipway_client.progress import Report, Say
from slipway_serving.protocol.diffusion.stopping import (
    ASKED,
    CALLER,
    ContactSheet,
    Continued,
    DenoisingRequest,
    Stopped,
)
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, NotReady, SlipwayError, Unrecoverable
from slipway_serving.protocol.events import SET_ASIDE, WAITING, Progress

if TYPE_CHECKING:
    from slipway_client import Client

_PHASES = {
    WAITING: "waiting: requests of the same or a higher priority have all slots of the server",
    SET_ASIDE: "set aside: a more urgent request has its slot; the video goes on after it",
}


@dataclass
class Followed:
    """Events of one request, sorted.

    Attributes:
        results: Results and other events that belong to the answer, in their order.
        stopped: Notice of the stop; None for a finished video.
        draft: :class:`ContactSheet`, video or frames that were predicted at the stop; None without one.
        saved_step: Number of steps that the last written state comes after; None if none was written.
        step: Number of finished steps.
        moves: Number of times that the client continued elsewhere.
        steps_repeated: Number of steps that were done again after a move.
        same_engine: False if another engine than the one that made the state continued the video.
    """

    results: list[Any] = field(default_factory=list)
    stopped: Stopped | None = None
    draft: Any = None
    saved_step: int | None = None
    step: int = 0
    moves: int = 0
    steps_repeated: int = 0
    same_engine: bool = True


def follow(
    client: Client, request: DenoisingRequest, state_file: Path | None, report: Report, say: Say
) -> Followed:
    """Send a request and follow it to its end or its stop.

    Args:
        client: Client of the server.
        request: Request to send.
        state_file: File for each state that arrives. With it, the first Ctrl-C stops the video.
        report: Callback for the number of finished steps and of all steps.
        say: Callback for sentences to people.

    Raises:
        Cancelled: Ctrl-C stopped the video and its state is written, or the work was cancelled.
        NotReady: The server shut down and there is no other one, or no server answers.
        SlipwayError: The request failed, as in :meth:`slipway_client.Client.generate`. The message names the
            state file if a state was written before.
    """
    found = Followed()
    stop = threading.Event()
    sorter = _Sorter(found, state_file, report, say)
    try:
        if state_file is None:
            sorter.read(client, request, stop)
        else:
            sentence = f"stopping after this step; the state goes to {state_file}; Ctrl-C again cancels"
            with stop_on_interrupt(stop, sentence, say):
                sorter.read(client, request, stop)
    except KeyboardInterrupt:
        cancelled = Cancelled(f"{request.model}: cancelled, here and on the server")
        raise _with_state(cancelled, found, state_file) from None
    except SlipwayError as error:
        if found.saved_step is None or isinstance(error, InvalidRequest):
            raise
        raise _with_state(error, found, state_file) from error
    _check_stop(found, request.model, client.url, state_file)
    return found


def _with_state(error: SlipwayError, found: Followed, state_file: Path | None) -> SlipwayError:
    """Return an error that also says where the last state is, if one was written."""
    if state_file is None or found.saved_step is None:
        return error
    return type(error)(f"{error}; after step {found.saved_step}, {continue_hint(state_file)}")


def _check_stop(found: Followed, model: str, url: str, state_file: Path | None) -> None:
    """Raise an error if the video was stopped for another reason than `stop_after_step`."""
    stopped = found.stopped
    if stopped is None:
        return
    if state_file is not None and found.saved_step != stopped.stopped_step:
        raise Unrecoverable(
            f"{model}: a stopped video must come with its state, got none; see the server's log"
        )
    if stopped.stop_reason == ASKED:
        return
    after = f"step {stopped.stopped_step} of {stopped.steps}"
    if stopped.stop_reason == CALLER:
        hint = f"; {continue_hint(state_file)}" if state_file is not None else ""
        raise Cancelled(f"{model}: stopped after {after}{hint}")
    if state_file is None:
        raise NotReady(
            f"{model}: {url} shut down and stopped the video after {after}, and its state was not kept; try"
            " --state state.slipway, or --url with several addresses"
        )
    raise NotReady(
        f"{model}: {url} shut down and stopped the video after {after}; {continue_hint(state_file)}"
    )


@dataclass
class _Sorter:
    """Sort the events of a request into a :class:`Followed`."""

    found: Followed
    state_file: Path | None
    report: Report
    say: Say
    phase: str | None = None

    def read(self, client: Client, request: DenoisingRequest, stop: threading.Event) -> None:
        """Read all events of a request."""
        with closing(client.generate(request, stop=stop)) as events:
            for event in events:
                self.add(event)

    def add(self, event: Any) -> None:
        """Add one event."""
        from slipway_client import Checkpoint, Moved

        found = self.found
        match event:
            case Progress():
                self._add_progress(event)
            case Checkpoint():
                self._write_state(event.state, event.step)
            case Stopped():
                found.stopped = event
                if event.state is not None:
                    self._write_state(event.state, event.stopped_step)
            case Moved():
                self._add_move(event)
            case Continued():
                found.same_engine = found.same_engine and event.same_engine
                if not event.same_engine:
                    self.say(
                        f"another engine continues after step {event.continued_step} ({event.engines}), so"
                        " the video is close to an uninterrupted one and not equal to it"
                    )
            case ContactSheet():
                found.draft = event
            case _ if getattr(event, "draft_step", None) is not None:
                found.draft = event
            case _:
                found.results.append(event)

    def _add_progress(self, event: Progress) -> None:
        if event.phase != self.phase and event.phase is not None:
            self.say(_PHASES.get(event.phase, event.phase))
        self.phase = event.phase
        if event.phase is None:
            self.found.step = event.step
            self.report(event.step, event.steps)

    def _add_move(self, event: Any) -> None:
        found = self.found
        repeated = max(0, found.step - event.step)
        found.moves += 1
        found.steps_repeated += repeated
        found.step = event.step
        place = f"on {event.to_url}" if event.to_url != event.from_url else f"on {event.to_url} again"
        again = f"; {repeated} steps are computed again" if repeated else ""
        cause = "shuts down" if event.reason == "shutdown" else "does not answer any more"
        self.say(f"{event.from_url} {cause}; the video continues {place} after step {event.step}{again}")

    def _write_state(self, state: bytes, step: int) -> None:
        from slipway_client.states import write_state

        if self.state_file is not None:
            write_state(self.state_file, state)
            self.found.saved_step = step
