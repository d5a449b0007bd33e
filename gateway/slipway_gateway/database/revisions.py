"""Revision of the tables in a database: bring it up to date, or check that it is.

`slipway gateway migrate` calls :func:`upgrade`. A start calls :func:`prepare`, which changes the tables of
SQLite only: several gateways of different versions may share PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.pool import NullPool

from slipway_gateway.database.address import connect_arguments, database_url
from slipway_gateway.database.sqlite import begin_write, make_file, prepare_sqlite
from slipway_serving.protocol.errors import NotReady

# Number of PostgreSQL's advisory lock; any number that nothing else in the database uses.
_LOCK = 0x736C_6970_0001


def upgrade(url: str) -> None:
    """Bring the tables of a database to the newest revision; several processes may do so at the same time.

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``.

    Raises:
        InvalidRequest: The URL names no database that the gateway supports.
        NotReady: The database cannot be reached, or a newer version of Slipway has changed its tables.
    """
    with _connection(url) as connection:
        config = configuration()
        config.attributes["connection"] = connection
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
        _check_known(connection, config)
        command.upgrade(config, "head")


def check_revision(url: str) -> None:
    """Check that the tables of a database have the revision of this version of Slipway.

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``.

    Raises:
        InvalidRequest: The URL names no database that the gateway supports.
        NotReady: The database cannot be reached, or its tables have another revision; the message names the
            command that changes them.
    """
    with _connection(url) as connection:
        config = configuration()
        _check_known(connection, config)
        current, newest = _current(connection), ScriptDirectory.from_config(config).get_current_head()
    if current != newest:
        shown = database_url(url).set(drivername=connection.dialect.name)
        raise NotReady(
            f"database: its tables must have revision {newest}, got {current or 'no tables'}; run slipway"
            f" gateway migrate --database {shown.render_as_string(hide_password=True)}"
        )


def prepare(url: str) -> None:
    """Make sure that the tables can be used: create or change those of SQLite, check those of PostgreSQL.

    Raises:
        InvalidRequest: The URL names no database that the gateway supports.
        NotReady: The database cannot be reached, or the tables of PostgreSQL have another revision.
    """
    if database_url(url).get_backend_name() == "sqlite":
        upgrade(url)
    else:
        check_revision(url)


def configuration() -> Config:
    """Return the configuration of Alembic for the migrations in this package."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _check_known(connection: Connection, config: Config) -> None:
    """Refuse a database whose revision this version does not have."""
    current = _current(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise NotReady(
            f"database: its tables have revision {current}, which this version of Slipway does not know;"
            " install the version that changed them, or a newer one"
        )


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    """Yield a connection in a transaction, which is committed at the end."""
    parsed = database_url(url)
    if parsed.get_backend_name() == "sqlite":
        make_file(parsed)
    engine = create_engine(parsed, connect_args=connect_arguments(parsed), poolclass=NullPool)
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", lambda connection, _: prepare_sqlite(connection))
        # A second process waits here, and then finds the tables of the first.
        event.listen(engine, "begin", begin_write)
    try:
        with engine.begin() as connection:
            yield connection
    except (OperationalError, InterfaceError) as error:
        reason = str(error.orig).strip().partition("\n")[0]
        shown = parsed.set(drivername=parsed.get_backend_name()).render_as_string(hide_password=True)
        raise NotReady(
            f"database: {shown} cannot be used ({reason}); check the address and the server"
        ) from None
    finally:
        engine.dispose()
