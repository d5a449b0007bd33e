"""Store of the contents of jobs, in a local folder or in an object store (S3, GCS, Azure).

A content is one file of a job, at ``<job>/<name>``. Object stores keep its media type; a local folder cannot,
so there it is read from the first bytes of the file. A content is written whole or not at all, and several
processes on several machines may use one store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore, from_url

from slipway_gateway.errors import ApiError, not_found
from slipway_serving.protocol.errors import InvalidRequest, NotReady

if TYPE_CHECKING:
    from obstore import Attributes, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_LOG = logging.getLogger(__name__)

INPUTS = ("input", "input_2", "input_3", "input_4")
"""Names of the pictures of a job's request, in the order of the fields of its class."""
NAMES = ("video", "thumbnail", "spritesheet", "draft", *INPUTS, "state")
"""Names of the contents that a job may have."""
SCHEMES = ("s3", "gs", "az", "memory")
"""Schemes of the URLs of object stores; "memory" is for tests and for a single process."""
_UNKNOWN_TYPE = "application/octet-stream"
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHECK = "check"
_HEAD_BYTES = 16
_CHUNK_BYTES = 1 << 20
# The library's own limit for a whole request is 30 s, which would cut the download of a slow reader.
_CLIENT: ClientConfig = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=30),
    "timeout": timedelta(hours=1),
}
_RETRIES: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}


@dataclass(frozen=True)
class ContentInfo:
    """Facts about a content.

    Attributes:
        size: Size, in bytes.
        content_type: Media type.
        etag: Entity tag for conditional requests, with its quotes.
        last_modified: Time of the last change.
    """

    size: int
    content_type: str
    etag: str | None
    last_modified: datetime


@dataclass(frozen=True)
class Content(ContentInfo):
    """A whole content.

    Attributes:
        data: Bytes of the content.
    """

    data: bytes


class Usage(NamedTuple):
    """Space that the contents of one job take.

    Attributes:
        size: Size of all contents, in bytes.
        newest: Time of the last change of any of them, in Unix seconds.
    """

    size: int
    newest: float


class ContentStore:
    """Store of the contents of jobs.

    Args:
        url: Local folder, or ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
            Credentials and endpoints of object stores come from the environment (``AWS_…``, ``GOOGLE_…``,
            ``AZURE_…``).

    Raises:
        InvalidRequest: The URL names no store, or the folder cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._folder: Path | None = None
        if "://" in url:
            self._store: ObjectStore = _object_store(url)
        else:
            self._folder = _private_folder(Path(url))
            self._store = LocalStore(self._folder)

    async def put(self, job_id: str, name: str, data: bytes, content_type: str) -> None:
        """Write a content, whole or not at all; an existing one is replaced.

        Args:
            job_id: Identifier of the job.
            name: Name of the content, one of :data:`NAMES`.
            data: Bytes of the content.
            content_type: Media type.

        Raises:
            NotReady: The store cannot be written.
        """
        await self._put(_path(job_id, name), data, content_type)

    async def head(self, job_id: str, name: str) -> ContentInfo | None:
        """Return the facts about a content, or None if it does not exist."""
        path = _path(job_id, name)
        with _refusals("read"):
            try:
                # The library's own head() returns no media type.
                found = await obstore.get_async(self._store, path, options={"head": True})
                content_type = await self._content_type(path, found.attributes, found.meta)
            except FileNotFoundError:
                return None
        return _info(found.meta, content_type)

    async def get(self, job_id: str, name: str) -> Content | None:
        """Return a whole content, or None if it does not exist."""
        with _refusals("read"):
            try:
                found = await obstore.get_async(self._store, _path(job_id, name))
                data = bytes(await found.bytes_async())
            except FileNotFoundError:
                return None
        info = _info(found.meta, found.attributes.get("Content-Type") or sniffed_type(data[:_HEAD_BYTES]))
        return Content(info.size, info.content_type, info.etag, info.last_modified, data)

    async def stream(
        self, job_id: str, name: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield a content, or a range of it, in pieces of about 1 MiB.

        Args:
            job_id: Identifier of the job.
            name: Name of the content.
            start: First byte.
            end: Byte after the last one; None for all bytes.

        Raises:
            ApiError: The content does not exist (status 404).
            NotReady: The store cannot be read, or the range begins behind the content's end.
        """
        if end is not None and start >= end:
            return
        with _refusals("read"):
            try:
                if end is not None:
                    found = await obstore.get_async(
                        self._store, _path(job_id, name), options={"range": (start, end)}
                    )
                elif start:
                    found = await obstore.get_async(
                        self._store, _path(job_id, name), options={"range": {"offset": start}}
                    )
                else:
                    found = await obstore.get_async(self._store, _path(job_id, name))
                async for piece in found.stream(min_chunk_size=_CHUNK_BYTES):
                    yield bytes(piece)
            except FileNotFoundError:
                raise not_found("content", f"{job_id}/{name}") from None

    async def delete(self, job_id: str, *names: str) -> None:
        """Delete contents of a job; those that do not exist are skipped.

        Args:
            job_id: Identifier of the job.
            *names: Names of the contents; none deletes all that the job has.

        Raises:
            NotReady: The store cannot be written.
        """
        paths = [_path(job_id, name) for name in names]
        with _refusals("written"):
            if not names:
                _check_id(job_id)
                async for entries in obstore.list(self._store, f"{job_id}/"):
                    paths += [entry["path"] for entry in entries]
            for path in paths:
                # Deleting a list of paths ends at the first one that does not exist.
                with contextlib.suppress(FileNotFoundError):
                    await obstore.delete_async(self._store, path)
        if self._folder is not None:
            with contextlib.suppress(OSError):  # the folder still has other contents
                (self._folder / job_id).rmdir()

    async def jobs(self) -> dict[str, Usage]:
        """Return the space that each job's contents take, by the job's identifier."""
        found: dict[str, Usage] = {}
        with _refusals("read"):
            async for entries in obstore.list(self._store):
                for entry in entries:
                    job_id, _, name = entry["path"].partition("/")
                    if not name or not _JOB_ID.fullmatch(job_id):
                        continue
                    size, newest = found.get(job_id, (0, 0.0))
                    changed = entry["last_modified"].timestamp()
                    found[job_id] = Usage(size + entry["size"], max(newest, changed))
        return found

    async def size(self) -> int:
        """Return the size of all contents, in bytes."""
        return sum(usage.size for usage in (await self.jobs()).values())

    async def check(self) -> None:
        """Check that contents can be written and deleted.

        Raises:
            NotReady: The store cannot be used; the log says why.
        """
        path = f".{_CHECK}-{os.urandom(8).hex()}"
        await self._put(path, b"slipway", "text/plain")
        with _refusals("written"), contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._store, path)

    async def _put(self, path: str, data: bytes, content_type: str) -> None:
        with _refusals("written"):
            if self._folder is not None:
                await asyncio.to_thread(_write_private, self._folder / path, data)
            else:
                await obstore.put_async(self._store, path, data, attributes={"Content-Type": content_type})

    async def _content_type(self, path: str, attributes: Attributes, meta: ObjectMeta) -> str:
        if told := attributes.get("Content-Type"):
            return str(told)
        if not meta["size"]:
            return _UNKNOWN_TYPE
        end = min(_HEAD_BYTES, meta["size"])
        return sniffed_type(bytes(await obstore.get_range_async(self._store, path, start=0, end=end)))


def sniffed_type(head: bytes) -> str:
    """Return the media type of a file by its first 16 bytes."""
    if head[4:8] == b"ftyp":
        return "video/mp4"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    for magic, content_type in ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg")):
        if head.startswith(magic):
            return content_type
    return _UNKNOWN_TYPE


def _object_store(url: str) -> ObjectStore:
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        # The URL may contain a secret, so the message shows its scheme only.
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise InvalidRequest(
            f"contents: url must be a folder or begin with one of {known}, got {scheme}://…; try --contents"
            " s3://bucket/prefix"
        )
    if scheme == "memory":
        return MemoryStore()
    try:
        return from_url(url, client_options=_client_options(), retry_config=_RETRIES)
    except (BaseError, ValueError, OSError) as error:
        raise InvalidRequest(
            f"contents: url must name a store that the environment configures, got a {scheme}:// URL that is"
            f" not ({_first_line(error)}); try setting its region, account or bucket"
        ) from None


def _client_options() -> ClientConfig:
    # Options that are given replace those of the environment, so this variable of the library is read here.
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true", "yes"}
    return {**_CLIENT, "allow_http": True} if allowed else _CLIENT


@contextlib.contextmanager
def _refusals(action: str) -> Iterator[None]:
    """Turn errors of a store into NotReady; the log has the details, which callers must not see."""
    try:
        yield
    except (ApiError, InvalidRequest, FileNotFoundError):
        raise
    except (BaseError, OSError, NotImplementedError) as error:
        _LOG.warning("contents cannot be %s: %s", action, _first_line(error))
        raise NotReady(f"contents: the store cannot be {action} now; try again in a few seconds") from None


def _write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, whole or not at all."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except FileNotFoundError:
        # Another process has deleted the last content of the job, and its folder.
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _private_folder(folder: Path) -> Path:
    """Create a folder of mode 0700, or restrict an existing one to its owner, and return its full path."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        return folder.resolve(strict=True)
    except OSError as error:
        raise InvalidRequest(
            f"contents: folder must be one that this process can create and own, got {folder} ({error}); try"
            " another --contents"
        ) from None


def _path(job_id: str, name: str) -> str:
    _check_id(job_id)
    if name not in NAMES:
        raise InvalidRequest(f"contents: name must be one of {', '.join(NAMES)}, got {name!r}")
    return f"{job_id}/{name}"


def _check_id(job_id: str) -> None:
    if not _JOB_ID.fullmatch(job_id):
        raise InvalidRequest(
            f"contents: id must be at most 64 letters, digits, - and _, got {job_id[:80]!r}; try the id of"
            " a job"
        )


def _info(meta: ObjectMeta, content_type: str) -> ContentInfo:
    return ContentInfo(meta["size"], content_type, meta["e_tag"], meta["last_modified"])


def _first_line(error: BaseException) -> str:
    """Return the first line of an error; the library appends pages of its own structures."""
    return str(error).partition("\n")[0]
