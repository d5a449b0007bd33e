"""Stopping a video at a step boundary and continuing it: the request fields and events of all pipelines.

The request class of a family derives from :class:`DenoisingRequest`, which adds the fields and the events.
The state of a stopped video is sent in parts; joined in their order, they are the contents of a state file
(:mod:`slipway_serving.protocol.snapshots.denoising_states`), which a later request brings back in
`continue_from`, to the same server or to another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from slipway_serving.protocol import images
from slipway_serving.protocol.events import Event, output_field
from slipway_serving.protocol.fields import Rule
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import one_of
from slipway_serving.protocol.snapshots.parts import MAGIC

PRIORITIES = ("urgent", "normal", "low")
"""Priorities of a request, the most urgent first."""
DRAFTS = ("video", "sheet")
"""Forms of a draft: the whole video in the request's form, or one picture of frames side by side."""
ASKED, SHUTDOWN, CALLER = "step", "shutdown", "caller"
STOP_REASONS = (ASKED, SHUTDOWN, CALLER)
"""Reasons of a stop: `stop_after_step` was reached, the server shuts down, or the caller asked for it."""

_MOST_STEPS = 2**31 - 1


def _steps_rule(help_text: str, default: str) -> Rule:
    return Rule(
        f"1 to {_MOST_STEPS}",
        lambda steps: 1 <= steps <= _MOST_STEPS,
        lambda _: "10",
        help_text,
        default=default,
    )


_STATE = Rule(
    "the state of a stopped video",
    lambda state: images.decode_if_base64(state).startswith(MAGIC),
    lambda _: "the unchanged parts of a state, joined in their order",
    "state of a stopped video, whose other steps are to be computed; fields that are left out are those of"
    " the stopped request",
    format_value=lambda state: f"{len(state)} bytes that begin with {state[:8]!r}",
    flag=None,
)

CheckpointEverySteps = Annotated[
    int | None, _steps_rule("number of steps after which the state is sent again and again", "never")
]
StopAfterStep = Annotated[
    int | None,
    replace(_steps_rule("number of steps after which the video is stopped", "none"), flag="stop_after"),
]
Draft = Annotated[
    str | None,
    replace(
        one_of(DRAFTS, "form in which the current prediction of the video is sent at the stop"),
        default="no draft",
        flag=None,
    ),
]
Priority = Annotated[str, one_of(PRIORITIES, "priority of the request over others that wait or run")]
ContinueFrom = Annotated[bytes | None, _STATE]
StepsSeen = Annotated[
    int | None,
    replace(
        _steps_rule("steps that the caller saw done before, for the server's count", "unknown"), flag=None
    ),
]

_STEP = output_field("number of steps that the state comes after, of all sections", "INT32")


@dataclass(frozen=True)
class StatePart(Event):
    """A part of the state after a step.

    Attributes:
        state: Bytes of the part; all parts joined in their order are the state.
        state_part: Number of the part, from 0.
        state_parts: Number of parts of this state.
        state_step: Number of steps that the state comes after.
    """

    known_by: ClassVar[tuple[str, ...]] = ("state_part",)

    state: Annotated[bytes, output_field("bytes of a part of the state")]
    state_part: Annotated[int, output_field("number of the part of the state, from 0", "INT32")]
    state_parts: Annotated[int, output_field("number of parts of the state", "INT32")]
    state_step: Annotated[int, _STEP]


@dataclass(frozen=True)
class Stopped(Event):
    """Notice that the request has stopped; it is the last event, and there is no result.

    Attributes:
        stop_reason: One of :data:`STOP_REASONS`.
        stopped_step: Number of finished steps.
        steps: Number of all steps.
        state: State from which the video continues. A server sends it in :class:`StatePart` before this
            event. The typed clients join it and append the parts of the result that came before it.
    """

    known_by: ClassVar[tuple[str, ...]] = ("stop_reason",)

    stop_reason: Annotated[str, output_field(f"reason of the stop: {', '.join(STOP_REASONS)}")]
    stopped_step: Annotated[int, output_field("number of finished steps", "INT32")]
    steps: Annotated[int, output_field("number of steps", "INT32")]
    state: Annotated[bytes | None, output_field("bytes of a part of the state")] = None


@dataclass(frozen=True)
class Continued(Event):
    """Notice that a request continues a stopped video; it is the first event.

    Attributes:
        continued_step: Number of steps that were finished before.
        same_engine: True if all models are those that made the state, so that the video is equal to one that
            was not stopped; False if another engine serves them, whose error bound then applies.
        engines: Engines and precisions that made the state and that continue it, for people.
    """

    known_by: ClassVar[tuple[str, ...]] = ("continued_step",)

    continued_step: Annotated[int, output_field("number of steps that were finished before", "INT32")]
    same_engine: Annotated[bool, output_field("true if the models are those that made the state")]
    engines: Annotated[str, output_field("engines that made the state and that continue it")]


@dataclass(frozen=True)
class ContactSheet(Event):
    """Draft as one picture of frames side by side.

    Attributes:
        sheet: Content of a PNG file.
        draft_step: Number of steps after which the frames were predicted.
    """

    known_by: ClassVar[tuple[str, ...]] = ("sheet",)

    sheet: Annotated[bytes, output_field("content of a PNG file with frames of the draft")]
    draft_step: Annotated[int, output_field("number of steps that the draft comes after", "INT32")]


@dataclass(frozen=True, kw_only=True, eq=False)
class DenoisingRequest(Request):
    """Base of the requests of pipelines whose videos can be stopped and continued.

    Attributes:
        changeable: Names of the fields that may change on continuing, those of this class included.
        conditions: Names of further fields that a family allows to change on continuing: prompt and guidance.
            If one of them changes, a first-block cache begins anew.
        checkpoint_every_steps: Number of steps after which the state is sent each time; None sends none.
        stop_after_step: Number of steps, of all sections, after which the video is stopped; None finishes it.
        draft: One of :data:`DRAFTS`; None sends no draft at the stop.
        priority: One of :data:`PRIORITIES`.
        continue_from: State of a stopped video; None begins a new one.
        steps_seen: Number of steps that the caller saw done before; the server counts those after the state
            as repeated.

    Raises:
        InvalidRequest: A field breaks its rule; the message names every such field.
    """

    changeable: ClassVar[frozenset[str]] = frozenset(
        {
            "checkpoint_every_steps", "stop_after_step", "draft", "priority", "continue_from", "steps_seen",
            "output", "preview", "fps", "timeout_s",
        }
    )  # fmt: skip
    conditions: ClassVar[frozenset[str]] = frozenset()

    checkpoint_every_steps: CheckpointEverySteps = None
    stop_after_step: StopAfterStep = None
    draft: Draft = None
    priority: Priority = "normal"
    continue_from: ContinueFrom = None
    steps_seen: StepsSeen = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.events = (*cls.events, *(event for event in STOP_EVENTS if event not in cls.events))

    def conflicts(self) -> list[str]:
        """Return the problem of a draft without a stop: a list of at most one sentence."""
        if self.draft is None or self.stop_after_step is not None:
            return []
        return [f"draft must come with stop_after_step, got {self.draft!r} alone; try stop_after_step 10"]

    @property
    def state(self) -> bytes | None:
        """State to continue from, decoded if it came as base64 text."""
        return None if self.continue_from is None else images.decode_if_base64(self.continue_from)


STOP_EVENTS: tuple[type[Event], ...] = (StatePart, Stopped, Continued, ContactSheet)
"""Events that every pipeline may send in addition to those of its family."""
