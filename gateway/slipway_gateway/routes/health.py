"""Routes for probes and Prometheus. They need no key and tell nothing about jobs of a key."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response
from pydantic import BaseModel

from slipway_gateway.errors import ApiError
from slipway_gateway.routes.answers import ErrorAnswer
from slipway_gateway.services import Services
from slipway_serving.protocol.errors import SlipwayError


class Health(BaseModel):
    """Answer to a probe."""

    status: str = "ok"


def router(services: Services, is_stopping: Callable[[], bool]) -> APIRouter:
    """Return the routes of the probes.

    Args:
        services: Services of the process.
        is_stopping: Function that returns True from the shutdown signal on.
    """
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz")
    async def healthz() -> Health:
        """Report that the process answers."""
        return Health()

    @routes.get(
        "/readyz", responses={503: {"model": ErrorAnswer, "description": "The process is not ready."}}
    )
    async def readyz() -> Health:
        """Report that the process can take requests: its database answers and it does not stop.

        Servers may be missing: jobs wait for them.
        """
        if is_stopping():
            raise ApiError("gateway: the process stops", status=503, code="stopping", retry_after_s=1)
        await services.database.check()
        return Health()

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        try:
            services.metrics.set_jobs(await services.store.counts())
        except SlipwayError as error:
            raise ApiError(str(error), status=503, code="unavailable", retry_after_s=1) from None
        services.metrics.set_replicas([replica.state for replica in services.replicas.all])
        services.metrics.set_waiting(services.replicas.waiting())
        return Response(services.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes
