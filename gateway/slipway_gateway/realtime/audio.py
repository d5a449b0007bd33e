"""Decoding of what a microphone sends: 16-bit samples, or Opus as a browser's MediaRecorder makes it.

Opus comes in Ogg or WebM, cut at any place. PyAV reads a file in a blocking way, so a thread decodes, and
reads the pieces from a bounded queue. Only these two containers and this codec are opened: the data of a
stranger must not choose among all demuxers of FFmpeg.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

Pcm = NDArray[np.int16]
SAMPLE_RATE_HZ = 16_000
_CONTAINERS = {b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}
_PIECES, _OUTPUTS = 16, 64
_WHERE = "listen"


class Decoder(Protocol):
    """Decoder of one stream; it yields samples at 16 kHz as they get ready."""

    async def feed(self, piece: bytes) -> None:
        """Add a piece of the stream; wait while too much of it waits."""

    async def end(self) -> None:
        """Add the stream's end."""

    def samples(self) -> AsyncIterator[Pcm]:
        """Yield samples until the stream's end."""

    def close(self) -> None:
        """Free everything, also in the middle of the stream."""


class PcmDecoder:
    """Decoder of 16-bit little-endian samples at 16 kHz."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES)

    async def feed(self, piece: bytes) -> None:
        """Add a piece, which may end in the middle of a sample."""
        await self._pieces.put(piece)

    async def end(self) -> None:
        """Add the stream's end."""
        await self._pieces.put(None)

    async def samples(self) -> AsyncIterator[Pcm]:
        """Yield the samples.

        Raises:
            InvalidRequest: The stream ends in the middle of a sample.
        """
        left = b""
        while (piece := await self._pieces.get()) is not None:
            data = left + piece
            whole = len(data) - len(data) % 2
            left = data[whole:]
            if whole:
                yield np.frombuffer(data[:whole], "<i2").astype(np.int16, copy=False)
        if left:
            raise InvalidRequest(f"{_WHERE}: audio must be whole 16-bit samples, got an odd number of bytes")

    def close(self) -> None:
        """Free everything; the queue is all that there is."""


class OpusDecoder:
    """Decoder of Opus in Ogg or WebM, which is mixed to mono and resampled to 16 kHz."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_PIECES)
        self._outputs: asyncio.Queue[Pcm | Exception | None] = asyncio.Queue(_OUTPUTS)
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._rest = b""
        self._thread = threading.Thread(target=self._decode, name="listen-opus", daemon=True)
        self._thread.start()

    async def feed(self, piece: bytes) -> None:
        """Add a piece of the file, cut at any place."""
        await self._put(piece)

    async def end(self) -> None:
        """Add the end of the file."""
        await self._put(None)

    async def samples(self) -> AsyncIterator[Pcm]:
        """Yield the samples.

        Raises:
            InvalidRequest: The data is not Opus in Ogg or WebM, or it is damaged.
        """
        while (output := await self._outputs.get()) is not None:
            if isinstance(output, Exception):
                raise output
            yield output

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def read(self, size: int) -> bytes:
        """Return the next bytes of the file for PyAV, in its thread; none at the end."""
        while not self._rest:
            if self._closed.is_set():
                return b""
            try:
                piece = self._pieces.get(timeout=0.2)
            except queue.Empty:
                continue
            if piece is None:
                self._pieces.put(None)
                return b""
            self._rest = piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def _put(self, piece: bytes | None) -> None:
        while True:
            try:
                self._pieces.put_nowait(piece)
            except queue.Full:
                await asyncio.sleep(0.02)
            else:
                return

    def _decode(self) -> None:
        """Decode in a thread until the end of the file."""
        try:
            self._decode_file()
        except InvalidRequest as error:
            self._emit(error)
        except Exception as error:  # noqa: BLE001 - the data of a stranger fails in any way
            self._emit(
                InvalidRequest(f"{_WHERE}: audio must be Opus in Ogg or WebM, got damaged data ({error})")
            )
        self._emit(None)

    def _decode_file(self) -> None:
        import av

        head = b""
        while len(head) < 4 and (piece := self.read(4 - len(head))):
            head += piece
        if not head:
            return
        container_format = _CONTAINERS.get(head)
        if container_format is None:
            raise InvalidRequest(
                f"{_WHERE}: audio must be Opus in Ogg or WebM, got data that begins with {short(head)}; try"
                " format pcm16 for samples"
            )
        self._rest = head + self._rest
        # Without these, FFmpeg reads seconds of sound before it gives the first.
        options = {"probesize": "2048", "analyzeduration": "0", "fflags": "nobuffer"}
        with av.open(self, "r", format=container_format, options=options, buffer_size=4096) as container:
            streams = container.streams.audio
            if len(streams) != 1 or streams[0].codec_context.name not in ("opus", "libopus"):
                raise InvalidRequest(f"{_WHERE}: audio must be one Opus stream, got another content")
            resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE_HZ)
            for frame in container.decode(streams[0]):
                self._emit_frames(resampler.resample(frame))
            self._emit_frames(resampler.resample(None))

    def _emit_frames(self, frames: list[Any]) -> None:
        for frame in frames:
            self._emit(frame.to_ndarray().reshape(-1).astype(np.int16, copy=False))

    def _emit(self, output: Pcm | Exception | None) -> None:
        """Hand an output to the event loop; wait while too many wait there."""
        if self._closed.is_set() or self._loop.is_closed():
            return
        putting = asyncio.run_coroutine_threadsafe(self._outputs.put(output), self._loop)
        while not self._closed.is_set():
            try:
                putting.result(0.2)
            except TimeoutError:
                continue
            return
        putting.cancel()


DECODERS: dict[str, type[PcmDecoder] | type[OpusDecoder]] = {"pcm16": PcmDecoder, "opus": OpusDecoder}
"""Decoders by the name of the format."""
