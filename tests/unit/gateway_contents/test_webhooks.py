"""Webhooks: signed, repeated with growing delays, sent by one process at a time, and given up in the end."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from standardwebhooks import Webhook, WebhookVerificationError

from slipway_gateway.access.keys import KeyStore
from slipway_gateway.database.engine import Database
from slipway_gateway.database.revisions import upgrade
from slipway_gateway.database.tables import Delivery
from slipway_gateway.outbound.fetch import Connecting
from slipway_gateway.outbound.webhooks import (
    ABANDONED,
    DELAYS_S,
    DELIVERED,
    FAILED,
    Webhooks,
    signed_headers,
)
from slipway_gateway.signal import Signal

PAYLOAD = {"type": "video.completed", "data": {"id": "video_1", "status": "completed", "prompt": "ä\n🦊"}}


async def local(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@dataclass
class Receiver:
    """Receiver of notices, which answers with one status after the other."""

    statuses: list[int] = field(default_factory=list)
    port: int = 0
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        signed = [
            line.split(": ", 1)[1] for line in head.split("\r\n") if line.lower().startswith("webhook-sig")
        ]
        headers["webhook-signature"] = signed[0]
        self.got.append((headers, await reader.readexactly(int(headers["content-length"]))))
        status = self.statuses.pop(0) if self.statuses else 204
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(statuses))
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'gateway.db'}"
    await asyncio.to_thread(upgrade, url)
    database = Database(url)
    yield database
    await database.close()


async def add(database: Database, port: int, clock: Clock, owner: str, count: int = 1) -> None:
    def work(session: Session, _: bool) -> None:
        for number in range(count):
            session.add(
                Delivery(
                    id=f"msg_{number}",
                    job_id=f"video_{number}",
                    owner=owner,
                    url=f"http://hooks.example.org:{port}/x",
                    event="video.completed",
                    payload=PAYLOAD,
                    next_at=clock.now,
                )
            )

    await database.write(work)


async def stored(database: Database) -> Delivery:
    def work(session: Session) -> Delivery:
        return session.execute(select(Delivery)).scalars().one()

    return await database.read(work)


def sender(
    database: Database, clock: Clock, outcomes: Counter[str], ended: Signal | None = None, **options: Any
) -> Webhooks:
    def count(outcome: str) -> None:
        outcomes[outcome] += 1

    connecting = options.pop("connecting", Connecting(allow_private=True, resolve=local))
    return Webhooks(database, ended or Signal(), count=count, now=clock, connecting=connecting, **options)


async def test_webhook_is_signed_with_the_secret_of_the_key_when_it_is_delivered(database: Database) -> None:
    import time

    key, _ = await KeyStore(database).create("caller")
    clock, outcomes = Clock(), Counter[str]()
    clock.now = time.time()
    async with receiving() as receiver:
        await add(database, receiver.port, clock, key.id)
        assert await sender(database, clock, outcomes).send_due() == 1
    ((headers, body),) = receiver.got
    assert Webhook(key.webhook_secret).verify(body, headers) == PAYLOAD
    assert headers["webhook-id"] == "msg_0"
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == PAYLOAD
    with pytest.raises(WebhookVerificationError):
        Webhook(key.webhook_secret).verify(body + b" ", headers)
    delivery = await stored(database)
    assert (delivery.delivered_at, delivery.next_at, delivery.last_error) == (clock.now, None, None)
    assert outcomes == {DELIVERED: 1}


async def test_webhook_is_sent_again_with_growing_delays_when_the_receiver_fails(database: Database) -> None:
    key = await KeyStore(database).local()
    clock, outcomes = Clock(), Counter[str]()
    webhooks = sender(database, clock, outcomes)
    async with receiving(*[500] * (len(DELAYS_S) + 1)) as receiver:
        await add(database, receiver.port, clock, key.id)
        for number, delay_s in enumerate(DELAYS_S, 1):
            assert await webhooks.send_due() == 1
            delivery = await stored(database)
            assert delivery.attempts == number
            assert delivery.next_at is not None
            assert 0.8 * delay_s <= delivery.next_at - clock.now <= 1.2 * delay_s
            assert "got status 500" in (delivery.last_error or "")
            assert await webhooks.send_due() == 0
            clock.now = delivery.next_at
        assert await webhooks.send_due() == 1
        delivery = await stored(database)
        assert (delivery.next_at, delivery.delivered_at, delivery.attempts) == (None, None, len(DELAYS_S) + 1)
        clock.now += 1e9
        assert await webhooks.send_due() == 0
    assert len(receiver.got) == 8
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert outcomes == {FAILED: len(DELAYS_S), ABANDONED: 1}


async def test_webhook_is_given_up_when_the_receiver_says_that_it_is_gone(database: Database) -> None:
    key = await KeyStore(database).local()
    clock, outcomes = Clock(), Counter[str]()
    async with receiving(410) as receiver:
        await add(database, receiver.port, clock, key.id)
        await sender(database, clock, outcomes).send_due()
    assert (await stored(database)).next_at is None
    assert outcomes == {ABANDONED: 1}


async def test_webhook_is_given_up_unsent_when_its_key_was_revoked(database: Database) -> None:
    keys = KeyStore(database)
    key, _ = await keys.create("caller")
    clock, outcomes = Clock(), Counter[str]()
    async with receiving() as receiver:
        await add(database, receiver.port, clock, key.id)
        await keys.revoke(key.id)
        await sender(database, clock, outcomes).send_due()
    assert receiver.got == []
    assert (await stored(database)).last_error == "the key of the job was revoked"


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"])
async def test_webhook_reaches_no_private_address_when_this_is_not_allowed(
    database: Database, address: str
) -> None:
    async def private(host: str, port: int) -> Sequence[str]:
        return [address]

    key = await KeyStore(database).local()
    clock, outcomes = Clock(), Counter[str]()
    async with receiving() as receiver:
        await add(database, receiver.port, clock, key.id)
        await sender(database, clock, outcomes, connecting=Connecting(resolve=private)).send_due()
    assert receiver.got == []
    error = (await stored(database)).last_error or ""
    assert "webhook_url must be a URL whose host has public addresses only" in error
    assert address not in error
    assert outcomes == {FAILED: 1}


async def test_webhook_is_sent_by_one_process_when_several_look_at_once(database: Database) -> None:
    key = await KeyStore(database).local()
    clock, outcomes = Clock(), Counter[str]()
    other = Database(str(database.url.set(drivername="sqlite")))
    try:
        async with receiving() as receiver:
            await add(database, receiver.port, clock, key.id, count=12)
            first, second = sender(database, clock, outcomes), sender(other, clock, outcomes)
            sent = await asyncio.gather(first.send_due(), second.send_due(), first.send_due())
    finally:
        await other.close()
    assert sum(sent) == 12
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == len(receiver.got) == 12


async def test_webhook_is_sent_again_when_its_process_died_during_an_attempt(database: Database) -> None:
    key = await KeyStore(database).local()
    clock, outcomes = Clock(), Counter[str]()
    webhooks = sender(database, clock, outcomes)
    started = asyncio.Event()

    async def hangs(host: str, port: int) -> Sequence[str]:
        started.set()
        await asyncio.sleep(60)
        return []

    dying = sender(database, clock, outcomes, connecting=Connecting(allow_private=True, resolve=hangs))
    async with receiving() as receiver:
        await add(database, receiver.port, clock, key.id)
        task = asyncio.create_task(dying.run())
        await asyncio.wait_for(started.wait(), 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await webhooks.send_due() == 0
        clock.now += 61
        assert await webhooks.send_due() == 1
    assert len(receiver.got) == 1
    assert (await stored(database)).attempts == 2


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():
            await asyncio.sleep(0.01)


async def test_run_sends_what_is_due_when_a_job_has_ended(database: Database) -> None:
    key = await KeyStore(database).local()
    clock, outcomes, ended = Clock(), Counter[str](), Signal()
    webhooks = sender(database, clock, outcomes, ended)
    task = asyncio.create_task(webhooks.run())
    try:
        async with receiving(500) as receiver:
            await add(database, receiver.port, clock, key.id, count=40)
            ended.give()
            await until(lambda: outcomes.total() == 40)
            clock.now += 2 * DELAYS_S[0]
            ended.give()
            await until(lambda: outcomes[DELIVERED] == 40)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert outcomes == {FAILED: 1, DELIVERED: 40}


async def test_run_deletes_old_deliveries_when_a_week_has_passed(database: Database) -> None:
    key = await KeyStore(database).local()
    clock, outcomes = Clock(), Counter[str]()
    await add(database, 1, clock, key.id, count=3)

    def end(session: Session, _: bool) -> None:
        session.execute(update(Delivery).values(next_at=None))
        done = update(Delivery).where(Delivery.id == "msg_0").values(delivered_at=clock.now - 8 * 86_400)
        session.execute(done)
        fresh = update(Delivery).where(Delivery.id == "msg_1").values(delivered_at=clock.now - 60)
        session.execute(fresh)

    def ids(session: Session) -> list[str]:
        return list(session.execute(select(Delivery.id)).scalars())

    await database.write(end)
    task = asyncio.create_task(sender(database, clock, outcomes).run())
    try:
        async with asyncio.timeout(30):
            while await database.read(ids) != ["msg_1"]:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_signature_covers_id_time_and_body_when_headers_are_made() -> None:
    secret = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    first = signed_headers(secret, "msg_1", 1_700_000_000.7, "{}")
    assert first["webhook-timestamp"] == "1700000000"
    others = [
        signed_headers(secret, "msg_2", 1_700_000_000, "{}"),
        signed_headers(secret, "msg_1", 1_700_000_001, "{}"),
        signed_headers(secret, "msg_1", 1_700_000_000, "[]"),
    ]
    assert first["webhook-signature"] not in {headers["webhook-signature"] for headers in others}
