"""Tables of the first version of the gateway."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "changes",
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("transaction_id", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_changes")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_changes_at"), "changes", ["at"], unique=False)
    op.create_index(op.f("ix_changes_transaction_id"), "changes", ["transaction_id"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.Text(), nullable=True),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("waiting", sa.BigInteger(), nullable=True),
        sa.Column("jobs_per_day", sa.BigInteger(), nullable=True),
        sa.Column("pixels", sa.BigInteger(), nullable=True),
        sa.Column("webhook_secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("served", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_keys_secret_sha256")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["owner"], ["keys.id"], name=op.f("fk_deliveries_owner")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index(op.f("ix_deliveries_job_id"), "deliveries", ["job_id"], unique=False)
    op.create_index(op.f("ix_deliveries_next_at"), "deliveries", ["next_at"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("parameters", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("width", sa.BigInteger(), nullable=False),
        sa.Column("height", sa.BigInteger(), nullable=False),
        sa.Column("frames", sa.BigInteger(), nullable=False),
        sa.Column("fps", sa.Double(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("completed_at", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("inference_time_s", sa.Double(), nullable=False),
        sa.Column("stage_durations", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("runs_from_state", sa.BigInteger(), nullable=False),
        sa.Column("state_step", sa.BigInteger(), nullable=True),
        sa.Column("draft_step", sa.BigInteger(), nullable=True),
        sa.Column("wish", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("webhook_url", sa.Text(), nullable=True),
        sa.Column("remixed_from", sa.Text(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["keys.id"], name=op.f("fk_jobs_owner")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_expires_at"), "jobs", ["expires_at"], unique=False)
    op.create_index(
        op.f("ix_jobs_model_status_created_at"), "jobs", ["model", "status", "created_at"], unique=False
    )
    op.create_index(op.f("ix_jobs_owner_created_at_id"), "jobs", ["owner", "created_at", "id"], unique=False)
    op.create_index(op.f("ix_jobs_owner_fingerprint"), "jobs", ["owner", "fingerprint"], unique=False)
    op.create_index(op.f("ix_jobs_owner_idempotency_key"), "jobs", ["owner", "idempotency_key"], unique=False)
    op.create_index(
        "ix_jobs_running",
        "jobs",
        ["lease_until"],
        unique=False,
        sqlite_where=sa.text("status = 'in_progress'"),
        postgresql_where=sa.text("status = 'in_progress'"),
    )
    op.create_index(
        "ix_jobs_waiting",
        "jobs",
        ["rank", "owner", "queued_at", "created_at", "id"],
        unique=False,
        sqlite_where=sa.text("status = 'queued'"),
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_table(
        "usage",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["keys.id"], name=op.f("fk_usage_owner")),
        sa.PrimaryKeyConstraint("owner", "day", name=op.f("pk_usage")),
    )
    op.create_table(
        "previews",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("picture", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_previews_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_previews")),
    )
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("parameters", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_models")),
    )


def downgrade() -> None:
    """Remove the tables."""
    op.drop_table("models")
    op.drop_table("previews")
    op.drop_table("usage")
    op.drop_table("jobs")
    op.drop_table("deliveries")
    op.drop_table("keys")
    op.drop_table("changes")
