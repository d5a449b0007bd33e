"""Continuation of a video on another server, without input and output; shared by both clients.

A client gives every event of an attempt to :meth:`ContinuedGeneration.add`, the end of its stream to
:meth:`~ContinuedGeneration.end` and its error to :meth:`~ContinuedGeneration.fail`, and hands on what these
return. As long as the generation is not over, the client then makes another attempt, to the address of the
route. The attempt continues from the last whole state: the one with which a server that shuts down has
stopped, or the last checkpoint before a server failed. The states that the caller receives include the parts
of the result that were delivered before; a server receives its own state only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipway_client.generation import Generation
from slipway_client.results import Assembler, Checkpoint, Mark, Moved, Notice, Result, malformed
from slipway_client.server_list import Route
from slipway_client.states import StateParts, join_state
from slipway_serving.protocol.diffusion.stopping import (
    SHUTDOWN,
    Continued,
    DenoisingRequest,
    StatePart,
    Stopped,
)
from slipway_serving.protocol.errors import InvalidRequest, Malformed, NotReady, Overloaded, SlipwayError
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.protocol.snapshots.denoising_states import FIELD

UNAVAILABLE = "unavailable"
"""Reason of :class:`Moved` after a server failed, beside the reason "shutdown" of a stop."""
MOST_FAILURES = 3
"""Failures in a row without a new step after which a client gives up, since the request itself may be what
makes the servers fail."""
Output = Event | Result | Notice


@dataclass(frozen=True)
class _Position:
    """Position from which the next attempt continues.

    Attributes:
        state: State to send, the server's own; None sends the request as the caller made it.
        step: Number of finished steps.
        mark: Position behind the parts of the result that do not come again.
    """

    state: bytes | None
    step: int
    mark: Mark


class ContinuedGeneration:
    """Generation in one or more attempts, each of which continues the one before.

    Args:
        job: State of the request.
        route: Servers of the client; it leads to the server of the first attempt.
        on_part: Callback that receives each part of a result or a draft.

    Attributes:
        wait_s: Time to wait before the next attempt, in seconds.
        left_url: Address of a server whose connections must not take the next attempt; None if there is none.
        is_over: True if no further attempt follows.
        error: Error to raise after the last outputs; None if the generation ends without one.
    """

    def __init__(
        self,
        job: Generation,
        route: Route,
        on_part: Callable[[FramesPart | VideoPart], None] | None = None,
    ) -> None:
        self.job, self.route = job, route
        self._on_part = on_part
        self.wait_s = 0.0
        self.left_url: str | None = None
        self.is_over = False
        self.error: SlipwayError | None = None
        self._assembler = Assembler(job.request, job.model)
        _restore(self._assembler, job)
        self._parts = StateParts(job.model)
        self._position = _Position(None, 0, self._assembler.mark())
        # A whole state is passed on with the next event, which tells whether it belongs to a stop.
        self._checkpoint: Checkpoint | None = None
        self._stopped: Stopped | None = None
        # The state of a stop that the caller has not seen, because the client moves the video.
        self._held: Stopped | None = None
        # The server that was left and the reason, until another server works on the request.
        self._departure: tuple[str, str] | None = None
        self._step = self._farthest_step = 0
        self._failures = 0
        self._repeated = self._moves = 0
        self._same_engine = True

    def add(self, event: Event) -> list[Output]:
        """Add an event, and return what the caller receives.

        Raises:
            Malformed: The event contradicts an earlier one.
        """
        outputs = self._report_move()
        if isinstance(event, StatePart):
            if (state := self._parts.add(event)) is not None:
                outputs += self._take_checkpoint()
                self._keep(state)
            return outputs
        if isinstance(event, Stopped):
            self._stopped = self._with_state(event)
            return outputs
        outputs += self._take_checkpoint()
        if isinstance(event, Continued):
            self._begin_at(event)
        elif isinstance(event, Progress) and event.phase is None:
            self._step = event.step
        complete = self._assembler.add(event)
        if self._on_part is not None and isinstance(event, FramesPart | VideoPart):
            self._on_part(event)
        return outputs if complete is None else [*outputs, complete]

    def end(self) -> list[Output]:
        """Return what the caller receives at the end of an attempt's stream.

        Raises:
            Malformed: The stream has no whole result.
        """
        outputs = self._take_checkpoint()
        stopped, self._stopped = self._stopped, None
        if stopped is None:
            results = self._assembler.results()
            self.is_over = True
            return [*outputs, *map(self._complete, results)]
        if stopped.stop_reason == SHUTDOWN and self._may_move():
            self._held = stopped
            self._leave(SHUTDOWN)
            self.job.begin_again()
            self.wait_s = 0.0
            return outputs
        self.is_over = True
        try:
            drafts = self._assembler.drafts()
        except Malformed as error:
            # The caller receives the state all the same.
            drafts, self.error = [], error
        return [*outputs, *map(self._complete, drafts), stopped]

    def fail(self, error: SlipwayError) -> list[Output]:
        """Return what the caller receives after an attempt failed, and prepare the next attempt, if any."""
        if self._stopped is not None:  # The connection broke after the last event.
            return self.end()
        outputs = self._take_checkpoint()
        has_begun = self.job.has_begun
        try:
            self.wait_s = self.job.wait_s(error, can_repeat=has_begun and self._can_repeat())
        except SlipwayError as final:
            return [*outputs, *self._give_up(final)]
        if has_begun:
            self._leave(UNAVAILABLE)
        else:
            self.left_url = None
            self.route.advance()
        return outputs

    def _keep(self, state: Checkpoint) -> None:
        """Keep a whole state to continue from."""
        delivered = self._assembler.delivered()
        self._checkpoint = replace(state, state=join_state(state.state, delivered, self.job.model))
        wanted = getattr(self.job.request, "stop_after_step", None)
        # A server refuses to continue from a state at which the video was to stop.
        if wanted is None or state.step < wanted:
            self._position = _Position(state.state, state.step, self._assembler.mark())
            self._held = None

    def _with_state(self, event: Stopped) -> Stopped:
        state, self._checkpoint = self._checkpoint, None
        if state is None or state.step != event.stopped_step:
            got = "none" if state is None else f"that after step {state.step}"
            raise malformed(
                self.job.model, f"a stop must follow the state after step {event.stopped_step}, got {got}"
            )
        return replace(event, state=state.state)

    def _take_checkpoint(self) -> list[Output]:
        checkpoint, self._checkpoint = self._checkpoint, None
        return [] if checkpoint is None else [checkpoint]

    def _begin_at(self, event: Continued) -> None:
        self._step = event.continued_step
        self._same_engine = self._same_engine and event.same_engine
        if self._position.state is None:  # The request of the caller continues a video itself.
            self._position = replace(self._position, step=event.continued_step)

    def _report_move(self) -> list[Output]:
        """Return the notice of a move when the new server has begun to work."""
        if self._departure is None or not self.job.has_begun:
            return []
        (url, reason), self._departure = self._departure, None
        self._moves += 1
        return [Moved(url, self.route.url, self._position.step, reason)]

    def _may_move(self) -> bool:
        return (
            isinstance(self.job.request, DenoisingRequest)
            and self.route.has_another
            and not self.job.is_stopping
        )

    def _can_repeat(self) -> bool:
        """Return True if the video may be continued from its last state after a failure of its server."""
        if getattr(self.job.request, "checkpoint_every_steps", None) is None:
            return False
        self._failures = 0 if self._step > self._farthest_step else self._failures + 1
        self._farthest_step = max(self._farthest_step, self._step)
        return self._failures < MOST_FAILURES

    def _leave(self, reason: str) -> None:
        """Go back to the last whole state, for an attempt on the next server."""
        position = self._position
        self._repeated += max(0, self._step - position.step)
        self.job.continue_from(position.state, self._step)
        self._assembler.rewind(position.mark)
        self._parts.clear()
        self._step = position.step
        self.left_url = self.route.url
        self._departure = self.route.url, reason
        self.route.advance()

    def _give_up(self, error: SlipwayError) -> list[Output]:
        """End with an error, or with the state of a stop if nobody has taken it over."""
        self.is_over = True
        is_refused = self._departure is not None and isinstance(error, NotReady | Overloaded)
        if self._held is None or not is_refused:
            self.error = error
        return [] if self._held is None else [self._held]

    def _complete(self, result: Result) -> Result:
        return replace(
            result, steps_repeated=self._repeated, moves=self._moves, same_engine=self._same_engine
        )


def _restore(assembler: Assembler, job: Generation) -> None:
    """Add the parts that the state of a request has, before the first attempt."""
    try:
        assembler.restore(job.delivered)
    except Malformed as error:
        reason = str(error).removeprefix(f"{job.model}: ").partition(";")[0]
        raise InvalidRequest(
            f"{job.model}: {FIELD} must have delivered parts of one video, got others ({reason})"
        ) from None
