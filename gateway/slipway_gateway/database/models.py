"""Models that servers had when a gateway last saw them."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from slipway_gateway.database.engine import Database
from slipway_gateway.database.tables import ModelRow


async def read_models(database: Database) -> dict[str, dict[str, str]]:
    """Return the parameters of each known model's configuration, by the model's name."""

    async def work(session: AsyncSession) -> dict[str, dict[str, str]]:
        return {row.name: dict(row.parameters) for row in await session.scalars(select(ModelRow))}

    return await database.read(work)


async def write_model(database: Database, name: str, parameters: Mapping[str, str], seen_at: float) -> None:
    """Store the parameters of a model's configuration.

    Args:
        database: Connection to the database.
        name: Name of the model.
        parameters: Parameters of its configuration.
        seen_at: Time at which a server had the model, in Unix seconds.
    """

    async def work(session: AsyncSession, _: bool) -> None:
        await session.merge(ModelRow(name=name, parameters=dict(parameters), seen_at=seen_at))

    await database.write(work)
