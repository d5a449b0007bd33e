"""Program of a pipeline that denoises videos: slots, stops, checkpoints and continuing, for every family.

A request waits for a slot, by priority. Its video is then worked on step by step
(:mod:`slipway_serving.diffusion.videos.loop`). At each boundary between two steps the program decides whether
the video goes on, is stopped (its own `stop_after_step`, its caller, or a server that shuts down), or is set
aside for a more urgent request. The family adds :meth:`VideoProgram.make_video`.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch

from slipway_serving.diffusion.videos.checkpoints import Checkpoints, state_parts
from slipway_serving.diffusion.videos.drafts import draft_events
from slipway_serving.diffusion.videos.loop import Boundary, denoise_video
from slipway_serving.diffusion.videos.set_aside import SetAsideState
from slipway_serving.diffusion.videos.states import (
    changed_conditions,
    check_origin,
    continued_request,
    engines_text,
    read_origin,
    request_values,
)
from slipway_serving.diffusion.videos.video import DenoisedVideo, Tools
from slipway_serving.protocol.diffusion.stopping import (
    ASKED,
    CALLER,
    PRIORITIES,
    SHUTDOWN,
    Continued,
    DenoisingRequest,
    Stopped,
)
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, raise_all
from slipway_serving.protocol.events import SET_ASIDE, WAITING, Event, Progress, tensors
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import (
    CONTINUATIONS,
    DENOISE_STEP,
    FRAMES,
    REQUESTS_CONTINUED,
    REQUESTS_MOVED,
    REQUESTS_SET_ASIDE,
    REQUESTS_STOPPED,
    REQUESTS_WAITING,
    STEPS_REPEATED,
)
from slipway_serving.runtime.program import Call, Responses, Settings
from slipway_serving.runtime.shutdown import AdmissionGate, is_stopping
from slipway_serving.runtime.slots.slots import Slot, Slots
from slipway_serving.system.process_state import NO_PROCESS_STATE
from slipway_serving.system.server_folder import runtime_folder

R = TypeVar("R", bound=DenoisingRequest)

_POLL_S = 0.02
# A waiting caller hears that often that its request still waits.
_NOTICE_S = 5.0
_HELD_FOLDER = "set-aside"


class VideoProgram(ABC, Generic[R]):
    """Program that answers the requests of one family for videos.

    Attributes:
        request: Class of the requests.
    """

    reports_requests = True
    request: ClassVar[type[DenoisingRequest]]

    def __init__(self, settings: Settings) -> None:
        # The scheduler needs little arithmetic, so the cores are left to the networks.
        torch.set_num_threads(1)
        self._model = settings.model
        self._folder = settings.folder
        self._recorder = settings.recorder
        self._recorder.declare(DENOISE_STEP, FRAMES, *CONTINUATIONS)
        self._slots = Slots.from_settings(settings)
        self._is_served = settings.process_state is not NO_PROCESS_STATE
        self._gate = AdmissionGate(self._model, is_pipeline=True)
        # Each instance publishes the number of all, so it does not matter whose value is read.
        self._recorder.register_gauge(REQUESTS_WAITING, self._slots.count_waiting)

    @abstractmethod
    def make_video(self, request: R, tools: Tools) -> DenoisedVideo:
        """Return the video of a request, before any work.

        Raises:
            InvalidRequest: The request does not fit the exported models.
        """

    @property
    def defaults(self) -> Mapping[str, int | float]:
        """Values of fields that a request leaves out, where the checkpoint has its own; none by default."""
        return {}

    def run(self, call: Call) -> Responses:
        """Yield the responses to a request: progress, then the result, or a state and notice of a stop."""
        request, state = continued_request(self.request, call.tensors, self._model, self.defaults)
        limit_s = getattr(request, "timeout_s", None)
        interruption = Interruption(
            self._model, call.is_cancelled, call.limit_s if limit_s is None else limit_s
        )
        job = _Job(self, request, call, interruption)
        with contextlib.closing(job.events(state)) as events:
            for event in events:
                yield tensors(event)

    def close(self) -> None:
        """Do nothing: the program has nothing to free."""

    @cached_property
    def origin(self) -> Origin | None:
        """Models that make this pipeline's states; None if no manifest tells which they are."""
        return read_origin(self._folder.parent, self._folder.name)


@dataclass
class _Job:
    """One request of a program."""

    program: VideoProgram[Any]
    request: DenoisingRequest
    call: Call
    interruption: Interruption
    step: int = 0
    steps: int = 0

    def events(self, state: DenoisingState | None) -> Generator[Event, None, None]:
        """Yield the events of the request, from the beginning or from a state."""
        program, request = self.program, self.request
        same_engine = self._check(state)
        priority = PRIORITIES.index(request.priority)
        with program._slots.enter(priority, can_stop=program.origin is not None) as slot:
            yield from self._wait(slot, WAITING)
            if state is not None:
                self._count_continued(state)
                made = state.origin
                told = (
                    engines_text(made)
                    if same_engine
                    else f"{engines_text(made)} -> {engines_text(self._origin)}"
                )
                yield Continued(state.step, same_engine, told)
            while True:
                aside = yield from self._work(slot, state)
                if aside is None:
                    return
                program._recorder.count(REQUESTS_SET_ASIDE)
                slot.give_way()
                try:
                    yield from self._wait(slot, SET_ASIDE)
                    state = aside.take(program._model)
                finally:
                    aside.drop()
                if (reason := self._outer_reason()) is not None:
                    yield from self._send_state(replace(state, reason=reason))
                    return

    def _work(self, slot: Slot, state: DenoisingState | None) -> Generator[Event, None, SetAsideState | None]:
        """Work on the video until its end or a stop; return its state if it is set aside, else None."""
        program, request = self.program, self.request
        kept = None if state is None else self._kept(state)
        items = denoise_video(
            lambda tools: program.make_video(request, tools),
            request.seed,  # type: ignore[attr-defined]  # every family's request has a seed
            getattr(request, "cache_threshold", None),
            self.call.models,
            self.interruption,
            program._recorder,
            program._model,
            kept,
        )
        with contextlib.closing(items), Checkpoints(request.checkpoint_every_steps) as checkpoints:
            begun = False
            for item in items:
                if not isinstance(item, Boundary):
                    # A checkpoint precedes the progress of the next step, so a caller that saw n steps done
                    # has a state of at most `checkpoint_every_steps` steps before.
                    yield from checkpoints.take()
                    yield item
                    continue
                if (reason := self._stop_reason(item)) is not None:
                    yield from checkpoints.take()
                    yield from self._stop(item, reason)
                    return None
                # At the first boundary, no step has been taken since the last stop.
                if begun:
                    checkpoints.begin(item.step, lambda: self._state(item, ""))  # noqa: B023 - called at once
                if begun and item.step < item.steps and slot.must_give_way():
                    # Nothing is sent for this step later, so its checkpoint goes out before the wait.
                    yield from checkpoints.take()
                    with contextlib.suppress(OSError):  # Without room for its state, the request goes on.
                        return SetAsideState(self._state(item, ""), runtime_folder() / _HELD_FOLDER)
                begun = True
        return None

    def _check(self, state: DenoisingState | None) -> bool:
        """Check what concerns stopping, before any work; return False if another engine made the state."""
        program, request = self.program, self.request
        wishes = ("stop_after_step", "checkpoint_every_steps", "continue_from")
        wanted = [name for name in wishes if getattr(request, name) is not None]
        if wanted and program.origin is None:
            raise InvalidRequest(
                f"{program._model}: {wanted[0]} must be left out for a model without the manifest of an"
                " export, which tells whether a state fits; try exporting again"
            )
        if state is None:
            return True
        if request.stop_after_step is not None and request.stop_after_step <= state.step:
            raise_all(
                program._model,
                [
                    f"stop_after_step must be after the step of the state, {state.step}, got"
                    f" {request.stop_after_step}; try {state.step + 1}"
                ],
            )
        return check_origin(state, self._origin, program._model)

    @property
    def _origin(self) -> Origin:
        return self.program.origin or Origin("", "")

    def _kept(self, state: DenoisingState) -> Mapping[str, Any]:
        """Return what a state keeps; a cache of other conditions is left out."""
        kept = state.kept
        return {**kept, "cache": None} if changed_conditions(self.request, state) else kept

    def _count_continued(self, state: DenoisingState) -> None:
        recorder = self.program._recorder
        recorder.count(REQUESTS_CONTINUED)
        if state.reason == SHUTDOWN:
            recorder.count(REQUESTS_MOVED)
        if self.request.steps_seen is not None and self.request.steps_seen > state.step:
            recorder.count(STEPS_REPEATED, self.request.steps_seen - state.step)

    def _stop_reason(self, boundary: Boundary) -> str | None:
        """Return the reason why a video stops at a boundary, or None if it goes on."""
        wanted = self.request.stop_after_step
        if wanted is not None and boundary.step >= min(wanted, boundary.steps):
            return ASKED
        self.step, self.steps = boundary.step, boundary.steps
        return self._outer_reason()

    def _outer_reason(self) -> str | None:
        """Return the reason of a stop that the caller or the server asks for meanwhile, or None."""
        if self.program.origin is None:
            return None
        if self.call.is_stop_asked():
            return CALLER
        return SHUTDOWN if self.program._is_served and is_stopping() else None

    def _stop(self, boundary: Boundary, reason: str) -> Iterator[Event]:
        """Yield the draft, the state and the notice of a stop."""
        program = self.program
        if reason == ASKED and self.request.draft is not None:
            yield from draft_events(boundary, self.request, self.interruption, program._model)
        yield from self._send_state(self._state(boundary, reason))

    def _send_state(self, state: DenoisingState) -> Iterator[Event]:
        yield from state_parts(state)
        self.program._recorder.count(REQUESTS_STOPPED, value=state.reason)
        yield Stopped(state.reason, state.step, state.steps)

    def _state(self, boundary: Boundary, reason: str) -> DenoisingState:
        return DenoisingState(
            self.program._model, self._origin, request_values(self.request), reason, boundary.step,
            boundary.steps, boundary.kept(),
        )  # fmt: skip

    def _wait(self, slot: Slot, phase: str) -> Iterator[Event]:
        """Wait for a slot, and yield a notice at the beginning and every few seconds."""
        program, next_notice_s = self.program, -float("inf")
        while not slot.take():
            self.interruption.check(f"while it was {phase}")
            if phase == WAITING:
                program._gate.check()
                if self.call.is_stop_asked():
                    raise Cancelled(
                        f"{program._model}: stopped by the caller while it was waiting; no step was done"
                    )
            elif self._outer_reason() is not None:
                return
            if self.interruption.elapsed_s() >= next_notice_s:
                next_notice_s = self.interruption.elapsed_s() + _NOTICE_S
                yield Progress(self.step, self.steps, self.interruption.elapsed_s(), phase=phase)
            time.sleep(_POLL_S)
