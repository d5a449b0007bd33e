"""What a slow viewer loses and what a viewer that comes back receives again; memory stays bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slipway_gateway.realtime import outbox as module
from slipway_gateway.realtime.outbox import Outbox, Outgoing


def chunk(block: int, frames: int = 4, size: int = 10, *, can_drop: bool = True) -> Outgoing:
    message = {"type": "video.chunk_metadata", "generation_chunk_index": block}
    return Outgoing(message, b"x" * size, block, frames, can_drop)


async def fill(box: Outbox, block: int, chunks: int = 2, **more: Any) -> None:
    for _ in range(chunks):
        await box.put_chunk(chunk(block, **more))
    await box.end_block(block)


async def sent(box: Outbox, count: int) -> list[tuple[int | None, int, int]]:
    """Send some chunks; return the block, the place and the dropped frames of each."""
    found = []
    for _ in range(count):
        item = await asyncio.wait_for(box.next(), 5)
        assert item is not None
        found.append((item.block, item.message["transport_chunk_index"], item.message["dropped"]))
    return found


async def test_older_blocks_are_dropped_at_their_boundary_when_a_viewer_is_slow() -> None:
    box = Outbox(may_drop=True)
    await fill(box, 0)
    assert await sent(box, 1) == [(0, 0, 0)]
    for block in (1, 2, 3):
        await fill(box, block)
    # The rest of the block that the viewer has begun still comes, then the newest.
    assert await sent(box, 3) == [(0, 1, 0), (3, 2, 16), (3, 3, 0)]
    assert (box.chunks, box.dropped_frames) == (4, 16)


async def test_nothing_is_dropped_when_each_event_has_its_block_or_a_chunk_has_the_header() -> None:
    box = Outbox(may_drop=False)
    for block in range(3):
        await fill(box, block)
    assert [block for block, _, _ in await sent(box, 6)] == [0, 0, 1, 1, 2, 2]
    box = Outbox(may_drop=True)
    await fill(box, 0, chunks=1, can_drop=False)
    await fill(box, 1)
    assert await sent(box, 2) == [(0, 0, 0), (1, 1, 0)]


async def test_generation_waits_when_two_blocks_are_ready() -> None:
    box = Outbox(may_drop=True)
    await fill(box, 0)
    assert await box.has_room(0.01)
    await fill(box, 1)
    assert not await box.has_room(0.01)
    waiting = asyncio.create_task(box.has_room(5))
    await sent(box, 2)
    assert await waiting


async def test_generation_waits_for_acknowledgements_when_a_viewer_sends_them() -> None:
    box = Outbox(may_drop=False)
    await box.acknowledge(0)
    await fill(box, 0)
    await fill(box, 1)
    await sent(box, 4)
    assert not await box.has_room(0.01)
    await box.acknowledge(2)
    assert await box.has_room(0.01)


async def test_lost_chunks_come_again_in_their_order_when_a_viewer_comes_back() -> None:
    box = Outbox(may_drop=False)
    for block in range(3):
        await fill(box, block)
    await sent(box, 5)
    assert await box.rewind(3) == 0
    assert [place for _, place, _ in await sent(box, 3)] == [3, 4, 5]
    # Blocks are kept for two blocks only.
    assert await box.rewind(0) == 2
    assert [place for _, place, _ in await sent(box, 4)] == [2, 3, 4, 5]
    assert await box.rewind(None) == 0


async def test_memory_is_bounded_when_blocks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTBOX_BYTES", 1000)
    box = Outbox(may_drop=False)
    for block in range(10):
        await fill(box, block, size=200)
        assert box.size_bytes <= 1200
    assert (await sent(box, 1))[0][2] > 0


async def test_reader_waits_when_a_viewer_takes_no_answers() -> None:
    box = Outbox(may_drop=True)
    for _ in range(64):
        await box.put({"type": "session.pong"})
    waiting = asyncio.create_task(box.put({"type": "session.pong"}))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await box.next()
    await asyncio.wait_for(waiting, 5)


async def test_sender_ends_when_the_outbox_is_closed_and_empty() -> None:
    box = Outbox(may_drop=True)
    await fill(box, 0, chunks=1)
    await box.put({"type": "session.done"})
    await box.close()
    await sent(box, 1)
    done = await box.next()
    assert done is not None and done.message == {"type": "session.done", "chunks": 1}
    assert await box.next() is None
