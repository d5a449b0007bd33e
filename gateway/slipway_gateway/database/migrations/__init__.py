"""Migrations of the gateway's tables: an environment of Alembic and its revisions."""
