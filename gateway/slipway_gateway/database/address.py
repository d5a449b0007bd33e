"""Address of the gateway's database, and what its drivers are told."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from slipway_serving.protocol.errors import InvalidRequest

LOCK_WAIT_S = 30
"""Time for which a write waits for a lock of another process, in seconds."""
_POSTGRES = {"postgres", "postgresql", "postgresql+psycopg"}


def database_url(text: str) -> URL:
    """Parse the address of a database.

    Args:
        text: ``sqlite:///path`` or ``postgresql://user:password@host/name``.

    Raises:
        InvalidRequest: It is neither; the message does not contain a password.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        url = None
    rule = "database must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    if url is None:
        raise InvalidRequest(f"gateway: {rule}, got a text that is no URL; try sqlite:///gateway/jobs.db")
    if url.drivername in _POSTGRES:
        return url.set(drivername="postgresql+psycopg")
    shown = url.render_as_string(hide_password=True)
    if url.drivername != "sqlite":
        raise InvalidRequest(f"gateway: {rule}, got {shown}; try sqlite:///gateway/jobs.db")
    if not url.database or url.database == ":memory:":
        raise InvalidRequest(
            f"gateway: database must be a file that several connections share, got {shown}; try"
            " sqlite:///gateway/jobs.db"
        )
    return url


def connect_arguments(url: URL) -> dict[str, Any]:
    """Return the driver's arguments for a database."""
    if url.get_backend_name() == "sqlite":
        return {"timeout": LOCK_WAIT_S}
    arguments: dict[str, Any] = {
        # Connection poolers mix up statements that were prepared on the server.
        "prepare_threshold": None,
        # Without keepalives, a connection to a machine that has vanished stays open for hours.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    given = {"connect_timeout": 5, "application_name": "slipway-gateway"}
    return arguments | {name: value for name, value in given.items() if name not in url.query}
