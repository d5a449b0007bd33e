"""What the routes of one process share: store, contents, servers, keys, kinds of videos, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slipway_gateway.access.keys import KeyStore
from slipway_gateway.contents.pictures import Pictures
from slipway_gateway.contents.store import ContentStore
from slipway_gateway.database.engine import Database
from slipway_gateway.fields.kinds import VideoKind
from slipway_gateway.jobs.feed import JobFeed
from slipway_gateway.jobs.job import Job, Status
from slipway_gateway.jobs.store import JobStore
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.model_catalog import ModelCatalog
from slipway_gateway.outbound.webhooks import Webhooks
from slipway_gateway.realtime.failures import SessionFailures
from slipway_gateway.replicas.replicas import Replicas
from slipway_gateway.settings import GatewaySettings


@dataclass(frozen=True)
class Services:
    """Services of one process of the gateway.

    Attributes:
        settings: Settings of the process.
        database: Connection to the database.
        keys: Keys of the callers.
        store: Store of the jobs.
        feed: Feed of the jobs' changes.
        contents: Store of the contents.
        pictures: Pictures of finished videos.
        replicas: Servers.
        catalog: Models that the servers have, or had when they were last seen.
        kinds: Kinds of videos by model.
        webhooks: Webhooks.
        metrics: Metrics of the process.
        session_failures: Failed worlds and microphones of the process.
    """

    settings: GatewaySettings
    database: Database
    keys: KeyStore
    store: JobStore
    feed: JobFeed
    contents: ContentStore
    pictures: Pictures
    replicas: Replicas
    catalog: ModelCatalog
    kinds: Mapping[str, VideoKind]
    webhooks: Webhooks
    metrics: GatewayMetrics
    session_failures: SessionFailures = field(default_factory=SessionFailures)

    async def position(self, job: Job) -> int | None:
        """Return the place of a waiting job in the queue of its model; None for any other job."""
        return await self.feed.position(job.id) if job.status is Status.QUEUED else None
