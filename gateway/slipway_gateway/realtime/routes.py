"""Routes of the sockets, and of corrections of inertial recordings.

A caller is authenticated before its connection is accepted. A browser cannot set headers for a WebSocket, so
it offers its key as a subprotocol, and beside it the subprotocol `realtime`, which the gateway accepts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Query, Request, Response
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from slipway_gateway.realtime.channel import Channel
from slipway_gateway.realtime.failures import SessionFailures
from slipway_gateway.realtime.imu import checked_units, correct_recording, serve_imu
from slipway_gateway.realtime.limits import RESUME_S
from slipway_gateway.realtime.listen import serve_listen
from slipway_gateway.realtime.trajectories import (
    MOST_SECONDS,
    TRAJECTORY_BODY,
    TrajectoryAnswer,
    compare_trajectories,
    example_file,
)
from slipway_gateway.realtime.world_socket import WorldSocket
from slipway_gateway.realtime.worlds import Worlds
from slipway_gateway.replicas.replicas import Replicas
from slipway_gateway.routes.openapi import errors
from slipway_serving.protocol.errors import SlipwayError


class Caller(Protocol):
    """Key of a caller."""

    @property
    def id(self) -> str:
        """Id of the key."""


Authenticate = Callable[[HTTPConnection], Awaitable[Caller]]
"""Function that returns the key of a WebSocket or a request, or raises ApiError."""


def router(
    replicas: Replicas,
    authenticate: Authenticate,
    *,
    resume_s: float = RESUME_S,
    count_open: Callable[[str, int], None] = lambda route, change: None,
    failures: SessionFailures | None = None,
) -> APIRouter:
    """Return the routes below `/v1`; when the application ends, all of its worlds end.

    Args:
        replicas: Replicas of the gateway.
        authenticate: Function that authenticates a caller.
        resume_s: Time for which a world waits for its viewer after a connection was lost, in seconds.
        count_open: Function that is called with a route and 1 when a socket opens, and -1 when it closes.
        failures: Failures of sessions, to which those of these sockets are added.
    """
    failures = failures or SessionFailures()
    worlds = Worlds(replicas, resume_s, failures)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        await worlds.close()

    routes = APIRouter(lifespan=lifespan)

    async def admitted(
        websocket: WebSocket, where: str, serve: Callable[[Channel, Caller], Awaitable[None]]
    ) -> None:
        channel = Channel(websocket, where)
        try:
            caller = await authenticate(websocket)
        except SlipwayError as error:
            await channel.deny(error)
            return
        await channel.accept()
        count_open(where, 1)
        try:
            await serve(channel, caller)
        finally:
            count_open(where, -1)

    @routes.websocket("/v1/realtime/video")
    async def realtime_video(
        websocket: WebSocket, resume: str | None = None, received_chunks: int | None = None
    ) -> None:
        async def serve(channel: Channel, caller: Caller) -> None:
            await WorldSocket(channel, replicas, worlds, caller.id).serve(resume, received_chunks)

        await admitted(websocket, "realtime", serve)

    @routes.websocket("/v1/listen")
    async def listen(websocket: WebSocket) -> None:
        await admitted(websocket, "listen", lambda channel, _: serve_listen(channel, replicas, failures))

    @routes.websocket("/v1/imu")
    async def imu_stream(websocket: WebSocket) -> None:
        await admitted(websocket, "imu", lambda channel, _: serve_imu(channel, replicas))

    @routes.post(
        "/v1/imu", tags=["imu"], summary="Correct an inertial recording", responses=errors(400, 413, 429, 504)
    )
    async def imu(
        request: Request,
        rate_unit: Annotated[str | None, Query(description="Unit of a CSV file's rates of rotation.")] = None,
        acceleration_unit: Annotated[
            str | None, Query(description="Unit of a CSV file's acceleration.")
        ] = None,
    ) -> dict[str, Any]:
        await authenticate(request)
        return await correct_recording(request, replicas, rate_unit, acceleration_unit)

    @routes.post(
        "/v1/imu/trajectory",
        tags=["imu"],
        summary="Compare the trajectories of an inertial recording before and after its correction",
        responses=errors(400, 413, 429, 504),
        openapi_extra=TRAJECTORY_BODY,
    )
    async def imu_trajectory(
        request: Request,
        start_s: Annotated[float, Query(ge=0, description="Beginning of the trajectories, in seconds.")] = 0,
        seconds: Annotated[
            float, Query(gt=0, le=MOST_SECONDS, description="Length of the trajectories, in seconds.")
        ] = 15,
        rate_unit: Annotated[str | None, Query(description="Unit of a CSV file's rates of rotation.")] = None,
        acceleration_unit: Annotated[
            str | None, Query(description="Unit of a CSV file's acceleration.")
        ] = None,
    ) -> TrajectoryAnswer:
        await authenticate(request)
        units = checked_units(rate_unit, acceleration_unit)
        return await compare_trajectories(request, replicas, units, start_s, seconds)

    @routes.get(
        "/v1/imu/example",
        tags=["imu"],
        summary="Download a made recording of an inertial sensor, to try the correction",
        response_class=Response,
        responses={200: {"description": "The file.", "content": {"text/csv": {}}}, **errors(400)},
    )
    async def imu_example(
        request: Request,
        part: Annotated[
            Literal["signals", "ground_truth"], Query(description="File to download.")
        ] = "signals",
    ) -> Response:
        await authenticate(request)
        return Response(await asyncio.to_thread(example_file, part), media_type="text/csv")

    return routes
