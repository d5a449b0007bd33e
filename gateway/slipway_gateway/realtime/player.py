"""Generation of one world, block by block, at the pace of its viewer.

Continuous pacing: the first block begins at once, and each later one when the viewer begins to see the block
before it. So an action shows after at most two blocks. A world that is slower than its rate never waits.
Pacing on events: each interaction makes its blocks, and nothing happens between them. Generation pauses
while no viewer is connected, and while two blocks wait to be sent. Between two blocks the player takes
snapshots and moves the world off a replica that drains.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from typing import Any

from slipway_gateway.realtime.channel import Message, error_message
from slipway_gateway.realtime.fragments import count_frames, header_of, mime_type
from slipway_gateway.realtime.limits import IDLE_S
from slipway_gateway.realtime.opening import Opening
from slipway_gateway.realtime.outbox import DONE, Outbox, Outgoing
from slipway_gateway.realtime.state_file import WorldFacts, pieces_of, read_records
from slipway_gateway.realtime.steering import BlockSteering, Steering
from slipway_gateway.realtime.world import World
from slipway_gateway.realtime.world_kinds import FORMATS, REBASE, has_rebase
from slipway_serving.protocol.errors import InvalidRequest, NotReady, Overloaded, SlipwayError
from slipway_serving.protocol.events import Event
from slipway_serving.video.fragments import Mp4Fragment
from slipway_serving.video.jpeg import JpegFrame

_LOG = logging.getLogger(__name__)
_CHECK_S = 0.5
_MOVE_AGAIN_S = 5.0


class Player:
    """Player of one world; :meth:`run` plays it from its first block to its end.

    Args:
        opening: World that the viewer asked for.
        world: World without a place.
        outbox: Messages to the viewer.
        pieces: Pieces of the state from which the world goes on; None if it begins with a request.
        identity: Values of `video.start` that the socket knows: request_id and resume_token.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        opening: Opening,
        world: World,
        outbox: Outbox,
        pieces: AsyncIterator[bytes] | None,
        identity: Message,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert opening.kind.turn is not None
        self._opening, self._world, self.outbox = opening, world, outbox
        self._pieces, self._identity, self._clock = pieces, identity, clock
        self.steering = Steering(opening.kind.turn, opening.on_event)
        self.connected = asyncio.Event()
        self._stopping = asyncio.Event()
        self._snapshots = 0
        self._block, self._frames, self._fps = 0, 0, opening.fps
        self._frames_left: int | None = None
        self.header = b""
        self._report: dict[str, float] = {}
        # When the next block may begin, and when the viewer has seen the last one.
        self._next_s = self._seen_s = float("-inf")
        self._failed_move_s = float("-inf")
        self._has_told = False

    async def run(self) -> None:
        """Play the world until it is stopped or ends; the session always ends on the server.

        Raises:
            SlipwayError: The world cannot begin or go on.
        """
        try:
            await self._begin_unless_stopped()
            while await self._wait_for_block():
                await self._play_block()
            await self.outbox.put(
                {
                    "type": DONE,
                    "blocks": self._block,
                    "frames": self._frames,
                    "stopped": self._stopping.is_set(),
                }
            )
        finally:
            await self._world.close()

    def stop(self) -> None:
        """End the world after the block that is computed."""
        self._stopping.set()
        self.steering.arrived.set()

    def request_snapshot(self) -> None:
        """Send the world's state before the next block."""
        self._snapshots += 1
        self.steering.arrived.set()

    async def send_start(self) -> None:
        """Send `video.start`, at the beginning and to a viewer that came back."""
        config = {
            "model": self._opening.model,
            "fps": self._fps,
            "mime": self._opening.format.mime,
            "pacing": "on_event" if self._opening.on_event else "continuous",
            "continues": has_rebase(self._opening.kind),
        }
        await self.outbox.put(
            {"type": "video.start", **self._identity, "format": self._opening.format.name, "config": config}
        )

    def header_message(self) -> tuple[Message, bytes] | None:
        """Return the header of the MP4 file for a viewer that has none; None if there is no header."""
        if not self.header:
            return None
        message = {
            "type": "video.chunk_metadata",
            "request_id": self._identity["request_id"],
            "kind": "header",
            "num_frames": 0,
            "byte_length": len(self.header),
            "mime": mime_type(self.header),
        }
        return message, self.header

    async def _begin_unless_stopped(self) -> None:
        """Begin; a viewer that stops while it waits in line leaves the line."""
        beginning = asyncio.create_task(self._begin())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({beginning, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            beginning.cancel()
            stopping.cancel()
            await asyncio.gather(beginning, stopping, return_exceptions=True)
        if not beginning.cancelled():
            beginning.result()

    async def _begin(self) -> None:
        """Take a place, and restore the world if it goes on from a state."""
        await self._world.take_place(self._tell_position)
        if self._pieces is not None:
            await self._restore(self._pieces)
        await self.send_start()
        if header := self.header_message():
            await self.outbox.put(*header)

    async def _tell_position(self, position: int, depth: int) -> None:
        await self.outbox.put({"type": "queue_status", "position": position, "queue_depth": depth})

    async def _restore(self, pieces: AsyncIterator[bytes]) -> None:
        records = read_records(pieces, self._opening.state_bytes or 0)
        try:
            facts = WorldFacts.from_json(await anext(records))
        except StopAsyncIteration:
            raise InvalidRequest("state: file must have a record, got none") from None
        opening = self._opening
        if facts.model != opening.model or facts.format not in FORMATS:
            raise InvalidRequest(
                f"state: model must be {facts.model}, the model of the file, got {opening.model}"
            )
        # The session's own state says in which form it answers.
        self._opening = replace(opening, format=FORMATS[facts.format], fps=facts.fps)
        self._fps, self._frames, self._frames_left = facts.fps, facts.frames, facts.frames_left
        self.header = facts.header_bytes
        await self._world.restore(records)

    async def _wait_for_block(self) -> bool:
        """Wait until the next block may begin; return False if the world ends."""
        idle_since_s = self._clock()
        while not self._stopping.is_set() and not self._is_over:
            if self._world.is_draining and self._clock() >= self._failed_move_s + _MOVE_AGAIN_S:
                await self._move()
            elif not self.connected.is_set():
                await _set_within(self.connected, _CHECK_S)
            elif self._snapshots:
                self._snapshots -= 1
                await self._send_snapshot()
            elif not await self.outbox.has_room(_CHECK_S):
                continue
            elif not self.steering.can_begin:
                if self._clock() - idle_since_s > IDLE_S - 4 * _CHECK_S:
                    message = f"no interaction came for {IDLE_S:g} s"
                    await self.outbox.put({"type": "error", "code": "idle", "message": message})
                    return False
                await _set_within(self.steering.arrived, _CHECK_S)
                self.steering.arrived.clear()
            elif not self._opening.on_event and (wait_s := self._next_s - self._clock()) > 0:
                # When the next block begins does not depend on what arrives, except on a stop.
                await _set_within(self._stopping, min(wait_s, _CHECK_S))
            else:
                return True
        return False

    @property
    def _is_over(self) -> bool:
        return self._frames_left == 0 and not has_rebase(self._opening.kind)

    async def _play_block(self) -> None:
        """Make one block and put its chunks into the outbox."""
        steering = self.steering.begin_block()
        began_s = self._clock()
        while True:
            try:
                frames = await self._make(steering, began_s)
                break
            except NotReady as refusal:
                # The replica shuts down, and the world is as it was before the block.
                if not await self._move(refusal):
                    raise
            except Overloaded:
                if self._world.has_begun:
                    raise
                await self._world.take_place(self._tell_position)
            except InvalidRequest as error:
                refused = self.steering.refuse()
                if refused is None:
                    raise
                await self.outbox.put(error_message(error, refused.event_id))
                if self._opening.on_event:
                    return
                steering = replace(steering, interaction=None, started=(), active=())
        await self.outbox.end_block(self._block)
        self._next_s = max(self._seen_s, self._clock())
        self._seen_s = self._next_s + frames / self._fps
        self._block += 1

    async def _make(self, steering: BlockSteering, began_s: float) -> int:
        """Make a block, and return the number of its frames."""
        turn = self.steering.request(steering)
        if self._frames_left == 0:
            turn = replace(turn, **{REBASE: True})  # type: ignore[type-var]  # each request is a dataclass
        frames = 0
        async with contextlib.aclosing(self._world.block(turn)) as events:
            async for event in events:
                if isinstance(event, Mp4Fragment | JpegFrame):
                    frames += await self._send(event, steering, began_s)
                else:
                    self._record(event)
        self._frames += frames
        return frames

    async def _send(self, event: Mp4Fragment | JpegFrame, steering: BlockSteering, began_s: float) -> int:
        data = event.data
        count = count_frames(data) if isinstance(event, Mp4Fragment) else 1
        chunk = self._chunk(data, count, steering, began_s)
        if isinstance(event, Mp4Fragment) and (header := header_of(data)):
            self.header = header
            chunk.message["mime"] = mime_type(header)
            chunk.can_drop = False
        await self.outbox.put_chunk(chunk)
        return count

    def _chunk(self, data: bytes, frames: int, steering: BlockSteering, began_s: float) -> Outgoing:
        message = {
            "type": "video.chunk_metadata",
            "request_id": self._identity["request_id"],
            "kind": "media",
            "num_frames": frames,
            "byte_length": len(data),
            "generation_chunk_index": self._block,
            "started_event_ids": list(steering.started),
            "active_event_ids": list(steering.active),
            "completed_event_ids": list(steering.completed),
            "latency": {"generation_s": round(self._clock() - began_s, 4), **self._report},
        }
        if self._frames_left is not None:
            message["frames_left"] = self._frames_left
        return Outgoing(message, data, self._block, frames, can_drop=True)

    def _record(self, event: Event) -> None:
        """Keep what the last event of a block reports; the next chunks carry its times."""
        values: dict[str, Any] = {each.name: getattr(event, each.name) for each in fields(event)}  # type: ignore[arg-type]
        left = values.get("frames_left")
        self._frames_left = left if isinstance(left, int) else self._frames_left
        self._report = {
            f"previous_{name}": round(value, 4)
            for name, value in values.items()
            if name.endswith("_s") and isinstance(value, float)
        }

    async def _move(self, refusal: NotReady | None = None) -> bool:
        """Move the world off a replica that drains; return True if it moved.

        Args:
            refusal: Error with which the replica refused a block; None if it still makes blocks.
        """
        if not self._has_told:
            self._has_told = True
            await self.outbox.put({"type": "session.moving"})
        began_s = self._clock()
        try:
            await self._world.move()
        except SlipwayError as error:
            _LOG.warning("%s: a world stays on a replica that drains: %s", self._opening.model, error)
            self._failed_move_s = self._clock()
            if refusal is None:
                await self.outbox.put(error_message(error))
            return False
        self._has_told = False
        await self.outbox.put({"type": "session.moved", "seconds": round(self._clock() - began_s, 3)})
        return True

    async def _send_snapshot(self) -> None:
        """Send the world's state as one file in binary messages."""
        if not self._world.has_begun:
            error = InvalidRequest("session.snapshot: world must have a block, got none yet; try again later")
            await self.outbox.put(error_message(error))
            return
        facts = WorldFacts(
            self._opening.model,
            self._opening.format.name,
            self._fps,
            self._frames,
            self._frames_left,
            base64.b64encode(self.header).decode(),
        )
        total = 0
        try:
            for piece in pieces_of(facts.to_json()):
                total += await self._send_piece(piece)
            async for part in self._world.snapshot():
                for piece in pieces_of(part):
                    total += await self._send_piece(piece)
        except SlipwayError as error:
            await self.outbox.put(error_message(error))
            return
        await self.outbox.put({"type": "session.state.done", "byte_length": total})

    async def _send_piece(self, piece: bytes) -> int:
        await self.outbox.put({"type": "session.state", "byte_length": len(piece)}, piece)
        return len(piece)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but not longer than some seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
