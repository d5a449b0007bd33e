"""Worlds of the gateway that can be resumed: each plays in a task of its own, with or without a viewer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from slipway_gateway.realtime.failures import SessionFailures
from slipway_gateway.realtime.limits import MOST_WORLDS, RESUME_S
from slipway_gateway.realtime.opening import Opening
from slipway_gateway.realtime.outbox import Outbox
from slipway_gateway.realtime.player import Player
from slipway_gateway.realtime.world import World
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import InvalidRequest, Overloaded


@dataclass(eq=False)
class PlayedWorld:
    """A world with its task.

    Attributes:
        player: Player of the world.
        task: Task that plays it.
        token: Token with which its viewer may come back.
        owner: Id of the key that opened it.
        viewer: Object that stands for the present connection; None if there is none.
        sending: Task that sends to the present connection; None if there is none.
        expiry: Timer that ends the world without a viewer; None while there is one.
    """

    player: Player
    task: asyncio.Task[None]
    token: str
    owner: str
    viewer: object | None = None
    sending: asyncio.Task[None] | None = None
    expiry: asyncio.TimerHandle | None = None


class Worlds:
    """All worlds of this process.

    Args:
        replicas: Replicas of the gateway.
        resume_s: Time for which a world waits for its viewer, in seconds.
        failures: Failures of sessions, to which those of worlds are added.
    """

    def __init__(
        self, replicas: Replicas, resume_s: float = RESUME_S, failures: SessionFailures | None = None
    ) -> None:
        self._replicas, self._resume_s = replicas, resume_s
        self._failures = failures or SessionFailures()
        self._worlds: dict[str, PlayedWorld] = {}

    def __len__(self) -> int:
        return len(self._worlds)

    def begin(self, opening: Opening, owner: str, pieces: AsyncIterator[bytes] | None) -> PlayedWorld:
        """Begin to play a world.

        Args:
            opening: World that the viewer asks for.
            owner: Id of the viewer's key.
            pieces: Pieces of the state from which it goes on.

        Raises:
            Overloaded: This process has too many worlds.
        """
        if len(self._worlds) >= MOST_WORLDS:
            raise Overloaded(f"{opening.model}: the gateway plays {MOST_WORLDS} worlds already; try later")
        token = secrets.token_urlsafe(24)
        world = World(self._replicas, opening.kind, opening.request, opening.model)
        outbox = Outbox(may_drop=not opening.on_event)
        identity = {"request_id": f"world_{secrets.token_hex(8)}", "resume_token": token}
        player = Player(opening, world, outbox, pieces, identity)
        task = asyncio.create_task(
            self._play(player, token, opening.model, identity["request_id"]), name=identity["request_id"]
        )
        self._worlds[token] = played = PlayedWorld(player, task, token, owner)
        return played

    def find(self, token: object, owner: str) -> PlayedWorld:
        """Return the world of a token.

        Raises:
            InvalidRequest: There is no such world, or it belongs to another key.
        """
        found = self._worlds.get(token) if isinstance(token, str) else None
        if found is None or found.owner != owner:
            raise InvalidRequest(
                "session.resume: token must be that of a world whose connection was lost less than"
                f" {self._resume_s:g} s ago, got another one; try session.start"
            )
        return found

    async def detach(self, played: PlayedWorld) -> None:
        """Take a world from its present connection, which a viewer that comes back no longer uses."""
        played.viewer = None
        if played.sending is not None:
            played.sending.cancel()
            await asyncio.gather(played.sending, return_exceptions=True)

    def connect(self, played: PlayedWorld) -> object:
        """Record that a viewer is connected; return what stands for it."""
        if played.expiry is not None:
            played.expiry.cancel()
            played.expiry = None
        played.viewer = object()
        played.player.connected.set()
        return played.viewer

    def disconnect(self, played: PlayedWorld, viewer: object) -> None:
        """Record that a connection was lost; the world pauses, and ends if nobody comes back in time."""
        if played.viewer is viewer:
            played.viewer = None
            played.player.connected.clear()
            loop = asyncio.get_running_loop()
            played.expiry = loop.call_later(self._resume_s, played.task.cancel)

    async def end(self, played: PlayedWorld) -> None:
        """End a world, and wait until its session has ended on the server."""
        played.task.cancel()
        await asyncio.gather(played.task, return_exceptions=True)

    async def close(self) -> None:
        """End all worlds."""
        await asyncio.gather(*(self.end(played) for played in tuple(self._worlds.values())))

    async def _play(self, player: Player, token: str, model: str, request_id: str) -> None:
        try:
            await player.run()
        except Exception as error:
            self._failures.record(request_id, model, error)
            raise
        finally:
            played = self._worlds.pop(token, None)
            if played is not None and played.expiry is not None:
                played.expiry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await player.outbox.close()
