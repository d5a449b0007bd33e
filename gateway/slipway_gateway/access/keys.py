"""Keys of the API: created once, shown once, and stored as a digest.

A secret is 256 random bits, so a plain SHA-256 of it is safe to store and can be looked up by an index. A
gateway remembers for a few seconds which secrets it has checked; a revoked key may work that much longer.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from slipway_gateway.access.limits import UNLIMITED, KeyLimits
from slipway_gateway.database.engine import Database
from slipway_gateway.database.tables import KeyRow
from slipway_gateway.errors import not_found
from slipway_serving.protocol.errors import InvalidRequest

LOCAL = "local"
"""Identifier of the key that stands for callers on this machine when no keys are required."""
PREFIX = "sk-slipway-"
"""Beginning of every secret, by which scanners of repositories can find one that was published."""
_SECRET = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_REMEMBERED = 1024
_USE_INTERVAL_S = 60.0
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Key:
    """Key of the API, without its secret.

    Attributes:
        id: Identifier.
        name: Name for people.
        limits: Limits of what the key may ask for.
        webhook_secret: Secret that the key's webhooks are signed with ("whsec_…").
        created_at: Time of creation, in Unix seconds.
        revoked_at: Time of revocation, in Unix seconds; None for a valid key.
        last_used_at: Time of the last use, in Unix seconds, to about a minute.
        is_admin: True if the key may change what is served.
    """

    id: str
    name: str
    limits: KeyLimits
    webhook_secret: str
    created_at: float
    revoked_at: float | None
    last_used_at: float | None
    is_admin: bool


class KeyStore:
    """Store of keys.

    Args:
        database: Database with the table.
        remember_s: Time for which the result of a check is used again, in seconds.
        clock: Function that returns the time in Unix seconds.
    """

    def __init__(
        self, database: Database, *, remember_s: float = 5.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._remember_s, self._clock = database, remember_s, clock
        self._checked: OrderedDict[str, tuple[Key | None, float]] = OrderedDict()
        self._local: Key | None = None

    async def create(
        self, name: str, limits: KeyLimits | None = None, *, is_admin: bool = False
    ) -> tuple[Key, str]:
        """Create a key.

        Args:
            name: Name for people, 1 to 100 printable characters; several keys may have the same.
            limits: Limits of the key.
            is_admin: True if the key may change what is served.

        Returns:
            Key, and its secret, which cannot be read again.

        Raises:
            InvalidRequest: The name is empty, too long, or not printable.
            NotReady: The database cannot be used.
        """
        if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise InvalidRequest(
                f"key: name must be 1 to {_LONGEST_NAME} printable characters, got {name[:120]!r}; try the"
                " name of a person or an application"
            )
        secret = PREFIX + secrets.token_urlsafe(32)
        key_id = f"key_{secrets.token_hex(8)}"

        def work(session: Session, repeated: bool) -> Key:
            if repeated and (stored := session.get(KeyRow, key_id)) is not None:
                return _key_of(stored)
            return self._add(session, key_id, name, limits or KeyLimits(), is_admin, _digest(secret))

        return await self._database.write(work), secret

    async def list(self) -> list[Key]:
        """Return all keys, revoked ones included, the oldest first."""

        def work(session: Session) -> list[Key]:
            rows = session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id))
            return [_key_of(row) for row in rows]

        return await self._database.read(work)

    async def get(self, key_id: str) -> Key | None:
        """Return a key by its identifier, or None if it does not exist."""

        def work(session: Session) -> Key | None:
            row = session.get(KeyRow, key_id)
            return None if row is None else _key_of(row)

        return await self._database.read(work)

    async def revoke(self, key_id: str) -> Key:
        """Make a key invalid; its jobs stay and finish.

        Raises:
            ApiError: The key does not exist (status 404).
        """
        if not key_id.isprintable():
            raise not_found("key", key_id[:80])

        def work(session: Session, _: bool) -> Key:
            row = session.get(KeyRow, key_id, with_for_update=True)
            if row is None:
                raise not_found("key", key_id[:80])
            if row.revoked_at is None:
                row.revoked_at = self._clock()
            return _key_of(row)

        key = await self._database.write(work)
        self._checked.clear()
        return key

    async def authenticate(self, secret: str) -> Key | None:
        """Return the valid key that a secret belongs to, or None.

        Args:
            secret: Text that a caller presents.

        Raises:
            NotReady: The database cannot be used.
        """
        if not _SECRET.fullmatch(secret):
            return None
        digest, now = _digest(secret), self._clock()
        remembered = self._checked.get(digest)
        if remembered is not None and remembered[1] > now:
            return remembered[0]
        key = await self._look_up(digest)
        if key is not None and (key.last_used_at or 0.0) < now - _USE_INTERVAL_S:
            await self._record_use(key.id, now)
        self._checked[digest] = key, now + self._remember_s
        self._checked.move_to_end(digest)
        if len(self._checked) > _REMEMBERED:
            self._checked.popitem(last=False)
        return key

    async def local(self) -> Key:
        """Return the key of callers on this machine; it has no secret and no limits, and is read once."""
        if self._local is None:
            self._local = await self._read_or_add_local()
        return self._local

    async def _read_or_add_local(self) -> Key:
        key = await self.get(LOCAL)
        if key is not None:
            return key

        def work(session: Session, _: bool) -> Key:
            row = session.get(KeyRow, LOCAL)
            if row is not None:
                return _key_of(row)
            return self._add(session, LOCAL, LOCAL, UNLIMITED, True, None)

        try:
            return await self._database.write(work)
        except IntegrityError:
            # Another gateway has just created it.
            key = await self.get(LOCAL)
            if key is None:
                raise
            return key

    def _add(
        self,
        session: Session,
        key_id: str,
        name: str,
        limits: KeyLimits,
        is_admin: bool,
        digest: str | None,
    ) -> Key:
        row = KeyRow(
            id=key_id,
            name=name,
            secret_sha256=digest,
            is_admin=is_admin,
            **vars(limits),
            webhook_secret="whsec_" + base64.b64encode(secrets.token_bytes(24)).decode(),
            created_at=self._clock(),
        )
        session.add(row)
        session.flush()
        return _key_of(row)

    async def _look_up(self, digest: str) -> Key | None:
        def work(session: Session) -> Key | None:
            valid = (KeyRow.secret_sha256 == digest, KeyRow.revoked_at.is_(None))
            row = session.scalar(select(KeyRow).where(*valid))
            return None if row is None else _key_of(row)

        return await self._database.read(work)

    async def _record_use(self, key_id: str, now: float) -> None:
        def work(session: Session, _: bool) -> None:
            session.execute(update(KeyRow).where(KeyRow.id == key_id).values(last_used_at=now))

        await self._database.write(work)


def _key_of(row: KeyRow) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        limits=KeyLimits(row.priority, row.waiting, row.jobs_per_day, row.pixels),
        webhook_secret=row.webhook_secret,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        is_admin=row.is_admin,
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
