"""The HTTP API of a whole gateway whose servers are down: it knows their models from its database."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from slipway_gateway.database.models import write_model
from slipway_gateway.process import GatewayProcess
from slipway_gateway.services import Services
from slipway_gateway.settings import GatewaySettings, Role

MODELS = {
    "wan_t2v": {"usual_frames": "33", "usual_height": "64", "usual_width": "64", "range_frames": "1:33"},
    "framepack_i2v": {"usual_height": "64", "usual_width": "64"},
}


def picture(color: str = "red", size: tuple[int, int] = (64, 64)) -> bytes:
    """The content of a PNG file of one color."""
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


@dataclass(frozen=True)
class Api:
    """The API, and the services behind it."""

    http: httpx.AsyncClient
    services: Services

    async def call(self, method: str, path: str, status: int = 200, **options: Any) -> dict[str, Any]:
        """Send a request, check the status of the answer and return the answer."""
        answer = await self.http.request(method, path, **options)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    async def create(self, **fields: Any) -> dict[str, Any]:
        """Create a job."""
        return await self.call("POST", "/v1/videos", json={"prompt": "a red ball", "steps": 4} | fields)

    async def waiting(self) -> list[str]:
        """Return the ids of the waiting jobs in the order of their start."""
        positions = await self.services.store.positions()
        return sorted(positions, key=positions.__getitem__)


@asynccontextmanager
async def api_without_servers(folder: Path, **settings: Any) -> AsyncIterator[Api]:
    """Run the API of a gateway with SQLite and no worker."""
    process = GatewayProcess(
        GatewaySettings(
            triton=("127.0.0.1:1",), role=Role.API, data=folder, triton_metrics_port=0, **settings
        )
    )
    async with process.running() as app:
        services = process.services
        assert services is not None
        for name, parameters in MODELS.items():
            await write_model(services.database, name, parameters, time.time())
        await services.catalog.refresh()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield Api(http, services)
