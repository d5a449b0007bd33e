"""Frames to events: rounding, runs below the limit, order, text."""

import base64
import io
import itertools

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_serving.protocol import images
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import FramesPart, VideoPart
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.delivery import (
    BASE64_CHUNK_BYTES,
    CHUNK_BYTES,
    Delivery,
    FrameChunks,
    base64_chunks,
    byte_chunks,
    deliver,
    fragment_parts,
    frame_parts,
)
from slipway_serving.video.frames import Frames, to_uint8
from slipway_serving.video.jpeg import jpeg_frames

GRPC_LIMIT_BYTES = 4 << 20
WATCH = Interruption("a model", lambda: False)


def _frames(count: int, height: int = 64, width: int = 64) -> Frames:
    return np.random.default_rng(count).integers(0, 256, (count, height, width, 3), np.uint8)


def test_to_uint8_rounds_as_diffusers_does() -> None:
    import torch
    from diffusers.video_processor import VideoProcessor

    samples = np.random.default_rng(0).uniform(-1.2, 1.2, (1, 3, 4, 8, 16)).astype(np.float32)
    video = VideoProcessor().postprocess_video(torch.from_numpy(samples), output_type="np")[0]
    assert np.array_equal(to_uint8(samples), (video * 255).round().astype(np.uint8))


@settings(deadline=None)
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
        to_wire_form = part.frames_base64 if part.frames is None else part.frames.tobytes()
        assert to_wire_form is not None and len(to_wire_form) < GRPC_LIMIT_BYTES
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
    with pytest.raises(Unrecoverable, match=f"a model: the decoder must return 5 frames, got {count}"):
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


def timed() -> Interruption:
    """An interruption check whose clock advances by one second at each reading."""
    seconds = itertools.count()
    return Interruption("a model", lambda: False, clock=lambda: float(next(seconds)))


def test_frames_fill_a_run_when_they_are_exactly_as_many_bytes() -> None:
    chunks = FrameChunks(5, 2, 4, most_bytes=2 * 24)
    assert chunks.count == 3
    assert [len(run) for run in chunks.add(_frames(4, 2, 4))] == [2, 2]
    assert [len(run) for run in chunks.add(_frames(1, 2, 4))] == [1]
    assert FrameChunks(5, 2, 4, most_bytes=2 * 24 - 1).count == 5
    # One frame is a run, however large it is.
    assert FrameChunks(5, 2, 4, most_bytes=1).count == 5


def test_parts_of_a_file_say_their_number_and_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_serving.video.delivery.CHUNK_BYTES", 1000)
    parts = list(deliver(Delivery("a model", "video", 5, 64, 64, fps=12), [_frames(5)], timed()))
    assert len(parts) > 2
    for number, part in enumerate(parts):
        assert isinstance(part, VideoPart)
        assert (part.chunk, part.chunks, part.elapsed_s) == (number, len(parts), number + 1.0)
        assert len(part.video) == 1000 or number == len(parts) - 1
        assert part.first_frame is None
    with av.open(io.BytesIO(b"".join(part.video for part in parts if isinstance(part, VideoPart)))) as file:
        assert (file.streams.video[0].average_rate, len(list(file.decode(video=0)))) == (12, 5)


def test_part_of_neighbouring_frames_is_final_and_not_text_unless_it_is_said() -> None:
    (part,) = frame_parts(_frames(2), 0, timed())
    assert (part.final, part.frames_total, part.elapsed_s) == (True, None, 1.0)
    assert part.frames is not None and part.frames_base64 is None
    (told,) = frame_parts(_frames(2), 0, timed(), final=False, frames_total=9)
    assert (told.final, told.frames_total) == (False, 9)


@pytest.mark.parametrize("as_text", [False, True])
def test_fragments_are_cut_in_halves_until_each_is_small_enough(
    monkeypatch: pytest.MonkeyPatch, as_text: bool
) -> None:
    monkeypatch.setattr("slipway_serving.video.delivery.CHUNK_BYTES", 22_000)
    monkeypatch.setattr("slipway_serving.video.delivery.BASE64_CHUNK_BYTES", 22_000)
    frames = _frames(7, 64, 96)
    parts = list(fragment_parts(frames[:5], 0, 4, 16, 7, timed(), as_text=as_text))
    after = list(fragment_parts(frames[5:], 5, 9, 16, 7, timed(), as_text=as_text))
    assert [part.chunk for part in parts] == list(range(4, 4 + len(parts)))
    assert after[0].chunk == 9
    ends = [0, *itertools.accumulate(part.part_frames or 0 for part in parts)]
    assert ([part.first_frame for part in parts], ends[-1]) == (ends[:-1], 5)
    assert 1 < len(parts) < 5
    assert {(part.frames_total, part.chunks) for part in parts} == {(7, None)}
    data = [base64.b64decode(part.video) if as_text else part.video for part in (*parts, *after)]
    for part, fragment in zip((*parts, *after), data, strict=True):
        assert len(fragment) <= 22_000 or part.part_frames == 1
        assert part.elapsed_s > 0
    with av.open(io.BytesIO(b"".join(data))) as file:
        assert [round(frame.time * 16) for frame in file.decode(video=0)] == list(range(7))


def test_jpeg_is_bytes_of_good_quality_unless_text_is_asked_for() -> None:
    from PIL import Image

    frames = _frames(1)
    (file,) = jpeg_frames(frames, 3, timed())
    assert (file.first_frame, file.elapsed_s, file.jpeg[:3]) == (3, 1.0, b"\xff\xd8\xff")
    wanted = io.BytesIO()
    Image.fromarray(frames[0]).save(wanted, format="JPEG", quality=90)
    assert file.jpeg == wanted.getvalue()


def test_to_uint8_keeps_the_order_of_frames_and_colours() -> None:
    samples = np.full((1, 3, 2, 1, 2), -1.0, np.float16)
    samples[0, 1, 1, 0, 1] = 1.0
    samples[0, 2, 0, 0, 0] = 0.0
    found = to_uint8(samples)
    assert found.tolist() == [[[[0, 0, 128], [0, 0, 0]]], [[[0, 0, 0], [0, 255, 0]]]]
    assert found.flags.c_contiguous


@pytest.mark.parametrize(("as_text", "lengths"), [(False, [4, 4, 1]), (True, [3, 3, 3])])
def test_part_has_fewer_frames_when_it_is_text(as_text: bool, lengths: list[int]) -> None:
    frames = _frames(9, 256, 1024)  # 0.75 MiB each: four are 3 MiB, and so are three as text
    parts = list(frame_parts(frames, 0, WATCH, as_text=as_text))
    assert [len(part.pixels) for part in parts] == lengths
    output = "frames_base64" if as_text else "frames"
    whole = deliver(Delivery("a model", output, 9, 256, 1024, fps=16), [frames], WATCH)
    assert [len(part.pixels) for part in whole if isinstance(part, FramesPart)] == lengths
