"""Messages on their way to a viewer, with bounded memory.

Chunks of a world belong to blocks. Generation waits while two blocks (`AHEAD_BLOCKS`) are ready and the
viewer has not taken them. A viewer that is slower than the world then loses the
older of the ready blocks at a block's boundary, so that it sees what is new; the next chunk's `dropped`
counts the lost frames. Chunks that were sent are kept for two blocks, because a connection that breaks may
lose them. They are sent again when the viewer comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from slipway_gateway.realtime.limits import AHEAD_BLOCKS, CONTROL_MESSAGES, OUTBOX_BYTES

Message = dict[str, Any]
DONE = "session.done"


@dataclass(eq=False)
class Outgoing:
    """A message and the binary message that follows it.

    Attributes:
        message: JSON message.
        data: Binary message; None if there is none.
        block: Number of the block that a chunk belongs to; None for other messages.
        frames: Number of frames of a chunk.
        can_drop: True if a slow viewer may lose the chunk.
    """

    message: Message
    data: bytes | None = None
    block: int | None = None
    frames: int = 0
    can_drop: bool = False

    @property
    def size(self) -> int:
        """Size of the binary message, in bytes."""
        return 0 if self.data is None else len(self.data)


@dataclass(eq=False)
class Outbox:
    """Messages for one viewer, over all of its connections.

    Attributes:
        may_drop: True if a slow viewer loses blocks; otherwise the world waits for it.
        chunks: Number of chunks that were sent.
        dropped_frames: Number of frames that were dropped.
    """

    may_drop: bool
    chunks: int = 0
    dropped_frames: int = 0
    _queue: deque[Outgoing] = field(default_factory=deque)
    _sent: deque[Outgoing] = field(default_factory=deque)
    _complete: set[int] = field(default_factory=set)
    _acknowledged: int | None = None
    _last_block: int = -1
    _sending_block: int = -1
    _unreported: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    is_closed: bool = False

    @property
    def size_bytes(self) -> int:
        """Size of all chunks in memory, in bytes."""
        return sum(each.size for each in (*self._queue, *self._sent))

    @property
    def blocks_ahead(self) -> int:
        """Number of complete blocks that the viewer has not taken."""
        unsent = {each.block for each in self._queue if each.block in self._complete}
        if self._acknowledged is None:
            return len(unsent)
        # A viewer that acknowledges chunks also counts those that are on their way.
        unread = {
            each.block
            for each in self._sent
            if each.message["transport_chunk_index"] > self._acknowledged and each.block in self._complete
        }
        return len(unsent | unread)

    async def put(self, message: Message, data: bytes | None = None) -> None:
        """Add a message that is no chunk; wait while too many of them wait."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_closed or self._has_room_for_message())
            self._queue.append(Outgoing(message, data))
            self._changed.notify_all()

    async def put_chunk(self, chunk: Outgoing) -> None:
        """Add a chunk of the block that is computed."""
        async with self._changed:
            self._queue.append(chunk)
            if self.size_bytes > OUTBOX_BYTES:
                self._drop_oldest(chunk.block)
            self._changed.notify_all()

    async def end_block(self, block: int) -> None:
        """Record that all chunks of a block were added."""
        async with self._changed:
            self._complete.add(block)
            self._last_block = block
            self._changed.notify_all()

    async def has_room(self, timeout_s: float) -> bool:
        """Wait until another block may be computed; return False if that takes too long.

        Args:
            timeout_s: Longest wait in seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.blocks_ahead < AHEAD_BLOCKS)
        return self.blocks_ahead < AHEAD_BLOCKS

    async def next(self) -> Outgoing | None:
        """Return the next message to send; None if the outbox is closed and empty."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._queue) or self.is_closed)
            self._drop_old_blocks()
            if not self._queue:
                return None
            item = self._queue.popleft()
            if item.block is not None:
                self._number(item)
            elif item.message["type"] == DONE:
                item.message["chunks"] = self.chunks
            self._changed.notify_all()
            return item

    async def acknowledge(self, received_chunks: int) -> None:
        """Record how many chunks the viewer has received."""
        async with self._changed:
            self._acknowledged = max(
                received_chunks - 1, -1 if self._acknowledged is None else self._acknowledged
            )
            self._changed.notify_all()

    async def rewind(self, received_chunks: int | None) -> int:
        """Put chunks that a broken connection lost in front again; return how many frames cannot come again.

        Args:
            received_chunks: Number of chunks that the viewer received; None if it does not say.
        """
        async with self._changed:
            again = [
                each
                for each in self._sent
                if received_chunks is not None and each.message["transport_chunk_index"] >= received_chunks
            ]
            self._sent = deque(each for each in self._sent if each not in again)
            self._queue.extendleft(reversed(again))
            lost = self.chunks - len(again) - (self.chunks if received_chunks is None else received_chunks)
            self._acknowledged = None
            self._changed.notify_all()
            return max(0, lost)

    async def close(self) -> None:
        """Wake everybody who waits; what is in the queue is still sent."""
        async with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def _has_room_for_message(self) -> bool:
        messages = [each for each in self._queue if each.block is None]
        return len(messages) < CONTROL_MESSAGES and sum(each.size for each in messages) < OUTBOX_BYTES // 4

    def _number(self, item: Outgoing) -> None:
        """Give a chunk that is sent for the first time its place, and keep it for a while."""
        if "transport_chunk_index" not in item.message:
            item.message |= {"transport_chunk_index": self.chunks, "dropped": self._unreported}
            self.chunks += 1
            self._unreported = 0
        self._sending_block = item.block if item.block is not None else self._sending_block
        self._sent.append(item)
        oldest = self._sending_block - AHEAD_BLOCKS + 1
        while self._sent and (self._sent[0].block or 0) < oldest:
            self._sent.popleft()
        self._complete = {block for block in self._complete if block >= oldest}

    def _drop_old_blocks(self) -> None:
        """Drop each whole block that is ready if a newer block is ready too; this is done between blocks."""
        following = next((each.block for each in self._queue if each.block is not None), self._sending_block)
        if not self.may_drop or following == self._sending_block:
            return
        ready = sorted({each.block for each in self._queue if each.block in self._complete} - {None})
        for block in ready[:-1]:
            self._drop(block)

    def _drop_oldest(self, newest: int | None) -> None:
        """Drop blocks from the oldest on until the memory is within its limit."""
        self._sent.clear()
        for block in sorted({each.block for each in self._queue if each.block is not None}):
            if self.size_bytes > OUTBOX_BYTES and block != newest:
                self._drop(block)

    def _drop(self, block: int | None) -> None:
        dropped = [each for each in self._queue if each.block == block and each.can_drop]
        # A chunk that was sent before has its place in the viewer's count.
        dropped = [each for each in dropped if "transport_chunk_index" not in each.message]
        frames = sum(each.frames for each in dropped)
        self._unreported += frames
        self.dropped_frames += frames
        self._queue = deque(each for each in self._queue if each not in dropped)
