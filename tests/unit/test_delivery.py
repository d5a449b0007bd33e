"""Frames to events: rounding, runs below the limit, order, text."""

import base64
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_serving import images
from slipway_serving.errors import Unrecoverable
from slipway_serving.events import FramesPart, VideoPart
from slipway_serving.video.delivery import (
    BASE64_CHUNK_BYTES,
    CHUNK_BYTES,
    Delivery,
    FrameChunks,
    base64_chunks,
    byte_chunks,
    deliver,
    frame_parts,
)
from slipway_serving.video.frames import Frames, to_uint8
from slipway_serving.video.jpeg import jpeg_frames
from slipway_serving.watch import Watch

GRPC_LIMIT_BYTES = 4 << 20
WATCH = Watch("a model", lambda: False)


def _frames(count: int, height: int = 64, width: int = 64) -> Frames:
    return np.random.default_rng(count).integers(0, 256, (count, height, width, 3), np.uint8)


def test_to_uint8_rounds_as_diffusers_does() -> None:
    import torch
    from diffusers.video_processor import VideoProcessor

    samples = np.random.default_rng(0).uniform(-1.2, 1.2, (1, 3, 4, 8, 16)).astype(np.float32)
    video = VideoProcessor().postprocess_video(torch.from_numpy(samples), output_type="np")[0]
    assert np.array_equal(to_uint8(samples), (video * 255).round().astype(np.uint8))


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


@pytest.mark.parametrize("output", ["frames", "frames_base64"])
@pytest.mark.parametrize("size", [(48, 64), (720, 1280)])
def test_parts_of_a_whole_video_join_in_time_and_say_their_place(output: str, size: tuple[int, int]) -> None:
    frames = _frames(9, *size)
    asked = Delivery("a model", output, 9, *size, fps=16)
    parts = list(deliver(asked, np.split(frames, [1, 5]), WATCH))
    seen = []
    for number, part in enumerate(parts):
        assert isinstance(part, FramesPart)
        assert (part.chunk, part.chunks, part.frames_total, part.final) == (number, len(parts), 9, True)
        assert (part.first_frame, part.height, part.width) == (sum(map(len, seen)), *size)
        assert (part.frames is None) == (output == "frames_base64")
        carried = part.frames_base64 if part.frames is None else part.frames.tobytes()
        assert carried is not None and len(carried) < GRPC_LIMIT_BYTES
        seen.append(part.pixels)
    assert np.array_equal(np.concatenate(seen), frames)


@pytest.mark.parametrize("output", ["video", "video_base64"])
def test_file_is_the_same_as_bytes_and_as_text(output: str) -> None:
    def file(form: str) -> bytes:
        parts = list(deliver(Delivery("a model", form, 5, 64, 64, fps=12), [_frames(5)], WATCH))
        assert all(isinstance(part, VideoPart) for part in parts)
        return b"".join(part.data(form) for part in parts if isinstance(part, VideoPart))

    assert file(output) == file("video")


@pytest.mark.parametrize("output", ["video", "frames"])
@pytest.mark.parametrize("count", [4, 6])
def test_delivery_ends_with_an_error_when_there_are_not_as_many_frames(output: str, count: int) -> None:
    asked = Delivery("a model", output, 5, 64, 64, fps=16)
    with pytest.raises(Unrecoverable, match=f"a model: the decoder must give 5 frames, got {count}"):
        list(deliver(asked, [_frames(count)], WATCH))


@pytest.mark.parametrize("as_text", [False, True])
def test_parts_of_a_section_begin_where_it_begins_when_more_comes_before_it(as_text: bool) -> None:
    frames = _frames(7, 512, 768)
    parts = list(frame_parts(frames, 33, WATCH, as_text=as_text, final=False))
    assert len(parts) > 1
    assert np.array_equal(np.concatenate([part.pixels for part in parts]), frames)
    assert parts[0].first_frame == 33
    for earlier, later in itertools.pairwise(parts):
        assert later.first_frame == earlier.first_frame + len(earlier.pixels)
    assert {(part.final, part.chunks, part.frames_total) for part in parts} == {(False, None, None)}
    sizes = [len(part.frames_base64 or b"") if as_text else part.pixels.nbytes for part in parts]
    assert max(sizes) <= CHUNK_BYTES


@pytest.mark.parametrize("as_text", [False, True])
def test_jpeg_files_show_the_frames_in_their_places(as_text: bool) -> None:
    ramp = np.arange(64, dtype=np.uint8)
    frames = np.stack(
        [np.broadcast_to((ramp + place * 60)[:, None, None], (64, 64, 3)) for place in range(3)]
    )
    files = list(jpeg_frames(frames, 9, WATCH, as_text=as_text))
    assert [file.first_frame for file in files] == [9, 10, 11]
    assert [file.jpeg.isascii() for file in files] == [as_text] * 3
    shown = np.stack([images.pixels(file.data) for file in files])
    assert np.abs(shown.astype(int) - frames).max() <= 3
