"""Download of a job's contents, whole or in parts (RFC 9110, 14: byte ranges)."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slipway_gateway.contents.pictures import SPRITESHEET, THUMBNAIL
from slipway_gateway.contents.store import INPUTS, ContentInfo
from slipway_gateway.errors import ApiError, conflict
from slipway_gateway.jobs.job import Job, Status
from slipway_gateway.services import Services

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_EARLY = frozenset({"draft", *INPUTS})
"""Contents that a job may have before its end."""
_MISSING = {
    "draft": "try stop_after_step",
    **dict.fromkeys(INPUTS, "its request has no such picture"),
}
_SUFFIXES = {"video/mp4": "mp4", "image/webp": "webp", "image/jpeg": "jpg", "image/png": "png"}


async def content_response(services: Services, job: Job, variant: str, request: Request) -> Response:
    """Return the answer with a content of a job.

    Raises:
        ApiError: The job has no such content, or not yet, or the range is beyond its end.
    """
    if variant not in _EARLY and job.status is not Status.COMPLETED:
        _refuse_unfinished(job)
    if variant in (THUMBNAIL, SPRITESHEET):
        info = await services.pictures.find(job.id, variant)
    else:
        info = await services.contents.head(job.id, variant)
    if info is None:
        raise ApiError(
            f"videos: {job.id} has no {variant}; " + _MISSING.get(variant, "its contents have expired"),
            status=404,
            code=f"{variant}_not_found",
            param="variant",
            final=True,
        )
    suffix = _SUFFIXES.get(info.content_type, "bin")
    headers = {
        "accept-ranges": "bytes",
        "cache-control": "private, max-age=0, must-revalidate",
        "content-disposition": f'inline; filename="{job.id}-{variant}.{suffix}"',
        "etag": f'"{info.etag}"',
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    first, last = _range(request.headers.get("range"), info)
    headers["content-length"] = str(last - first + 1)
    is_part = (first, last) != (0, info.size - 1)
    if is_part:
        headers["content-range"] = f"bytes {first}-{last}/{info.size}"
    body = services.contents.stream(job.id, variant, first, last + 1)
    return StreamingResponse(
        body, status_code=206 if is_part else 200, headers=headers, media_type=info.content_type
    )


def _refuse_unfinished(job: Job) -> None:
    """Raise the error for a job without a video."""
    if job.status in (Status.FAILED, Status.CANCELLED):
        raise conflict(
            f"videos: {job.id} has no video, since it {job.status.value}: {job.error_message or 'no reason'}",
            f"video_{job.status.value}",
        )
    raise ApiError(
        f"videos: {job.id} must be completed to be downloaded, got {job.status.value}; try again later",
        status=404,
        code="video_not_ready",
        retry_after_s=1,
    )


def _range(header: str | None, info: ContentInfo) -> tuple[int, int]:
    """Return the first and the last byte of the asked part; of the whole content without a range.

    Raises:
        ApiError: The range is beyond the end.
    """
    whole = 0, info.size - 1
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return whole
    if match[1]:
        first, last = int(match[1]), min(int(match[2] or whole[1]), whole[1])
    else:
        first, last = max(0, info.size - int(match[2])), whole[1]
    if first > last or not int(match[2] or 1):
        raise ApiError(
            f"videos: range must be within the {info.size} bytes of the content, got {header}",
            status=416,
            code="invalid_range",
            param="range",
        )
    return first, last
