"""Request that cancels or stops a running request by its id, and the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving.protocol.events import Event, output_field
from slipway_serving.protocol.fields import Rule
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import boolean

_ID = Rule(
    must="1 to 64 characters",
    accepts=lambda text: 1 <= len(text) <= 64,
    fix=lambda _: "the id that the request was sent with",
    help="id of the request to cancel",
)


@dataclass(frozen=True)
class CancelResult(Event):
    """Response to :class:`CancelRequest`.

    Attributes:
        found: True if a request with this id is running on this server; it ends at its next step.
    """

    found: Annotated[bool, output_field("true if a request with this id is running on this server")]


@dataclass(frozen=True)
class CancelRequest(Request):
    """End a running request at its next step.

    Attributes:
        ended_id: Id that the request was sent with, 1 to 64 characters.
        stop: True if the request should stop and send its state, from which it can be continued.
    """

    model: ClassVar[str] = "slipway_cancel"
    events: ClassVar[tuple[type[Event], ...]] = (CancelResult,)
    streams: ClassVar[bool] = False

    ended_id: Annotated[str, _ID]
    stop: Annotated[bool, boolean("stop the request and have it send its state, if it can be continued")] = (
        False
    )
