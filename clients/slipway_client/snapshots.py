"""Checks of the answers to taking and restoring a snapshot, shared by both clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.snapshots.requests import Restored

E = TypeVar("E", bound=Event)


def single_event(events: Sequence[Event], kind: type[E]) -> E:
    """Return the single event that answers a turn.

    Raises:
        Unrecoverable: The answer is not exactly one event of that class.
    """
    if len(events) != 1 or not isinstance(events[0], kind):
        got = ", ".join(type(event).__name__ for event in events) or "nothing"
        raise Unrecoverable(
            f"session: answer must be exactly one {kind.__name__}, got {got}; see the server's log"
        )
    return events[0]


def check_complete(model: str, restored: Restored | None) -> None:
    """Check that the server received all parts of a snapshot.

    Args:
        model: Name of the served model.
        restored: Answer to the last part that was sent; None if no part was sent.

    Raises:
        InvalidRequest: Parts are missing.
    """
    if restored is None or restored.parts_taken < restored.parts:
        got = f"{restored.parts_taken} of {restored.parts}" if restored else "none"
        raise InvalidRequest(
            f"{model}: restore must receive all parts of a snapshot, got {got}; try sending every part in"
            " order"
        )
