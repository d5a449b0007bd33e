"""Webhooks: notices about ended jobs, signed as the Standard Webhooks specification says.

The transaction that ends a job writes the delivery into the database. :meth:`Webhooks.run` sends those that
are due, in any number of processes. A process claims a delivery by moving its next attempt into the future,
so a delivery whose process dies becomes due again. A failed attempt is repeated with growing delays for about
a day. A receiver may see a delivery twice and recognizes it by the header ``webhook-id``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from standardwebhooks import Webhook

from slipway_gateway.database.engine import Database
from slipway_gateway.database.tables import Delivery, JobRow, KeyRow
from slipway_gateway.outbound.fetch import BadStatus, Connecting, post_public
from slipway_gateway.signal import Signal
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError

_LOG = logging.getLogger(__name__)

DELAYS_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 36_000.0)
"""Delays after failed attempts, in seconds; after the last one there is one more attempt."""
DELIVERED, FAILED, ABANDONED = "delivered", "failed", "abandoned"
TIMEOUT_S = 15.0
"""Longest time of one attempt, in seconds."""
_LEASE_S = 60.0
_POLL_S = 5.0
"""Time between two looks for deliveries to repeat; the end of a job does not wait for it."""
_PRUNE_EVERY_S = 3_600.0
_KEEP_S = 7 * 86_400.0
_MAX_PARALLEL = 16
_JITTER = 0.2
_GONE = 410


@dataclass(frozen=True)
class _Attempt:
    """One attempt to send a delivery."""

    id: str
    url: str
    payload: dict[str, Any]
    secret: str | None
    number: int


class Webhooks:
    """Sender of the notices about ended jobs.

    Args:
        database: Database with the deliveries.
        ended: Signal that is given when a job has ended.
        allow_private: True to send to private and loopback addresses too.
        count: Function that counts the attempts by outcome: "delivered", "failed" or "abandoned".
        now: Clock, in Unix seconds.
        connecting: Conditions of the connections; None for those of `allow_private`.
    """

    def __init__(
        self,
        database: Database,
        ended: Signal,
        *,
        allow_private: bool = False,
        count: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.time,
        connecting: Connecting | None = None,
    ) -> None:
        self._database, self._ended, self._count, self._now = database, ended, count, now
        self._connecting = connecting or Connecting(allow_private=allow_private)
        self._pruned_at = 0.0

    async def run(self) -> None:
        """Send deliveries when they are due, until the task is cancelled."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                ended = self._ended.count
                attempts: list[_Attempt] = []
                try:
                    await self._prune()
                    attempts = await self._claim(_MAX_PARALLEL - len(running))
                except SlipwayError as error:
                    _LOG.warning("webhooks wait for the database: %s", error)
                for attempt in attempts:
                    running.add(task := asyncio.create_task(self._send(attempt)))
                    task.add_done_callback(running.discard)
                if not attempts:
                    await self._ended.after(ended, _POLL_S)
                elif len(running) >= _MAX_PARALLEL:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def send_due(self) -> int:
        """Send all deliveries that are due now, and return their number."""
        attempts = await self._claim(_MAX_PARALLEL)
        await asyncio.gather(*(self._send(attempt) for attempt in attempts))
        return len(attempts)

    async def _claim(self, most: int) -> list[_Attempt]:
        """Return attempts that are due; no other process gets them until their lease ends."""
        if most <= 0:
            return []
        now = self._now()

        def is_due(session: Session) -> bool:
            query = select(Delivery.id).where(Delivery.next_at <= now).limit(1)
            return session.scalar(query) is not None

        # Most looks find nothing, and must not lock the database.
        if not await self._database.read(is_due):
            return []

        def claim(session: Session, _: bool) -> list[_Attempt]:
            due = (
                select(Delivery)
                .where(Delivery.next_at <= now)
                .order_by(Delivery.next_at)
                .limit(most)
                .with_for_update(skip_locked=True)
            )
            rows = session.execute(due).scalars().all()
            owners = {row.owner for row in rows}
            known = select(KeyRow.id, KeyRow.webhook_secret).where(
                KeyRow.id.in_(owners), KeyRow.revoked_at.is_(None)
            )
            keys = session.execute(known).all() if rows else []
            found = {key.id: key.webhook_secret for key in keys}
            for row in rows:
                row.attempts, row.next_at = row.attempts + 1, now + _LEASE_S
            return [
                _Attempt(row.id, row.url, row.payload, found.get(row.owner), row.attempts) for row in rows
            ]

        return await self._database.write(claim)

    async def _send(self, attempt: _Attempt) -> None:
        """Send a delivery once, and store the outcome."""
        problem, is_final = await self._attempt(attempt)
        is_final = is_final or attempt.number > len(DELAYS_S)
        outcome = DELIVERED if problem is None else ABANDONED if is_final else FAILED
        now, next_at = self._now(), None
        if outcome == FAILED:
            next_at = now + DELAYS_S[attempt.number - 1] * random.uniform(1 - _JITTER, 1 + _JITTER)
        values = {
            "next_at": next_at,
            "delivered_at": now if outcome == DELIVERED else None,
            "last_error": problem,
        }

        def store(session: Session, _: bool) -> None:
            # Another process has taken over a delivery whose lease ended during the attempt.
            mine = (Delivery.id == attempt.id, Delivery.attempts == attempt.number)
            session.execute(update(Delivery).where(*mine).values(**values))

        self._count(outcome)
        if problem is not None:
            _LOG.info("webhook %s: attempt %d failed: %s", attempt.id, attempt.number, problem)
        try:
            await self._database.write(store)
        except SlipwayError as error:
            _LOG.warning("webhook %s is sent again, since its outcome was not stored: %s", attempt.id, error)

    async def _attempt(self, attempt: _Attempt) -> tuple[str | None, bool]:
        """Send a delivery, and return the problem, and whether it is final."""
        if attempt.secret is None:
            return "the key of the job was revoked", True
        body = json.dumps(attempt.payload, ensure_ascii=False, separators=(",", ":"))
        try:
            await post_public(
                attempt.url,
                body.encode(),
                signed_headers(attempt.secret, attempt.id, self._now(), body),
                timeout_s=TIMEOUT_S,
                connecting=self._connecting,
            )
        except BadStatus as error:
            return str(error), error.status == _GONE
        except InvalidRequest as error:
            return str(error), False
        return None, False

    async def _prune(self) -> None:
        """Delete deliveries of a week ago, and abandoned ones whose job is gone."""
        now = self._now()
        if now - self._pruned_at < _PRUNE_EVERY_S:
            return

        def prune(session: Session, _: bool) -> None:
            session.execute(delete(Delivery).where(Delivery.delivered_at < now - _KEEP_S))
            gone = Delivery.job_id.not_in(select(JobRow.id))
            ended = (Delivery.next_at.is_(None), Delivery.delivered_at.is_(None))
            session.execute(delete(Delivery).where(*ended, gone))

        await self._database.write(prune)
        self._pruned_at = now


def signed_headers(secret: str, delivery_id: str, now: float, body: str) -> dict[str, str]:
    """Return the headers of a delivery, with its signature.

    Args:
        secret: Secret of the key, ``whsec_`` and base64.
        delivery_id: Identifier of the delivery, the same for every attempt.
        now: Present time, in Unix seconds.
        body: Body of the request.
    """
    sent_at = datetime.fromtimestamp(int(now), UTC)
    return {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": Webhook(secret).sign(delivery_id, sent_at, body),
    }
