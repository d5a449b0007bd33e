"""Creation of jobs: from a caller's fields, or as a variation or a duplicate of an earlier job."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from slipway_gateway.access.keys import Key
from slipway_gateway.contents.store import ContentStore
from slipway_gateway.errors import ApiError
from slipway_gateway.fields.creation import Creation, chosen_model, create
from slipway_gateway.fields.kinds import ALIASES, PICTURE, SECONDS, SIDES, SIZE, VideoKind
from slipway_gateway.jobs.job import Job, NewJob, new_job_id
from slipway_gateway.outbound.addresses import checked_target
from slipway_gateway.routes.bodies import read_picture
from slipway_gateway.services import Services
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

IDEMPOTENCY_HEADER = "idempotency-key"
WEBHOOK = "webhook_url"
# Fields of other video APIs that say nothing about the video.
_IGNORED = frozenset({"user"})
_NOT_REMIXED = frozenset({"stop_after_step", "draft", "priority", "checkpoint_every_steps"})
_LONGEST_KEY = 255


async def create_job(
    services: Services,
    key: Key,
    fields: Mapping[str, Any],
    *,
    idempotency_key: str | None = None,
    traceparent: str | None = None,
    remixed_from: Job | None = None,
    is_distinct: bool = False,
) -> Job:
    """Create a job, or return the one that an equal request has created before.

    Args:
        services: Services of the process.
        key: Key of the caller.
        fields: Fields of the request.
        idempotency_key: Key by which the caller marks repeated requests.
        traceparent: Trace of the caller (W3C Trace Context).
        remixed_from: Job whose variation this is.
        is_distinct: True if an equal request without an idempotency key makes another job.

    Raises:
        InvalidRequest: A field breaks its rule.
        ApiError: The model is not served.
        Overloaded: The queue is full, or a limit of the key is reached.
    """
    given = {name: value for name, value in fields.items() if name not in _IGNORED}
    if idempotency_key is not None and not 0 < len(idempotency_key) <= _LONGEST_KEY:
        raise InvalidRequest(
            f"videos: {IDEMPOTENCY_HEADER} must have 1 to {_LONGEST_KEY} characters, got"
            f" {len(idempotency_key)}"
        )
    webhook_url = await checked_webhook(services, key, given.pop(WEBHOOK, None))
    given = await with_pictures(services, given)
    model = given.pop("model", None)
    served = await services.catalog.models()
    kind = chosen_model(model, set(given), services.kinds, served)
    made = create(kind, given, served[kind.model], key.limits.priority)
    new = NewJob(
        id=new_job_id(time.time()),
        owner=key.id,
        model=kind.model,
        request=made.values,
        parameters={name: value for name, value in given.items() if not isinstance(value, bytes)},
        seed=made.seed,
        width=made.width,
        height=made.height,
        frames=made.frames,
        fps=made.fps,
        steps=made.steps,
        priority=str(made.values.get("priority") or "normal"),
        webhook_url=webhook_url,
        remixed_from=None if remixed_from is None else remixed_from.id,
        traceparent=traceparent,
        fingerprint=secrets.token_hex(32)
        if is_distinct and idempotency_key is None
        else fingerprint(kind.model, given, remixed_from),
        idempotency_key=idempotency_key,
    )
    return await _stored(services, key, new, made)


async def _stored(services: Services, key: Key, new: NewJob, made: Creation) -> Job:
    """Store the pictures of a new job and then the job, so that no job lacks a picture."""
    contents: ContentStore = services.contents
    try:
        await put_pictures(contents, new.id, made.pictures)
        job, is_new = await services.store.create(new, key.limits, max_waiting=services.settings.max_waiting)
    except BaseException:
        if made.pictures:
            await contents.delete(new.id)
        raise
    if not is_new and made.pictures:
        await contents.delete(new.id)
    return job


async def put_pictures(contents: ContentStore, job_id: str, pictures: Mapping[str, bytes]) -> None:
    """Store the pictures of a job's request, by the names of the contents."""
    for content, picture in pictures.items():
        await contents.put(job_id, content, picture, "application/octet-stream")


async def with_pictures(services: Services, given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the bytes of each picture in place of its URL."""
    largest = services.settings.max_body_bytes
    names = {PICTURE} | {name for kind in services.kinds.values() for name in kind.pictures}
    for name in names & given.keys():
        if given[name] in ("", b"", None):
            given = {other: value for other, value in given.items() if other != name}
            continue
        picture = await read_picture(
            given[name], largest, name, allow_private=services.settings.allow_private_addresses
        )
        given = {**given, name: picture}
    return given


async def checked_webhook(services: Services, key: Key, value: Any) -> str | None:
    """Return the URL of a webhook that a caller gives; an empty one is None.

    Raises:
        InvalidRequest: The value is no http(s) URL, or leads to an address that is not allowed.
    """
    if value in (None, ""):
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"videos: {WEBHOOK} must be an http(s) URL, got {short(value)}")
    await checked_target(value, field=WEBHOOK, allow_private=services.settings.allow_private_addresses)
    return value


def fingerprint(model: str, given: Mapping[str, Any], remixed_from: Job | None) -> str:
    """Return the digest of what a caller asks for, the same for a form and for JSON.

    Without a seed, the chosen one is no part of it.
    """
    found = hashlib.sha256(model.encode())
    found.update((remixed_from.id if remixed_from is not None else "").encode())
    for name in sorted(given):
        value = given[name]
        found.update(f"\0{name}\0".encode())
        if not isinstance(value, bytes):
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            value = json.dumps(text).encode()
        found.update(value)
    return found.hexdigest()


async def remix_fields(services: Services, job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a variation of a job: those that describe its video, with the caller's changes.

    Raises:
        ApiError: A picture of the job does not exist any more.
    """
    return await job_fields(services, job, changes, without=_NOT_REMIXED)


async def job_fields(
    services: Services, job: Job, changes: Mapping[str, Any], without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the fields of a job, with the caller's changes.

    Args:
        services: Services of the process.
        job: Job of the caller.
        changes: Fields that the caller gives; one that is None has its usual value again.
        without: Fields of the job that are left out.

    Raises:
        ApiError: A picture of the job does not exist any more.
    """
    kind = services.kinds[job.model]
    fields: dict[str, Any] = {"model": job.model}
    replaced = {own for name in changes for own in replaced_by(name, kind)}
    for name, value in job.request.items():
        if value is None or name in without or name in replaced:
            continue
        if name in kind.pictures:
            fields[name] = await _stored_picture(services, job, kind.pictures[name].content)
        else:
            fields[name] = value
    known = {*kind.fields, *ALIASES, SIZE, SECONDS, PICTURE}
    emptied = {name for name, value in changes.items() if value is None and name in known}
    return fields | {name: value for name, value in changes.items() if name not in emptied}


async def _stored_picture(services: Services, job: Job, content: str) -> bytes:
    found = await services.contents.get(job.id, content)
    if found is None:
        raise ApiError(
            f"videos: the picture {content} of {job.id} does not exist any more; send a new request",
            status=409,
            code="picture_missing",
            final=True,
        )
    return found.data


def replaced_by(name: str, kind: VideoKind) -> tuple[str, ...]:
    """Return the fields of a request class that a field of the API replaces.

    A draft is that of a stop, so another stop, or none, replaces it too.
    """
    picture = () if kind.picture is None else (kind.picture.field.name,)
    own = {
        SIZE: SIDES,
        SECONDS: ("frames",),
        PICTURE: picture,
        "stop_after_step": ("stop_after_step", "draft"),
    }
    return own.get(name, (ALIASES.get(name, name),))
