"""Keys: their secrets, their limits, and the commands that make, list and revoke them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gateway_jobs import Clock
from sqlalchemy import select
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from slipway_gateway.access import commands
from slipway_gateway.access.keys import LOCAL, Key, KeyStore
from slipway_gateway.access.limits import UNLIMITED, KeyLimits
from slipway_gateway.database.engine import Database
from slipway_gateway.database.tables import KeyRow
from slipway_gateway.errors import ApiError
from slipway_serving.protocol.errors import InvalidRequest, NotReady

LIMITS = KeyLimits(priority="low", waiting=3, jobs_per_day=20, pixels=10**12)


async def test_secret_opens_its_key_and_is_not_stored(keys: KeyStore, database: Database) -> None:
    key, secret = await keys.create("anna's laptop", LIMITS, is_admin=True)
    other, _ = await keys.create("ben")
    assert secret.startswith("sk-slipway-")
    assert key.webhook_secret.startswith("whsec_")
    assert (key.limits, key.is_admin, other.limits, other.is_admin) == (LIMITS, True, KeyLimits(), False)
    found = await keys.authenticate(secret)
    assert found is not None
    assert (found.id, found.limits) == (key.id, LIMITS)

    def work(session: Session) -> list[object]:
        return [value for row in session.execute(select(KeyRow.__table__)) for value in row]

    assert not [value for value in await database.read(work) if secret in str(value)]


@pytest.mark.parametrize(
    "secret",
    ["", "sk-slipway-", "sk-slipway-" + "x" * 43, "sk-slipway-\0" + "x" * 42, "\ud800", "x" * 10_000],
)
async def test_secret_opens_nothing_when_no_key_has_it(keys: KeyStore, secret: str) -> None:
    await keys.create("anna")
    await keys.local()
    assert await keys.authenticate(secret) is None


async def test_key_opens_nothing_when_it_was_revoked_some_seconds_ago(
    keys: KeyStore, database: Database, clock: Clock
) -> None:
    key, secret = await keys.create("anna")
    elsewhere = KeyStore(database, clock=clock)
    assert await keys.authenticate(secret) is not None
    assert await elsewhere.authenticate(secret) is not None
    revoked = await keys.revoke(key.id)
    assert revoked.revoked_at == clock.now
    assert await keys.authenticate(secret) is None
    # Another gateway remembers the key for some seconds.
    assert await elsewhere.authenticate(secret) is not None
    clock.now += 6
    assert await elsewhere.authenticate(secret) is None
    clock.now += 1
    assert (await keys.revoke(key.id)).revoked_at == clock.now - 7
    assert [found.revoked_at for found in await keys.list()] == [clock.now - 7]


@pytest.mark.parametrize("key_id", ["key_x", "\0", "\ud800"])
async def test_revocation_says_so_when_there_is_no_such_key(keys: KeyStore, key_id: str) -> None:
    with pytest.raises(ApiError, match="key .* does not exist"):
        await keys.revoke(key_id)


async def test_last_use_is_stored_once_a_minute(keys: KeyStore, clock: Clock) -> None:
    key, secret = await keys.create("anna")
    used = []
    for step_s in (0, 30, 31):
        clock.now += step_s
        await keys.authenticate(secret)
        found = await keys.get(key.id)
        assert found is not None
        used.append(found.last_used_at)
    assert used == [clock.now - 61, clock.now - 61, clock.now]


async def test_memory_of_checked_secrets_is_bounded(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.access.keys._REMEMBERED", 3)
    for number in range(10):
        assert await keys.authenticate(f"sk-slipway-{number:043}") is None
    assert len(keys._checked) == 3


async def test_local_key_is_read_once_when_it_is_asked_for_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyStore(database)
    found = await keys.local()
    monkeypatch.setattr(Database, "read", None)
    assert await keys.local() is found


async def test_local_key_is_one_when_many_ask_for_it_first(database: Database) -> None:
    found = await asyncio.gather(*(KeyStore(database).local() for _ in range(6)))
    assert {key.id for key in found} == {LOCAL}
    assert (found[0].limits, found[0].is_admin) == (UNLIMITED, True)
    assert len(await KeyStore(database).list()) == 1


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\0b"])
async def test_key_is_refused_when_its_name_cannot_be_shown(keys: KeyStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match="key: name must be"):
        await keys.create(name)


def test_limits_are_refused_together_when_they_are_wrong() -> None:
    with pytest.raises(
        InvalidRequest, match=r"priority must be .*'high' \| waiting must be .* \| pixels must"
    ):
        KeyLimits(priority="high", waiting=0, pixels=-1)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(commands.keys, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands_create_list_and_revoke_a_key(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    secret = run("create", "anna", "--priority", "low", "--waiting", "2", "--admin", *data).strip()
    assert secret.startswith("sk-slipway-")
    (listed,) = json.loads(run("list", "--json", *data))
    assert (listed["name"], listed["priority"], listed["waiting"], listed["pixels"]) == (
        "anna",
        "low",
        2,
        None,
    )
    assert not {"secret_sha256", "webhook_secret"} & set(listed)
    assert run("list", *data) == f"{listed['id']}  admin  anna  priority=low  waiting=2\n"
    assert run("revoke", listed["id"], *data) == f"revoked key {listed['id']} of anna\n"
    assert "revoked" in run("list", *data)

    async def check() -> Key | None:
        database = Database(commands.database_of(None, tmp_path / "data"))
        try:
            return await KeyStore(database).authenticate(secret)
        finally:
            await database.close()

    assert asyncio.run(check()) is None


def test_commands_name_the_migration_when_postgresql_is_empty(postgres_url: str) -> None:
    with pytest.raises(NotReady, match="slipway gateway migrate"):
        CliRunner().invoke(
            commands.keys, ["list"], env={"SLIPWAY_GATEWAY_DATABASE": postgres_url}, catch_exceptions=False
        )
