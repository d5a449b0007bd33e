"""The pace of a world by a clock that the test moves, its end, and its state as a file, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from slipway_client import JpegFrame, UniversalActions, UniversalRequest
from slipway_gateway.realtime.opening import Opening
from slipway_gateway.realtime.outbox import Outbox
from slipway_gateway.realtime.player import Player
from slipway_gateway.realtime.state_file import WorldFacts, pieces_of, read_records
from slipway_gateway.realtime.steering import Interaction
from slipway_gateway.realtime.world import World
from slipway_gateway.realtime.world_kinds import FORMATS
from slipway_serving.families.matrix_game.request import BlockMade
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.requests import Request

FPS, FRAMES = 10, 10


class Clock:
    """Clock that moves when the world computes."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Scripted(World):
    """World whose blocks take a given time and whose turns are kept; a session of it needs no server."""

    def __init__(self, clock: Clock, block_s: float, left: int | None = None) -> None:
        self._clock, self._block_s, self._left = clock, block_s, left
        self.turns: list[Any] = []
        self.began_s: list[float] = []
        self.has_begun, self.is_closed = False, False

    @property
    def is_draining(self) -> bool:
        return False

    async def take_place(self, on_position: Any) -> None:
        await on_position(1, 1)

    async def block(self, turn: Request) -> AsyncGenerator[Event, None]:
        self.turns.append(turn)
        self.began_s.append(self._clock.now_s)
        self._clock.now_s += self._block_s
        for frame in range(FRAMES):
            yield JpegFrame(b"jpeg", len(self.turns) * FRAMES + frame, 0.1)
        left = 100 if self._left is None else self._left
        yield BlockMade(len(self.turns) - 1, len(self.turns) * FRAMES, left, 0.1, 0.1, 0.1)
        self.has_begun = True

    async def close(self) -> None:
        self.is_closed = True


def player(world: Scripted, clock: Clock, *, on_event: bool = False) -> Player:
    opening = Opening(UniversalRequest, UniversalRequest.model, FORMATS["jpeg"], FPS, on_event, None, None)
    identity = {"request_id": "world_1", "resume_token": "token"}
    made = Player(opening, world, Outbox(may_drop=not on_event), None, identity, clock)
    made.connected.set()
    return made


async def send_all(made: Player) -> list[dict[str, Any]]:
    found = []
    while (item := await made.outbox.next()) is not None:
        found.append(item.message)
    return found


async def play(made: Player, world: Scripted, blocks: int) -> list[dict[str, Any]]:
    """Play some blocks, and return what the viewer receives."""
    sending = asyncio.create_task(send_all(made))
    playing = asyncio.create_task(made.run())
    while len(world.turns) < blocks:
        await asyncio.sleep(0.001)
    made.stop()
    await asyncio.wait_for(playing, 20)
    await made.outbox.close()
    return await asyncio.wait_for(sending, 20)


async def test_block_begins_when_the_viewer_sees_the_one_before() -> None:
    clock = Clock()
    world = Scripted(clock, block_s=0.4)
    waits: list[float] = []
    made = player(world, clock)
    for _ in range(4):
        await made._play_block()
        waits.append(made._next_s - clock.now_s)
        clock.now_s = max(clock.now_s, made._next_s)
    # A block is seen for 1 s. The first is seen at once; the others when the one before has been seen.
    assert [round(wait, 6) for wait in waits] == [0.0, 0.6, 0.6, 0.6]


async def test_world_never_waits_when_it_is_slower_than_its_rate() -> None:
    clock = Clock()
    world = Scripted(clock, block_s=2.0)
    made = player(world, clock)
    for _ in range(3):
        await made._play_block()
        assert made._next_s <= clock.now_s
    assert np.diff(world.began_s).tolist() == [2.0, 2.0]


async def test_world_is_rebased_when_it_has_no_frames_left() -> None:
    clock = Clock()
    world = Scripted(clock, block_s=0.1, left=0)
    made = player(world, clock)
    await made._play_block()
    await made._play_block()
    assert [turn.rebase for turn in world.turns] == [False, True]
    assert not made._is_over


async def test_chunk_says_how_many_frames_are_left_before_its_block() -> None:
    clock = Clock()
    made = player(Scripted(clock, block_s=0.1, left=36), clock)
    await made.send_start()
    await made._play_block()
    await made._play_block()
    await made.outbox.close()
    start, *chunks = await send_all(made)
    assert start["config"]["continues"]
    left = {message["generation_chunk_index"]: message.get("frames_left") for message in chunks}
    assert left == {1: 36}  # the viewer took none of block 0, which was dropped


async def test_world_ends_on_the_server_and_says_what_it_was_when_it_is_stopped() -> None:
    clock = Clock()
    world = Scripted(clock, block_s=0.1)
    made = player(world, clock, on_event=True)
    turn = UniversalActions(np.zeros((1, 2), np.float32), np.ones((1, 4), np.float32))
    values = {"keyboard_cond": turn.keyboard_cond}
    for number in range(3):
        made.steering.add(Interaction(number, values))
    messages = await play(made, world, 3)
    assert [message["type"] for message in messages[:2]] == ["queue_status", "video.start"]
    done = messages[-1]
    assert (done["type"], done["blocks"], done["frames"], done["chunks"]) == ("session.done", 3, 30, 30)
    assert world.is_closed and all(turn.keyboard_cond.all() for turn in world.turns)


async def test_world_pauses_when_no_viewer_is_connected() -> None:
    clock = Clock()
    world = Scripted(clock, block_s=0.1)
    made = player(world, clock)
    made.connected.clear()
    playing = asyncio.create_task(made.run())
    await asyncio.sleep(0.05)
    assert not world.turns
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert world.is_closed


FACTS = WorldFacts("matrix_game_universal", "m4s", 25, 21, None, "aGVhZA==")


async def records(data: bytes, size: int, total: int | None = None) -> list[bytes]:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    return [record async for record in read_records(pieces(), len(data) if total is None else total)]


async def test_state_is_read_again_when_it_comes_in_other_pieces() -> None:
    parts = [b"a" * (5 << 20), b"b"]
    data = b"".join(piece for record in [FACTS.to_json(), *parts] for piece in pieces_of(record))
    facts, *rest = await records(data, 1 << 20)
    assert WorldFacts.from_json(facts) == FACTS and rest == parts
    assert FACTS.header_bytes == b"head"


async def test_state_is_refused_by_name_when_it_is_not_one() -> None:
    first = b"".join(pieces_of(FACTS.to_json()))
    for data, problem in (
        (b"\xff" * 100, "record must have 1 to 65536 bytes"),
        (b"\0" * 100, "record must have 1 to 65536 bytes, got 0"),
        (first + b"\xff" * 8, "record must have 1 to 20971520 bytes"),
        (first + b"\0\0\0\x09abc", "of whole records"),
    ):
        try:
            await records(data, 7)
        except InvalidRequest as error:
            assert problem in str(error)
        else:
            raise AssertionError(data)
    good = FACTS.to_json()
    for bad in (b"{}", b"[]", b"\xff", good.replace(b"slipway", b"other"), good.replace(b"25", b"0"),
                good.replace(b"aGVhZA==", b"?"), good.replace(b'"m4s"', b"4"), b"[" * 9000):  # fmt: skip
        try:
            WorldFacts.from_json(bad)
        except InvalidRequest as error:
            assert "file must be a world's state" in str(error)
        else:
            raise AssertionError(bad)
