"""Pictures of finished videos, made when somebody first asks for one.

Most videos are downloaded and never listed with a picture, and callers should not wait for pictures that they
do not want. So the first request for a picture decodes the video, and stores all its pictures beside it.
"""

from __future__ import annotations

import asyncio

from slipway_gateway.contents.renditions import SPRITESHEET_TYPE, THUMBNAIL_TYPE, renditions
from slipway_gateway.contents.store import ContentInfo, ContentStore

THUMBNAIL, SPRITESHEET = "thumbnail", "spritesheet"


class Pictures:
    """Pictures of the videos in a store.

    Args:
        contents: Store of the videos, which receives the pictures.
    """

    def __init__(self, contents: ContentStore) -> None:
        self._contents = contents
        # One video at a time is in memory, however many pictures a page asks for.
        self._turn = asyncio.Lock()

    async def find(self, job_id: str, name: str) -> ContentInfo | None:
        """Return the facts about a picture, which is made if it does not exist.

        Args:
            job_id: Identifier of a job whose video is stored.
            name: Name of the picture: :data:`THUMBNAIL` or :data:`SPRITESHEET`.

        Returns:
            Facts about the picture, or None if the job has no video any more.

        Raises:
            NotReady: The store cannot be used.
            Unrecoverable: The video cannot be decoded.
        """
        found = await self._contents.head(job_id, name)
        if found is not None:
            return found
        async with self._turn:
            # Another request may have made it meanwhile.
            return await self._contents.head(job_id, name) or await self._make(job_id, name)

    async def _make(self, job_id: str, name: str) -> ContentInfo | None:
        video = await self._contents.get(job_id, "video")
        if video is None:
            return None
        made = await asyncio.to_thread(renditions, video.data)
        await self._contents.put(job_id, THUMBNAIL, made.thumbnail, THUMBNAIL_TYPE)
        await self._contents.put(job_id, SPRITESHEET, made.spritesheet, SPRITESHEET_TYPE)
        if await self._contents.head(job_id, "video") is None:
            # The job was deleted while its pictures were made.
            await self._contents.delete(job_id)
        return await self._contents.head(job_id, name)
