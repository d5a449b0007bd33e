"""Environment of Alembic: it runs the revisions on the connection of the caller."""

from __future__ import annotations

from alembic import context

from slipway_gateway.database.tables import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    compare_type=True,
    # SQLite can change a column only by a copy of its table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
