"""One process of the gateway: its services are started, its routes served and its worker run until a signal.

On SIGTERM and SIGINT the process reports that it is not ready, its worker stops its videos at their next step
and gives the jobs back, and the open requests have the exit timeout to finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any

import uvicorn
import uvloop
from fastapi import APIRouter, FastAPI

from slipway_gateway.access.keys import KeyStore
from slipway_gateway.app import create_app
from slipway_gateway.contents.pictures import Pictures
from slipway_gateway.contents.store import ContentStore
from slipway_gateway.database.changes import ChangeSignals
from slipway_gateway.database.engine import Database
from slipway_gateway.database.revisions import prepare
from slipway_gateway.fields.kinds import video_kinds
from slipway_gateway.guard import GuardSettings
from slipway_gateway.jobs.feed import JobFeed
from slipway_gateway.jobs.store import JobStore
from slipway_gateway.jobs.upkeep import Upkeep
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.model_catalog import ModelCatalog
from slipway_gateway.outbound.webhooks import Webhooks
from slipway_gateway.realtime import routes as realtime
from slipway_gateway.replicas.replicas import Replicas
from slipway_gateway.routes import docs, editing, events, file_settings, fleet, health, making, models, videos
from slipway_gateway.routes.authentication import Authenticate, authentication
from slipway_gateway.routes.own_jobs import OwnJobs
from slipway_gateway.runs.worker import Worker
from slipway_gateway.services import Services
from slipway_gateway.settings import GatewaySettings, Role
from slipway_gateway.studio import routes as studio
from slipway_serving.protocol import distribution
from slipway_serving.protocol.errors import InvalidRequest

_log = logging.getLogger(__name__)
_SMALL_BODY_BYTES = 1 << 20
_CANCEL_GRACE_S = 2.0
_LEASE_INTERVAL_S = 5.0
"""Longest time between two looks at the leases; short leases are looked at more often."""
# Clients and proxies keep idle connections for 5 to 60 s. If the gateway closed one first, it would lose the
# request that is on its way.
_IDLE_CONNECTION_S = 75
# Time after which a thread of the database lets the event loop go on. The loop gives up the interpreter at
# every read and write of a socket, and would wait 5 ms for it each time.
_SWITCH_INTERVAL_S = 0.0005
# Ten times Python's. Of 250 connections that had ended, collections freed about 50 objects each.
_COLLECTIONS_BEFORE_A_FULL_ONE = 100


class GatewayProcess:
    """One process of the gateway.

    Args:
        settings: Settings of the process.

    Attributes:
        settings: Settings of the process.
        services: Services, from the start on.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.services: Services | None = None
        self._worker: Worker | None = None
        self._is_stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FastAPI]:
        """Start the services and the worker, and end them when the block ends.

        Yields:
            The application with the routes of the role.

        Raises:
            InvalidRequest: A setting cannot be used.
            NotReady: The database or the contents cannot be reached, or the database has tables of another
                version.
        """
        settings = self.settings
        settings.prepare()
        await asyncio.to_thread(prepare, settings.database_url)
        async with AsyncExitStack() as stack:
            services = self.services = await self._start_services(stack)
            tasks = self._start_tasks(services)
            try:
                yield self._application(services)
            finally:
                await self._end(tasks)

    async def _start_services(self, stack: AsyncExitStack) -> Services:
        """Open the database, the contents and the connections to the servers; the stack closes them."""
        settings = self.settings
        database = Database(settings.database_url)
        stack.push_async_callback(database.close)
        contents = ContentStore(settings.contents_url)
        await contents.check()
        replicas = Replicas(
            settings.triton,
            concurrency=settings.concurrency,
            metrics_port=settings.triton_metrics_port or None,
            tls=settings.tls,
        )
        stack.push_async_callback(replicas.close)
        store, metrics, kinds = JobStore(database, keep_s=settings.keep_s), GatewayMetrics(), video_kinds()
        signals = await stack.enter_async_context(ChangeSignals(database))
        feed = await stack.enter_async_context(JobFeed(store, signals))
        webhooks = Webhooks(
            database, feed.ended, allow_private=settings.allow_private_addresses, count=metrics.webhook
        )
        await replicas.start()
        return Services(
            settings=settings,
            database=database,
            keys=KeyStore(database),
            store=store,
            feed=feed,
            contents=contents,
            pictures=Pictures(contents),
            replicas=replicas,
            catalog=ModelCatalog(database, replicas, kinds),
            kinds=kinds,
            webhooks=webhooks,
            metrics=metrics,
        )

    def stop(self) -> None:
        """Report that the process is not ready, and let the worker stop its videos."""
        self._is_stopping = True
        if self._worker is not None:
            self._worker.stop()

    @property
    def is_stopping(self) -> bool:
        """True from the shutdown signal on."""
        return self._is_stopping

    def _start_tasks(self, services: Services) -> list[asyncio.Task[None]]:
        """Start the background work; the worker comes first."""
        settings = services.settings
        upkeep = Upkeep(
            services.store,
            services.contents,
            max_attempts=settings.max_attempts,
            quota_bytes=settings.quota_bytes,
            ended=services.metrics.finished,
            measured=services.metrics.set_contents,
        )
        lease_interval_s = min(settings.lease_s / 3, _LEASE_INTERVAL_S)
        work = [services.catalog.run(), upkeep.run(lease_interval_s)]
        if settings.role is not Role.API:
            self._worker = Worker(
                f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
                settings,
                services.store,
                services.feed,
                services.contents,
                services.replicas,
                services.kinds,
                services.metrics,
            )
            work = [self._worker.run(), services.webhooks.run(), *work]
        return [asyncio.create_task(_logged(each)) for each in work]

    def _application(self, services: Services) -> FastAPI:
        settings = services.settings
        authenticate = authentication(services.keys, required=bool(settings.require_keys))
        routers: list[APIRouter] = [health.router(services, lambda: self.is_stopping)]
        if settings.role is not Role.WORKER:
            own = OwnJobs(services, authenticate)
            routers += [
                events.router(services, own),
                file_settings.router(own),
                making.router(services, own),
                editing.router(services, own),
                videos.router(services, own),
                *_admin_routes(settings, authenticate),
                models.router(services, own),
                fleet.router(services, own),
                realtime.router(
                    services.replicas,
                    authenticate,
                    count_open=services.metrics.count_open,
                    failures=services.session_failures,
                ),
                docs.router(),
                *([studio.router()] if settings.studio else []),
            ]
        guard = GuardSettings(
            keys_required=bool(settings.require_keys),
            server_names=settings.server_names,
            allow_origins=settings.allow_origins,
            body_bytes=_SMALL_BODY_BYTES,
            body_limits=dict.fromkeys(
                ("/v1/videos", "/v1/imu", "/v1/models/trained"), settings.max_body_bytes
            ),
        )
        return create_app(routers, guard, services.metrics, version(distribution.NAME))

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """End the worker within the exit timeout, then the other background work."""
        self.stop()
        if self._worker is not None:
            await asyncio.wait({tasks[0]}, timeout=self.settings.exit_timeout_s + _CANCEL_GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    """Await background work, and log the error that ends it."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except Exception:
        _log.exception("the gateway's background work ended")
        raise


def _admin_routes(settings: GatewaySettings, authenticate: Authenticate) -> list[APIRouter]:
    """Return the routes of the trained models, where a folder of them is given."""
    if settings.models is None or settings.repository is None:
        return []
    from slipway_gateway.trained_models.admin import admin_router

    return [admin_router(settings, authenticate)]


def serve(settings: GatewaySettings, announce: Callable[[str], None]) -> None:
    """Run a process of the gateway until SIGTERM or SIGINT.

    Args:
        settings: Settings of the process.
        announce: Callback that receives the address when the process answers.

    Raises:
        InvalidRequest: The address cannot be used, or a setting is wrong.
        NotReady: The database or the contents cannot be reached.
    """
    uvloop.run(_serve(settings, announce))


async def _serve(settings: GatewaySettings, announce: Callable[[str], None]) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    process = GatewayProcess(settings)
    listening = listen(settings.host, settings.port)
    async with process.running() as app:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_keep_alive=_IDLE_CONNECTION_S,
            timeout_graceful_shutdown=round(settings.exit_timeout_s),
            ws_max_size=_SMALL_BODY_BYTES * 8,
            # Video is compressed, and sound hardly gets smaller: with 50 microphones, the compression of
            # messages took 8 % of the event loop's time.
            ws_per_message_deflate=False,
        )
        server = _Server(config)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            process.stop()
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        # A full garbage collection looks at every object. With those of all modules, it took 100 to 200 ms,
        # in which no request was answered.
        gc.collect()
        gc.freeze()
        # With a crowd's 250 connections, one still took 90 ms, and came several times a minute.
        gc.set_threshold(*gc.get_threshold()[:2], _COLLECTIONS_BEFORE_A_FULL_ONE)
        host, port = listening.getsockname()[:2]
        announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await server.serve(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves the signals to us, since the worker has to learn of them first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        InvalidRequest: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small pieces at once (TCP_NODELAY) only where a socket names its protocol. Otherwise the
    # body of an answer waits 40 ms for the acknowledgement of its headers.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        raise InvalidRequest(
            f"gateway: host and port must be a free address of this machine, got {host}:{port}"
            f" ({error.strerror or error}); try --port 0"
        ) from None
    return found
