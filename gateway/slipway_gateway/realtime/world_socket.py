"""The socket of worlds: it reads what a viewer sends, and sends what the player has for it.

The first message begins a world (`session.start`) or comes back to one (`session.resume`). From then on one
task reads, one sends, and the player makes blocks; :mod:`slipway_gateway.realtime.worlds` keeps the player
while its viewer is away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from slipway_gateway.realtime.channel import (
    CallerSilent,
    Channel,
    Disconnected,
    Message,
    Refused,
    error_message,
)
from slipway_gateway.realtime.limits import IDLE_S, START_BYTES, START_S, CloseCode
from slipway_gateway.realtime.opening import model_of, parse_start
from slipway_gateway.realtime.steering import event_id_of, parse_interaction
from slipway_gateway.realtime.worlds import PlayedWorld, Worlds
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import (
    Cancelled,
    InvalidRequest,
    Overloaded,
    SlipwayError,
)
from slipway_serving.protocol.texts import short


class WorldSocket:
    """One connection of a viewer.

    Args:
        channel: Accepted socket.
        replicas: Replicas of the gateway.
        worlds: Worlds of this process.
        owner: Id of the viewer's key.
    """

    def __init__(self, channel: Channel, replicas: Replicas, worlds: Worlds, owner: str) -> None:
        self._channel, self._replicas, self._worlds, self._owner = channel, replicas, worlds, owner
        self._state: asyncio.Queue[bytes] = asyncio.Queue(maxsize=2)
        self._state_left = 0
        self._is_stopping = False

    async def serve(self, token: str | None, received_chunks: int | None) -> None:
        """Serve the connection until it ends.

        Args:
            token: Token of the world to come back to, from the address; None if the first message says it.
            received_chunks: Number of chunks that the viewer has received, from the address.
        """
        try:
            if token is not None:
                played = await self._resume(token, received_chunks)
            else:
                played = await self._first_message()
        except Disconnected:
            return
        except SlipwayError as error:
            await self._channel.fail(error)
            return
        await self._watch(played)

    async def _first_message(self) -> PlayedWorld:
        """Read the first message, and begin a world or come back to one."""
        try:
            message = await self._channel.receive(json_bytes=START_BYTES, timeout_s=START_S)
        except TimeoutError:
            raise CallerSilent(
                f"{self._channel.where}: session.start must come within {START_S:g} s"
            ) from None
        if isinstance(message, bytes) or message["type"] not in ("session.start", "session.resume"):
            got = "a binary message" if isinstance(message, bytes) else short(message["type"])
            raise InvalidRequest(
                f"{self._channel.where}: first message must be session.start or session.resume, got {got}"
            )
        if message["type"] == "session.resume":
            return await self._resume(message.get("token"), message.get("received_chunks"))
        parameters = await self._replicas.parameters(model_of(message))
        opening = parse_start(message, parameters)
        self._state_left = opening.state_bytes or 0
        pieces = self._pieces() if opening.state_bytes is not None else None
        return self._worlds.begin(opening, self._owner, pieces)

    async def _resume(self, token: object, received_chunks: Any) -> PlayedWorld:
        if received_chunks is not None and (type(received_chunks) is not int or received_chunks < 0):
            raise InvalidRequest(
                f"session.resume: received_chunks must be 0 or more, got {short(received_chunks)}"
            )
        played = self._worlds.find(token, self._owner)
        await self._worlds.detach(played)
        lost = await played.player.outbox.rewind(received_chunks)
        # The answer goes before the chunks that come again.
        await self._channel.send({"type": "session.resumed", "lost_chunks": lost})
        if not received_chunks and (header := played.player.header_message()):
            await self._channel.send(*header)
        return played

    async def _watch(self, played: PlayedWorld) -> None:
        """Read and send until the world ends or the connection does."""
        viewer = self._worlds.connect(played)
        reading = asyncio.create_task(self._read(played))
        played.sending = sending = asyncio.create_task(self._send(played))
        try:
            await asyncio.wait({reading, sending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and (error := reading.exception()) is not None:
                await self._end_by(played, error, is_viewer=played.viewer is viewer)
        finally:
            for task in (reading, sending):
                task.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            self._worlds.disconnect(played, viewer)
        if played.player.outbox.is_closed:
            await asyncio.wait({played.task})
            await self._close(played)
        else:
            await self._channel.close(CloseCode.RULE_BROKEN, "the connection is not used any more")

    async def _end_by(self, played: PlayedWorld, error: BaseException, *, is_viewer: bool) -> None:
        """End the world if the viewer broke a rule, and keep it for a while if the connection was lost."""
        if isinstance(error, Disconnected):
            if self._is_stopping and is_viewer:
                await self._worlds.end(played)
            return
        if is_viewer:
            await self._worlds.end(played)
        if not isinstance(error, SlipwayError):
            raise error
        await self._channel.fail(error)

    async def _read(self, played: PlayedWorld) -> None:
        """Read the viewer's messages until the connection ends.

        Raises:
            Disconnected: The viewer is gone.
            SlipwayError: The viewer broke a rule that ends the world.
        """
        while True:
            message = await self._channel.receive()
            if isinstance(message, bytes):
                await self._take_piece(message)
                continue
            try:
                await self._answer(message, played)
            except Refused:
                raise
            except (InvalidRequest, Overloaded) as error:
                await played.player.outbox.put(error_message(error, event_id_of(message)))

    async def _answer(self, message: Message, played: PlayedWorld) -> None:
        player = played.player
        match message["type"]:
            case "session.interaction":
                assert player.steering.turn is not None
                interaction = parse_interaction(message, player.steering.turn)
                queued = player.steering.add(interaction)
                answer = {"type": "session.interaction.queued", "queued": queued}
                if interaction.event_id is not None:
                    answer["event_id"] = interaction.event_id
                await player.outbox.put(answer)
            case "session.ping":
                echo = {key: value for key, value in message.items() if key in ("event_id", "timestamp")}
                await player.outbox.put({"type": "session.pong", **echo})
            case "session.ack":
                received = message.get("received_chunks")
                if type(received) is not int or received < 0:
                    raise InvalidRequest(
                        f"session.ack: received_chunks must be 0 or more, got {short(received)}"
                    )
                await player.outbox.acknowledge(received)
            case "session.snapshot":
                player.request_snapshot()
            case "session.stop":
                self._is_stopping = True
                player.stop()
            case other:
                raise InvalidRequest(
                    f"{self._channel.where}: type must be session.interaction, session.snapshot, session.ack,"
                    f" session.ping or session.stop, got {short(other)}"
                )

    async def _take_piece(self, piece: bytes) -> None:
        """Hand a piece of the state to the player."""
        if not 0 < len(piece) <= self._state_left:
            raise Refused(
                f"{self._channel.where}: a binary message must be a piece of the state that session.start"
                f" announced, got {len(piece)} bytes with {self._state_left} bytes left",
                CloseCode.WRONG_KIND,
            )
        self._state_left -= len(piece)
        await self._state.put(piece)

    async def _pieces(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    yield await self._state.get()
            except TimeoutError:
                raise CallerSilent(
                    f"{self._channel.where}: the next piece of the state must come within {IDLE_S:g} s"
                ) from None

    async def _send(self, played: PlayedWorld) -> None:
        """Send what the player has until the world ends or the connection does."""
        outbox = played.player.outbox
        with contextlib.suppress(Disconnected):
            while (item := await outbox.next()) is not None:
                await self._channel.send(item.message, item.data)

    async def _close(self, played: PlayedWorld) -> None:
        """Close the socket after the world's end."""
        if played.task.cancelled():
            await self._channel.fail(Cancelled(f"{self._channel.where}: the world was ended"))
            return
        error = played.task.exception()
        if error is None:
            await self._channel.close(CloseCode.DONE)
        elif isinstance(error, SlipwayError):
            await self._channel.fail(error)
        else:
            await self._channel.close(CloseCode.FAILED, "internal")
            raise error
