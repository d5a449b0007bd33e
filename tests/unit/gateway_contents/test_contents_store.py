"""The store of contents: whole writes, private files, ranges, and what a job's contents take."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slipway_gateway.contents.store import ContentStore, sniffed_type
from slipway_gateway.errors import ApiError
from slipway_serving.protocol.errors import InvalidRequest, NotReady

MP4 = b"\0\0\0\x20ftypisom" + bytes(100)
JOB, OTHER = "video_01", "video_02"


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ContentStore:
    """An empty store. S3, GCS and Azure take the same way through the library as its store in memory."""
    return ContentStore(str(tmp_path / "contents") if request.param == "folder" else "memory:///")


async def joined(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_store_returns_what_was_put_when_it_is_asked(store: ContentStore) -> None:
    await store.put(JOB, "video", MP4, "video/mp4")
    content, info = await store.get(JOB, "video"), await store.head(JOB, "video")
    assert content is not None and info is not None
    assert (content.data, content.size, content.content_type) == (MP4, len(MP4), "video/mp4")
    assert (info.size, info.content_type, info.etag) == (len(MP4), "video/mp4", content.etag)
    assert info.last_modified.tzinfo is not None
    assert await joined(store.stream(JOB, "video")) == MP4


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (3, 40), (7, None), (0, None), (5, 5), (111, 112), (9, 500)]
)
async def test_store_streams_a_range_when_it_is_asked_for(
    store: ContentStore, start: int, end: int | None
) -> None:
    data = os.urandom(112)
    await store.put(JOB, "state", data, "application/octet-stream")
    assert await joined(store.stream(JOB, "state", start, end)) == data[start:end]


async def test_store_streams_in_pieces_when_a_content_is_large(store: ContentStore) -> None:
    data = os.urandom(3 << 20)
    await store.put(JOB, "video", data, "video/mp4")
    assert await joined(store.stream(JOB, "video")) == data


async def test_store_has_nothing_when_nothing_was_put(store: ContentStore) -> None:
    assert await store.get(JOB, "video") is None
    assert await store.head(JOB, "video") is None
    with pytest.raises(ApiError) as missing:
        await joined(store.stream(JOB, "video"))
    assert missing.value.status == 404
    assert (await store.jobs(), await store.size()) == ({}, 0)


async def test_store_replaces_a_content_when_it_is_put_again(store: ContentStore) -> None:
    await store.put(JOB, "draft", b"first", "image/png")
    await store.put(JOB, "draft", b"", "image/png")
    content = await store.get(JOB, "draft")
    assert content is not None and content.data == b""
    info = await store.head(JOB, "draft")
    assert info is not None and info.size == 0


async def test_store_sums_by_job_and_deletes_only_what_is_named(store: ContentStore) -> None:
    await store.put(JOB, "video", b"12345", "video/mp4")
    await store.put(JOB, "input", b"123", "image/png")
    await store.put(OTHER, "state", b"1", "application/octet-stream")
    found = await store.jobs()
    assert {job: usage.size for job, usage in found.items()} == {JOB: 8, OTHER: 1}
    assert all(usage.newest > 1e9 for usage in found.values())
    assert await store.size() == 9
    await store.delete(JOB, "input", "draft", "input")
    assert await store.get(JOB, "video") is not None
    await store.delete(JOB)
    await store.delete("video_never")
    assert set(await store.jobs()) == {OTHER}


async def test_store_leaves_no_trace_when_it_is_checked(store: ContentStore) -> None:
    await store.check()
    assert await store.jobs() == {}


@pytest.mark.parametrize("job_id", ["", "..", "a/b", "/etc", "a\0b", "x" * 65, "a.b", "ä"])
async def test_store_refuses_an_id_when_it_could_be_a_path(store: ContentStore, job_id: str) -> None:
    with pytest.raises(InvalidRequest, match="contents: id must be"):
        await store.put(job_id, "video", b"", "video/mp4")
    with pytest.raises(InvalidRequest, match="contents: id must be"):
        await store.delete(job_id)


@pytest.mark.parametrize("name", ["", "..", "video.mp4", "../video", "other"])
async def test_store_refuses_a_name_when_it_is_not_one_of_its_own(store: ContentStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match="contents: name must be one of"):
        await store.get(JOB, name)


async def test_folder_is_private_when_the_umask_is_open(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "contents"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    before = os.umask(0)
    try:
        await ContentStore(str(folder)).put(JOB, "state", b"1", "application/octet-stream")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {"contents": 0o700, JOB: 0o700, "state": 0o600}


async def test_folder_keeps_the_old_content_when_a_write_fails(tmp_path: Path) -> None:
    store = ContentStore(str(tmp_path))
    await store.put(JOB, "video", b"old", "video/mp4")
    (tmp_path / JOB / "state").mkdir()  # a file cannot replace a folder
    with pytest.raises(NotReady, match="contents: the store cannot be written"):
        await store.put(JOB, "state", b"new", "application/octet-stream")
    content = await store.get(JOB, "video")
    assert content is not None and content.data == b"old"
    assert sorted(path.name for path in (tmp_path / JOB).iterdir()) == ["state", "video"]


async def test_folder_of_a_job_goes_when_its_last_content_is_deleted(tmp_path: Path) -> None:
    store = ContentStore(str(tmp_path))
    await store.put(JOB, "video", b"1", "video/mp4")
    await store.delete(JOB, "video")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://host/x", "ftp://x", "azure://user:secret@x"])
def test_store_is_refused_without_its_secret_when_the_scheme_is_unknown(url: str) -> None:
    with pytest.raises(InvalidRequest, match="contents: url must be") as refused:
        ContentStore(url)
    assert "secret" not in str(refused.value)


def test_store_is_refused_when_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="contents: folder must be"):
        ContentStore(str(tmp_path / "file"))


async def test_store_reports_that_it_is_not_ready_when_its_server_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    # Without AWS_ALLOW_HTTP the library refuses the endpoint before it connects.
    with pytest.raises(NotReady, match="contents: the store cannot be written") as refused:
        await ContentStore("s3://bucket/prefix").check()
    assert "127.0.0.1" not in str(refused.value)


@pytest.mark.parametrize(
    ("head", "content_type"),
    [
        (MP4[:16], "video/mp4"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (b"", "application/octet-stream"),
        (b"<html>", "application/octet-stream"),
    ],
)
def test_type_is_read_from_the_first_bytes_when_a_folder_cannot_store_it(
    head: bytes, content_type: str
) -> None:
    assert sniffed_type(head) == content_type
