"""Models that servers had when a gateway last saw them."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from slipway_gateway.database.engine import Database
from slipway_gateway.database.tables import ModelRow


async def read_models(database: Database) -> dict[str, dict[str, str]]:
    """Return the parameters of each known model's configuration, by the model's name."""

    def work(session: Session) -> dict[str, dict[str, str]]:
        return {row.name: dict(row.parameters) for row in session.scalars(select(ModelRow))}

    return await database.read(work)


async def write_model(database: Database, name: str, parameters: Mapping[str, str], seen_at: float) -> None:
    """Store the parameters of a model's configuration.

    Args:
        database: Connection to the database.
        name: Name of the model.
        parameters: Parameters of its configuration.
        seen_at: Time at which a server had the model, in Unix seconds.
    """

    def work(session: Session, _: bool) -> None:
        session.merge(ModelRow(name=name, parameters=dict(parameters), seen_at=seen_at))

    await database.write(work)
