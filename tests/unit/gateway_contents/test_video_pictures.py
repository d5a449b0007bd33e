"""Pictures of finished videos, which are made when somebody first asks for one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gateway_contents.sample_videos import pixels, whole

from slipway_gateway.contents import pictures as module
from slipway_gateway.contents.pictures import SPRITESHEET, THUMBNAIL, Pictures
from slipway_gateway.contents.renditions import Renditions, renditions
from slipway_gateway.contents.store import ContentStore
from slipway_serving.protocol.errors import Unrecoverable

JOB = "video_1"


@pytest.fixture
async def contents(tmp_path: Path) -> ContentStore:
    """A store with one video."""
    store = ContentStore(str(tmp_path))
    await store.put(JOB, "video", whole(pixels(9)), "video/mp4")
    return store


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the videos that were decoded."""
    sizes: list[int] = []

    def counted(mp4: bytes) -> Renditions:
        sizes.append(len(mp4))
        return renditions(mp4)

    monkeypatch.setattr(module, "renditions", counted)
    return sizes


async def test_video_is_decoded_once_when_many_ask_for_its_pictures(
    contents: ContentStore, decoded: list[int]
) -> None:
    pictures = Pictures(contents)
    found = await asyncio.gather(*(pictures.find(JOB, name) for name in (THUMBNAIL, SPRITESHEET) * 5))
    assert [each.content_type for each in found if each is not None] == ["image/webp", "image/jpeg"] * 5
    assert await Pictures(contents).find(JOB, THUMBNAIL) is not None
    assert len(decoded) == 1


async def test_there_is_no_picture_when_the_video_is_gone(contents: ContentStore) -> None:
    await contents.delete(JOB)
    assert await Pictures(contents).find(JOB, THUMBNAIL) is None
    assert await contents.jobs() == {}


async def test_nothing_is_left_when_the_job_is_deleted_while_its_pictures_are_made(
    contents: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    def deleting(mp4: bytes) -> Renditions:
        asyncio.run_coroutine_threadsafe(contents.delete(JOB), loop).result(30)
        return renditions(mp4)

    monkeypatch.setattr(module, "renditions", deleting)
    assert await Pictures(contents).find(JOB, THUMBNAIL) is None
    assert await contents.jobs() == {}


async def test_next_picture_is_made_when_a_video_is_damaged(contents: ContentStore) -> None:
    await contents.put("video_2", "video", b"no video", "video/mp4")
    pictures = Pictures(contents)
    with pytest.raises(Unrecoverable, match="renditions: the video must be an MP4 file"):
        await pictures.find("video_2", THUMBNAIL)
    assert await pictures.find(JOB, THUMBNAIL) is not None
