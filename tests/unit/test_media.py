"""Frames to bytes: rounding, the MP4 read back by PyAV, chunks."""

import base64
import io
import itertools
import time
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_serving.media import (
    BASE64_CHUNK_BYTES,
    CHUNK_BYTES,
    FrameChunks,
    Frames,
    Mp4Encoder,
    base64_chunks,
    byte_chunks,
    to_uint8,
)


def _frames(count: int = 9, height: int = 48, width: int = 64) -> Frames:
    frames = np.zeros((count, height, width, 3), np.uint8)
    frames[..., 0] = np.linspace(0, 255, width, dtype=np.uint8)
    frames[:, : height // 2, :, 1] = 200
    frames[..., 2] = (np.arange(count) * 20)[:, None, None]
    return frames


def _encode(frames: Frames, fps: int, parts: int = 4) -> bytes:
    with Mp4Encoder(frames.shape[2], frames.shape[1], fps) as encoder:
        for start in range(0, len(frames), parts):
            encoder.add(frames[start : start + parts])
        return encoder.finish()


def test_to_uint8_rounds_as_diffusers_does() -> None:
    import torch
    from diffusers.video_processor import VideoProcessor

    samples = np.random.default_rng(0).uniform(-1.2, 1.2, (1, 3, 4, 8, 16)).astype(np.float32)
    video = VideoProcessor().postprocess_video(torch.from_numpy(samples), output_type="np")[0]
    assert np.array_equal(to_uint8(samples), (video * 255).round().astype(np.uint8))


@pytest.mark.parametrize("fps", [1, 7, 16, 120])
def test_mp4_has_the_frames_size_and_fps_that_went_in(fps: int) -> None:
    frames = _frames()
    with av.open(io.BytesIO(_encode(frames, fps))) as container:
        stream = container.streams.video[0]
        read = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == fps
        assert stream.frames == len(frames)
    assert read.shape == frames.shape
    assert np.abs(read.astype(int) - frames).mean() < 4


def test_mp4_has_its_index_first() -> None:
    video = _encode(_frames(), 16)
    assert video[4:8] == b"ftyp"
    assert 0 < video.index(b"moov") < video.index(b"mdat")


def test_mp4_has_the_same_bytes_when_the_frames_are_the_same() -> None:
    noise = np.random.default_rng(0).integers(-20, 20, (17, 64, 96, 3))
    frames = np.clip(_frames(17, 64, 96).astype(int) + noise, 0, 255).astype(np.uint8)
    first = _encode(frames, 16)
    begun = int(time.time())
    # x264's AVX-512 code failed this 30 times in 60; the loop goes on until a time stamp would differ too.
    for again in itertools.count():
        assert _encode(frames, 16, parts=1 + again % 4) == first
        if again >= 20 and int(time.time()) > begun:
            break
    assert _encode(frames[::-1].copy(), 16) != first


def test_mp4_encoder_leaves_no_file_when_it_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyError), Mp4Encoder(64, 48, 16) as encoder:
        encoder.add(_frames())
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@given(
    st.integers(1, 60), st.integers(1, 9), st.sampled_from([(64, 64), (720, 1280), (512, 512), (1088, 1920)])
)
def test_frame_chunks_are_whole_frames_below_the_limit(count: int, parts: int, size: tuple[int, int]) -> None:
    frames = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, *size, 3))
    chunks = FrameChunks(count, *size)
    seen: list[int] = []
    made = 0
    for start in range(0, count, parts):
        for part in chunks.add(frames[start : start + parts]):
            assert len(part) == 1 or part.nbytes <= CHUNK_BYTES
            seen += part[:, 0, 0, 0].tolist()
            made += 1
    assert seen == list(range(count))
    assert made == chunks.count


@pytest.mark.parametrize(
    "size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * BASE64_CHUNK_BYTES + 5]
)
def test_byte_chunks_join_to_the_whole_and_stay_below_the_limit(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert b"".join(byte_chunks(data)) == data
    texts = base64_chunks(data)
    assert b"".join(base64.b64decode(text) for text in texts) == data
    assert max(map(len, byte_chunks(data) + texts)) <= CHUNK_BYTES
