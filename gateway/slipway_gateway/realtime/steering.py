"""Interactions of a viewer and the blocks that they steer.

A world is made block by block, and an interaction counts from a block's beginning:

- It is applied from the first block that begins after it arrived. One that arrives while a block is computed
  counts for the next block.
- It stays in force until another one is applied, or for `transition_chunks` blocks, after which nothing is
  pressed.
- In continuous pacing the latest of several interactions counts, and those before it are completed without a
  block. In pacing on events each has a block of its own, in their order.
- An array has a row for each frame of a block, or one row for all; the rows are the same in each block while
  the interaction is in force.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from slipway_gateway.realtime.limits import PENDING_INTERACTIONS
from slipway_gateway.realtime.values import build, parse, turn_values
from slipway_gateway.realtime.world_kinds import REBASE
from slipway_serving.protocol.errors import InvalidRequest, Overloaded
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.texts import short

_MOST_CHUNKS = 10_000
_LONGEST_ID = 128
_WHERE = "session.interaction"


@dataclass(frozen=True, eq=False)
class Interaction:
    """What a viewer asks for.

    Attributes:
        event_id: Id from the viewer; None if it has none.
        values: Fields of the turn.
        chunks: Number of blocks; None until the next interaction.
    """

    event_id: str | int | None
    values: dict[str, Any]
    chunks: int | None = None


@dataclass(frozen=True)
class BlockSteering:
    """Steering of one block.

    Attributes:
        interaction: Interaction in force; None if nothing is pressed.
        started: Ids of the interactions that begin with the block.
        active: Ids of the interactions in force.
        completed: Ids of the interactions that ended before the block, or that another one replaced.
    """

    interaction: Interaction | None
    started: tuple[str | int, ...] = ()
    active: tuple[str | int, ...] = ()
    completed: tuple[str | int, ...] = ()


def parse_interaction(message: dict[str, Any], turn: type[Request]) -> Interaction:
    """Parse a `session.interaction` message.

    Args:
        message: Message.
        turn: Class of the world's turns.

    Raises:
        InvalidRequest: A part of the message breaks a rule.
    """
    interaction = message.get("interaction")
    if not isinstance(interaction, dict):
        raise InvalidRequest(f"{_WHERE}: interaction must be an object, got {short(interaction)}")
    event = interaction.get("event")
    if not isinstance(event, dict):
        raise InvalidRequest(f"{_WHERE}: event must be an object, got {short(event)}; try {{}}")
    unknown = (interaction.keys() - {"event_id", "event", "transition_chunks"}) | (
        message.keys() - {"type", "event_id", "interaction"}
    )
    if unknown:
        raise InvalidRequest(f"{_WHERE}: {short(min(unknown))} must be left out; try event for what is done")
    event_id = interaction.get("event_id", message.get("event_id"))
    if event_id is not None and not _is_id(event_id):
        raise InvalidRequest(
            f"{_WHERE}: event_id must be a number or a text of 1 to {_LONGEST_ID} characters, got"
            f" {short(event_id)}"
        )
    chunks = interaction.get("transition_chunks")
    if chunks is not None and not (type(chunks) is int and 1 <= chunks <= _MOST_CHUNKS):
        raise InvalidRequest(
            f"{_WHERE}: transition_chunks must be 1 to {_MOST_CHUNKS} blocks, got {short(chunks)}"
        )
    values = parse(turn, event, _WHERE, set_here=(REBASE,))
    build(turn, turn_values(turn, values), _WHERE)
    return Interaction(event_id, values, chunks)


def event_id_of(message: dict[str, Any]) -> str | int | None:
    """Return the id of a message that is refused, if it has a usable one."""
    interaction = message.get("interaction")
    inner = interaction.get("event_id") if isinstance(interaction, dict) else None
    found = inner if inner is not None else message.get("event_id")
    return found if _is_id(found) else None


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return 1 <= len(value) <= _LONGEST_ID
    return type(value) is int and abs(value) < 2**63


@dataclass(eq=False)
class Steering:
    """Interactions of one world.

    Attributes:
        turn: Class of the world's turns.
        one_block_each: True if each interaction has a block of its own (pacing on events).
        arrived: Event that is set while an interaction waits.
    """

    turn: type[Request]
    one_block_each: bool
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: deque[Interaction] = field(default_factory=deque)
    _current: Interaction | None = None
    _blocks_left: int | None = None
    _ended: list[str | int] = field(default_factory=list)

    @property
    def neutral(self) -> Request | None:
        """Turn in which nothing is pressed; None if the turn class has no such turn."""
        try:
            return build(self.turn, turn_values(self.turn, {}), _WHERE)
        except InvalidRequest:
            return None

    @property
    def can_begin(self) -> bool:
        """True if there is something to do in the next block; always, where nothing can be pressed."""
        if self._pending or (self._current is not None and self._blocks_left != 0):
            return True
        return not self.one_block_each and self.neutral is not None

    def add(self, interaction: Interaction) -> int:
        """Add an interaction that arrived, and return how many wait now.

        Raises:
            Overloaded: Too many interactions wait.
        """
        if len(self._pending) >= PENDING_INTERACTIONS:
            raise Overloaded(
                f"{_WHERE}: at most {PENDING_INTERACTIONS} interactions may wait for their block; send fewer"
                " at a time"
            )
        self._pending.append(interaction)
        self.arrived.set()
        return len(self._pending)

    def begin_block(self) -> BlockSteering:
        """Return the steering of the block that begins now."""
        started: tuple[str | int, ...] = ()
        if self._current is not None and self._blocks_left == 0:
            self._end(self._current)
        goes_on = self.one_block_each and self._current is not None and self._blocks_left
        if self._pending and not goes_on:
            if self._current is not None:
                self._end(self._current)
            while len(self._pending) > 1 and not self.one_block_each:
                self._end(self._pending.popleft())
            self._current = self._pending.popleft()
            self._blocks_left = self._current.chunks or (1 if self.one_block_each else None)
            started = _ids(self._current)
        if not self._pending:
            self.arrived.clear()
        if self._blocks_left:
            self._blocks_left -= 1
        completed, self._ended = tuple(self._ended), []
        return BlockSteering(self._current, started, _ids(self._current), completed)

    def refuse(self) -> Interaction | None:
        """Drop the interaction in force because the server refused it, and return it."""
        refused, self._current, self._blocks_left = self._current, None, None
        return refused

    def request(self, steering: BlockSteering) -> Request:
        """Return the turn of a block.

        Raises:
            InvalidRequest: Nothing is pressed, and the turn class has no such turn.
        """
        values = steering.interaction.values if steering.interaction is not None else {}
        return build(self.turn, turn_values(self.turn, values), _WHERE)

    def _end(self, interaction: Interaction) -> None:
        self._ended += _ids(interaction)
        if interaction is self._current:
            self._current, self._blocks_left = None, None


def _ids(interaction: Interaction | None) -> tuple[str | int, ...]:
    return () if interaction is None or interaction.event_id is None else (interaction.event_id,)
