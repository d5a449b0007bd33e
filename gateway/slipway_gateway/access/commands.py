"""The commands `slipway gateway keys create`, `list` and `revoke`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from slipway_gateway.settings import DATABASE_FILE, DATABASE_VARIABLE, DEFAULT_DATA
from slipway_serving.system.standard_streams import print_line

if TYPE_CHECKING:
    from slipway_gateway.access.keys import Key, KeyStore

T = TypeVar("T")

keys = typer.Typer(
    help="Create, list and revoke the keys of the gateway's API.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        help="Database: sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME; by default a file in --data.",
        metavar="URL",
        envvar=DATABASE_VARIABLE,
        show_envvar=True,
    ),
]
DataOption = Annotated[Path, typer.Option("--data", help="Data folder of the gateway.", metavar="DIR")]


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name of the person or application that uses the key.")],
    priority: Annotated[
        str, typer.Option(help="Highest priority that the key may ask for: urgent, normal or low.")
    ] = "normal",
    waiting: Annotated[
        int | None, typer.Option(help="Videos that may wait at the same time; no limit by default.", min=1)
    ] = None,
    jobs_per_day: Annotated[
        int | None, typer.Option(help="Videos that may be created a day (UTC); no limit by default.", min=1)
    ] = None,
    pixels: Annotated[
        int | None,
        typer.Option(
            help="Largest width * height * frames * steps of one video; no limit by default.", min=1
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Let the key change what is served.")] = False,
    database: DatabaseOption = None,
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Create a key and print its secret, which cannot be read again."""
    from slipway_gateway.access.limits import KeyLimits

    limits = KeyLimits(priority, waiting, jobs_per_day, pixels)

    async def work(store: KeyStore) -> tuple[Key, str]:
        return await store.create(name, limits, is_admin=admin)

    key, secret = _with_store(database, data, work)
    print_line(f"created key {key.id} for {key.name}; keep its secret, which is not shown again", err=True)
    print_line(f"its webhooks are signed with {key.webhook_secret}", err=True)
    print_line(secret)


@keys.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    database: DatabaseOption = None,
    data: DataOption = DEFAULT_DATA,
) -> None:
    """List all keys, without their secrets."""
    found = _with_store(database, data, lambda store: store.list())
    if as_json:
        print_line(json.dumps([_document(key) for key in found], indent=2))
        return
    for key in found:
        print_line(_line(key))


@keys.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="Identifier of the key.", metavar="ID")],
    database: DatabaseOption = None,
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Make a key invalid within a few seconds; its videos stay."""
    key = _with_store(database, data, lambda store: store.revoke(key_id))
    print_line(f"revoked key {key.id} of {key.name}")


def database_of(database: str | None, data: Path) -> str:
    """Return the address of the gateway's database.

    Args:
        database: Address that was given.
        data: Data folder, which has an SQLite file by default.
    """
    return database or f"sqlite:///{data / DATABASE_FILE}"


def _with_store(database: str | None, data: Path, work: Callable[[KeyStore], Awaitable[T]]) -> T:
    """Run work with the store of keys, after the tables were created or checked."""
    from slipway_gateway.access.keys import KeyStore
    from slipway_gateway.database.engine import Database
    from slipway_gateway.database.revisions import prepare

    url = database_of(database, data)
    prepare(url)

    async def run() -> T:
        opened = Database(url)
        try:
            return await work(KeyStore(opened))
        finally:
            await opened.close()

    return asyncio.run(run())


def _document(key: Key) -> dict[str, object]:
    """Return what is public about a key."""
    return {
        "id": key.id,
        "name": key.name,
        "is_admin": key.is_admin,
        **vars(key.limits),
        "created_at": key.created_at,
        "last_used_at": key.last_used_at,
        "revoked_at": key.revoked_at,
    }


def _line(key: Key) -> str:
    limits = (f"{name}={value}" for name, value in vars(key.limits).items() if value is not None)
    state = "revoked" if key.revoked_at is not None else "admin" if key.is_admin else "valid"
    return "  ".join([key.id, state, key.name, *limits])
