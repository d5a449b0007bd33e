"""Sessions of stateful models, blocking and for asyncio: their turns, their snapshots and their end.

A session sends its turns by a callback of its client, one at a time, and ends on the server however the block
that uses it ends.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from types import TracebackType

from slipway_client.generation import SessionCodec
from slipway_client.snapshots import E, single_event
from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.snapshots.requests import Snapshot, SnapshotPart
from slipway_serving.protocol.turns import Session, Turn, Turns

END_S = 10.0
"""Time limit of the request that ends a session, in seconds. The server may not know the session."""


class ClientSession:
    """Session of a stateful model, see :meth:`Client.session`.

    Args:
        send: Callback that sends one turn, within a time limit in seconds, and yields its events.
        codec: Codec that encodes the turns and decodes the answers.
        turns: Turn counter of the session.
    """

    def __init__(
        self,
        send: Callable[[SessionCodec, Request | None, Turn, float | None], Generator[Event, None, None]],
        codec: SessionCodec,
        turns: Turns,
    ) -> None:
        self._timeout_s: float | None = None
        self._session: Session[Request, Event] = Session(
            lambda content, turn: send(codec, content, turn, self._timeout_s if content else END_S), turns
        )

    @property
    def id(self) -> int | str:
        """Return the id by which the server knows the session."""
        return self._session.id

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session on the server if it is open."""
        self._session.close()

    def step(
        self, turn: Request, *, last: bool = False, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Send one turn and yield its events as they arrive.

        The turn is sent when the first event is requested. Leaving the iterator cancels the turn; after that
        the session can only be ended.

        Args:
            turn: Content of the turn, of the class that the opening request names.
            last: True if the session ends with this turn.
            timeout_s: Time limit of the turn in seconds.

        Raises:
            SlipwayError: The turn failed, as in :meth:`Client.generate`; a turn is never retried.
        """
        self._timeout_s = timeout_s
        yield from self._session.step(turn, last=last)

    def snapshot(self) -> Generator[bytes, None, None]:
        """Yield the session's state in parts, from which :meth:`Client.restore` resumes it elsewhere.

        The session stays open. No turn may be sent between two parts.

        Raises:
            SlipwayError: A turn failed, as in :meth:`step`.
        """
        for number in itertools.count():
            part = self.step_single(Snapshot(number), SnapshotPart)
            yield part.data
            if number + 1 >= part.parts:
                return

    def step_single(self, turn: Request, kind: type[E]) -> E:
        """Send one turn and return its one event.

        Raises:
            Unrecoverable: The answer is not exactly one event of that class.
            SlipwayError: The turn failed, as in :meth:`step`.
        """
        return single_event(list(self.step(turn)), kind)


class AsyncSession:
    """Session of a stateful model, see :meth:`AsyncClient.session`.

    Args:
        send: Callback that sends one turn, within a time limit in seconds, and yields its events.
        codec: Codec that encodes the turns and decodes the answers.
        turns: Turn counter of the session.
    """

    def __init__(
        self,
        send: Callable[[SessionCodec, Request | None, Turn, float | None], AsyncGenerator[Event, None]],
        codec: SessionCodec,
        turns: Turns,
    ) -> None:
        self._send, self._talk, self._turns = send, codec, turns

    @property
    def id(self) -> int | str:
        """Return the id by which the server knows the session."""
        return self._turns.id

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session on the server if it is open, even if the task was cancelled."""
        if (turn := self._turns.closing) is not None:
            self._turns.record_end()
            with contextlib.suppress(SlipwayError):
                async with aclosing(self._send(self._talk, None, turn, END_S)) as answers:
                    async for _ in answers:
                        pass

    async def step(
        self, turn: Request, *, last: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send one turn and yield its events; see :meth:`ClientSession.step` for arguments and errors."""
        place = self._turns.next(last=last)
        try:
            async with aclosing(self._send(self._talk, turn, place, timeout_s)) as events:
                async for event in events:
                    yield event
        except BaseException as error:
            self._turns.record_failure(place, error)
            raise

    async def snapshot(self) -> AsyncGenerator[bytes, None]:
        """Yield the session's state in parts; see :meth:`ClientSession.snapshot`."""
        for number in itertools.count():
            part = await self.step_single(Snapshot(number), SnapshotPart)
            yield part.data
            if number + 1 >= part.parts:
                return

    async def step_single(self, turn: Request, kind: type[E]) -> E:
        """Send one turn and return its one event; see :meth:`ClientSession.step_single`."""
        return single_event([event async for event in self.step(turn)], kind)
