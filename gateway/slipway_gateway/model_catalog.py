"""Models that the servers have, or had when they were last seen, with the parameters of their configuration.

The catalog is stored, so a gateway accepts jobs while every server is down or scaled to zero: it still knows
the usual values and the ranges of each model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from slipway_client.served_model import ServedModel
from slipway_gateway.database.engine import Database
from slipway_gateway.database.models import read_models, write_model
from slipway_gateway.fields.kinds import VideoKind
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import SlipwayError

_log = logging.getLogger(__name__)
_REFRESH_S = 5.0


class ModelCatalog:
    """Catalog of the models for videos.

    Args:
        database: Connection to the database.
        replicas: Servers.
        kinds: Kinds of videos by model.
    """

    def __init__(self, database: Database, replicas: Replicas, kinds: Mapping[str, VideoKind]) -> None:
        self._database, self._replicas, self._kinds = database, replicas, kinds
        self._models: dict[str, ServedModel] = {}
        self._written: dict[str, ServedModel] = {}

    async def models(self) -> Mapping[str, ServedModel]:
        """Return the models that a server has now or had before."""
        if not self._models:
            await self.refresh()
        return self._models

    async def refresh(self) -> None:
        """Read the models of the servers, and those that other gateways have seen."""
        stored = await read_models(self._database)
        found = {name: ServedModel(name, parameters) for name, parameters in stored.items()}
        for name in self._replicas.served().keys() & self._kinds.keys():
            try:
                served = ServedModel(name, await self._replicas.parameters(name))
            except SlipwayError as error:
                _log.warning("%s: its configuration cannot be read: %s", name, error)
                continue
            if self._written.get(name) != served:
                await write_model(self._database, name, served.parameters, time.time())
                self._written[name] = served
            found[name] = served
        self._models = found

    async def run(self) -> None:
        """Refresh the catalog from time to time until the task is cancelled."""
        while True:
            try:
                await self.refresh()
            except SlipwayError as error:
                _log.warning("the models could not be read: %s", error)
            await asyncio.sleep(_REFRESH_S)
