"""Route that reads the settings of a video back from its file."""

# FastAPI evaluates the annotations of the routes, which name local dependencies.

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, UploadFile

from slipway_gateway.access.keys import Key
from slipway_gateway.contents.video_settings import read_settings
from slipway_gateway.routes.openapi import errors
from slipway_gateway.routes.own_jobs import OwnJobs


def router(own: OwnJobs) -> APIRouter:
    """Return the route of the settings in a file."""
    routes = APIRouter(prefix="/v1/videos", tags=["videos"])

    @routes.post("/settings", responses=errors(400, 413))
    async def read_file_settings(
        file: Annotated[UploadFile, File(description="MP4 file or PNG picture of a gateway.")],
        key: Annotated[Key, Depends(own.key)],
    ) -> dict[str, Any]:
        """Return the prompt, the request and the versions that a file of a gateway contains."""
        data = await file.read()
        return asdict(await asyncio.to_thread(read_settings, data))

    return routes
