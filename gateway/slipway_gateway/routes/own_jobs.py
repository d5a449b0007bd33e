"""Dependencies of routes: the key of a caller, and a job of that key."""

from __future__ import annotations

from starlette.requests import Request

from slipway_gateway.access.keys import Key
from slipway_gateway.errors import not_found
from slipway_gateway.jobs.job import Job
from slipway_gateway.routes.authentication import Authenticate
from slipway_gateway.services import Services


class OwnJobs:
    """Access of callers to the jobs of their keys.

    Args:
        services: Services of the process.
        authenticate: Function that finds the key of a caller.
    """

    def __init__(self, services: Services, authenticate: Authenticate) -> None:
        self._services, self._authenticate = services, authenticate

    async def key(self, request: Request) -> Key:
        """Return the key of the caller.

        Raises:
            ApiError: The caller has no valid key.
        """
        return await self._authenticate(request)

    async def job(self, request: Request, video_id: str) -> Job:
        """Return a job of the caller's key.

        Raises:
            ApiError: The caller has no valid key, or its key has no such job.
        """
        key = await self.key(request)
        job = await self._services.store.get(video_id, key.id)
        if job is None:
            raise not_found("video", video_id[:80])
        return job
