"""A world on a replica: its session, its place there, and its move to another replica.

A world stays on its replica. If the replica drains, the world moves between two blocks: its snapshot goes
part by part from the old replica to a session on the new one, so the next frames equal those of a world that
never moved.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from slipway_client import AsyncSession
from slipway_gateway.realtime.limits import BLOCK_S, MOVE_S
from slipway_gateway.realtime.world_kinds import can_move
from slipway_gateway.replicas.replica import ReplicaState
from slipway_gateway.replicas.replicas import Replicas
from slipway_gateway.replicas.session_line import OnPosition, SessionPlace
from slipway_serving.protocol.errors import InvalidRequest, NotReady, Overloaded, SessionLost, SlipwayError
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.requests import Request


class World:
    """World of one viewer.

    Args:
        replicas: Replicas of the gateway.
        kind: Class of the request that opens the world.
        opening: Request that opens the world; None if it goes on from a state.
        model: Name of the served model.

    Attributes:
        has_begun: True if the world has a block.
    """

    def __init__(self, replicas: Replicas, kind: type[Request], opening: Request | None, model: str) -> None:
        self._replicas, self._kind, self._opening, self._model = replicas, kind, opening, model
        self._place: SessionPlace | None = None
        self._session: AsyncSession | None = None
        self.has_begun = False

    @property
    def is_draining(self) -> bool:
        """True if the world's replica takes no new work."""
        return self._place is not None and self._place.replica.state is ReplicaState.DRAINING

    async def take_place(self, on_position: OnPosition) -> None:
        """Wait for a free session on a replica.

        Raises:
            NotReady: No replica serves the model.
            Overloaded: The line is full.
        """
        self._place = await self._replicas.take_session(self._model, on_position=on_position)

    async def restore(self, parts: AsyncIterable[bytes]) -> None:
        """Begin from the parts of a snapshot.

        Raises:
            SlipwayError: The server refuses a part.
        """
        client = self._owned_place.replica.client
        self._session = await client.restore(self._kind, parts, model=self._model)
        self.has_begun = True

    async def block(self, turn: Request) -> AsyncGenerator[Event, None]:
        """Make the next block, and yield its events.

        Raises:
            Overloaded: The server has no free session although it should have one; the place is given back.
            NotReady: The replica refuses the block since it shuts down; the world is unchanged.
            SlipwayError: The block failed.
        """
        place = self._owned_place
        if self._session is None:
            assert self._opening is not None
            self._session = place.replica.client.session(self._opening, model=self._model)
        try:
            async with contextlib.aclosing(self._session.step(turn, timeout_s=BLOCK_S)) as events:
                async for event in events:
                    yield event
        except Overloaded:
            if not self.has_begun:
                self._session, self._place = None, None
                place.refuse()
            raise
        except InvalidRequest:
            if not self.has_begun:  # the server did not begin the session, so its first turn comes again
                await self._end_session()
            raise
        except NotReady:
            self._replicas.record_shutdown(place.replica)
            raise
        self.has_begun = True

    async def snapshot(self) -> AsyncIterator[bytes]:
        """Yield the parts of the world's state.

        Raises:
            SlipwayError: The server does not give a part.
        """
        assert self._session is not None
        async for part in self._session.snapshot():
            yield part

    async def move(self) -> None:
        """Move to another replica.

        Raises:
            NotReady: The world cannot move: it has no snapshots, or no other replica serves the model.
            Overloaded: No other replica has a free session.
            SlipwayError: The old or the new replica failed.
        """
        old_place, old_session = self._owned_place, self._session
        if old_session is None or not self.has_begun:
            new_place = await self._other_place(old_place)
            await self._leave(old_place, old_session)
            self._place, self._session = new_place, None
            return
        if not can_move(self._kind):
            raise NotReady(f"{self._model}: the world's server shuts down, and the model has no snapshots")
        new_place = await self._other_place(old_place)
        try:
            client = new_place.replica.client
            session = await client.restore(self._kind, old_session.snapshot(), model=self._model)
        except BaseException:
            new_place.release()
            raise
        self._place, self._session = new_place, session
        await self._leave(old_place, old_session)

    async def close(self) -> None:
        """End the session on the server, and give the place back."""
        place, session = self._place, self._session
        self._place = self._session = None
        await self._leave(place, session)

    @property
    def _owned_place(self) -> SessionPlace:
        if self._place is None:
            raise SessionLost(f"{self._model}: the world has no session; begin a new one")
        return self._place

    async def _other_place(self, old_place: SessionPlace) -> SessionPlace:
        without = frozenset({old_place.replica.url})
        return await self._replicas.take_session(self._model, timeout_s=MOVE_S, without=without, first=True)

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        await self._leave(None, session)

    @staticmethod
    async def _leave(place: SessionPlace | None, session: AsyncSession | None) -> None:
        """End a session and give its place back, even if the task is cancelled meanwhile."""

        async def leave() -> None:
            try:
                if session is not None:
                    with contextlib.suppress(SlipwayError):
                        await session.close()
            finally:
                if place is not None:
                    place.release()

        await asyncio.shield(asyncio.ensure_future(leave()))
