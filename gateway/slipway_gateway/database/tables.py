"""Tables of the gateway: keys, jobs and what belongs to them, the log of changes, and webhook deliveries.

Every change of a job adds a row to ``changes``, whose number becomes the job's version. Readers follow that
log to learn of changed and removed jobs. Migrations create these tables; a test compares the two.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Rows = Sequence[Row[*tuple[Any, ...]]]
"""Rows of a statement with any columns."""
# SQLite numbers rows by itself only if the column's type is INTEGER.
_Number = BigInteger().with_variant(Integer(), "sqlite")
_WAITS = text("status = 'queued'")
_RUNS = text("status = 'in_progress'")


class Table(DeclarativeBase):
    """Base of all tables; constraints have names, so that migrations can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    # JSON and not JSONB on PostgreSQL: a prompt may contain U+0000, which JSONB refuses.
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it
        str: Text(),
        float: Double(),
        int: BigInteger(),
        bool: Boolean(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(none_as_null=True),
    }


class KeyRow(Table):
    """Key of the API; only the digest of its secret is stored."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    secret_sha256: Mapped[str | None] = mapped_column(unique=True)
    is_admin: Mapped[bool]
    priority: Mapped[str]
    waiting: Mapped[int | None]
    jobs_per_day: Mapped[int | None]
    pixels: Mapped[int | None]
    webhook_secret: Mapped[str]
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]
    last_used_at: Mapped[float | None]
    # Version of the key's job that was started last, or 0: the key with the lowest one is next.
    served: Mapped[int] = mapped_column(default=0)


class UsageRow(Table):
    """Number of jobs that a key created on one day; deleting a job does not lower it."""

    __tablename__ = "usage"

    owner: Mapped[str] = mapped_column(ForeignKey("keys.id"), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    jobs: Mapped[int]


class JobRow(Table):
    """Job; its columns are those of :class:`slipway_gateway.jobs.job.Job` and what only the store needs."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    model: Mapped[str]
    status: Mapped[str]
    phase: Mapped[str | None]
    step: Mapped[int] = mapped_column(default=0)
    steps: Mapped[int]
    request: Mapped[dict[str, Any]]
    parameters: Mapped[dict[str, Any]]
    seed: Mapped[int]
    width: Mapped[int]
    height: Mapped[int]
    frames: Mapped[int]
    fps: Mapped[float]
    priority: Mapped[str]
    # Place of the priority in the order of start; 0 starts first.
    rank: Mapped[int]
    # Place among the jobs of its key: the time at which it was queued, 0 for one that a worker gave back.
    queued_at: Mapped[float]
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    completed_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    inference_time_s: Mapped[float] = mapped_column(default=0.0)
    stage_durations: Mapped[dict[str, Any]] = mapped_column(default=dict)
    attempts: Mapped[int] = mapped_column(default=0)
    runs_from_state: Mapped[int] = mapped_column(default=0)
    state_step: Mapped[int | None]
    draft_step: Mapped[int | None]
    wish: Mapped[str] = mapped_column(default="none")
    worker: Mapped[str | None]
    lease_until: Mapped[float | None]
    version: Mapped[int]
    webhook_url: Mapped[str | None]
    remixed_from: Mapped[str | None]
    traceparent: Mapped[str | None]
    fingerprint: Mapped[str]
    idempotency_key: Mapped[str | None]
    input_bytes: Mapped[int] = mapped_column(default=0)

    __table_args__ = (
        Index(None, "owner", "created_at", "id"),
        Index(None, "owner", "fingerprint"),
        Index(None, "owner", "idempotency_key", unique=False),
        Index(None, "model", "status", "created_at"),
        Index(None, "expires_at"),
        Index(
            "ix_jobs_waiting",
            "rank",
            "owner",
            "queued_at",
            "created_at",
            "id",
            sqlite_where=_WAITS,
            postgresql_where=_WAITS,
        ),
        Index("ix_jobs_running", "lease_until", sqlite_where=_RUNS, postgresql_where=_RUNS),
    )


class PreviewRow(Table):
    """Newest preview of a running job; it has a table of its own, so that reading a job does not read it."""

    __tablename__ = "previews"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int]
    picture: Mapped[bytes]


class ChangeRow(Table):
    """One change of one job; old rows are deleted after an hour."""

    __tablename__ = "changes"
    # Without AUTOINCREMENT, SQLite would give the number of a deleted last row again.
    __table_args__ = (Index(None, "transaction_id"), Index(None, "at"), {"sqlite_autoincrement": True})

    version: Mapped[int] = mapped_column(_Number, primary_key=True)
    job_id: Mapped[str]
    at: Mapped[float]
    # Number of PostgreSQL's transaction; versions of transactions that run side by side become visible in any
    # order, and only this number tells a reader which of them it has not seen. None on SQLite.
    transaction_id: Mapped[int | None]


class ModelRow(Table):
    """Model that a server had when a gateway last saw it, with the parameters of its configuration."""

    __tablename__ = "models"

    name: Mapped[str] = mapped_column(primary_key=True)
    parameters: Mapped[dict[str, Any]]
    seen_at: Mapped[float]


class Delivery(Table):
    """Webhook that is to be delivered; the transaction that ends a job adds it."""

    __tablename__ = "deliveries"

    id: Mapped[str] = mapped_column(primary_key=True)
    # The job may be deleted before the delivery, so this is no foreign key.
    job_id: Mapped[str]
    owner: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    url: Mapped[str]
    event: Mapped[str]
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[float] = mapped_column(default=time.time)
    attempts: Mapped[int] = mapped_column(default=0)
    # Time of the next attempt, in Unix seconds; None if there is none.
    next_at: Mapped[float | None]
    delivered_at: Mapped[float | None]
    last_error: Mapped[str | None]

    __table_args__ = (Index(None, "next_at"), Index(None, "job_id"))
