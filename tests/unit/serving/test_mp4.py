"""Frames to an MP4, read back by PyAV."""

import io
import itertools
import time
from pathlib import Path

import av
import numpy as np
import pytest

from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.fragments import _boxes, mp4_fragment
from slipway_serving.video.frames import Frames
from slipway_serving.video.mp4 import Mp4Encoder


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


def _fragments(frames: Frames, starts: list[int], as_text: bool = False) -> list[bytes]:
    interruption = Interruption("a model", lambda: False)
    pieces = [frames[start:end] for start, end in itertools.pairwise([*starts, len(frames)])]
    return [
        mp4_fragment(piece, start, number, 25, interruption, as_text=as_text).data
        for number, (start, piece) in enumerate(zip(starts, pieces, strict=True))
    ]


@pytest.mark.parametrize("as_text", [False, True])
def test_fragments_are_one_file_with_every_frame_in_its_time(as_text: bool) -> None:
    frames = _frames(13)
    fragments = _fragments(frames, [0, 1, 5, 9], as_text)
    assert [fragment[4:8] for fragment in fragments] == [b"ftyp", b"moof", b"moof", b"moof"]
    # What there is of a file that goes on can be played, whatever its length.
    for count in (1, 2, 4):
        with av.open(io.BytesIO(b"".join(fragments[:count]))) as container:
            read = list(container.decode(video=0))
        assert [round(frame.time * 25) for frame in read] == list(range([1, 5, 9, 13][count - 1]))
    pixels = np.stack([frame.to_ndarray(format="rgb24") for frame in read])
    assert np.abs(pixels.astype(int) - frames).mean() < 4


def test_fragments_have_the_same_bytes_when_the_frames_are_the_same() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (9, 64, 96, 3), np.uint8)
    first = _fragments(frames, [0, 1, 5])
    assert all(_fragments(frames, [0, 1, 5]) == first for _ in range(10))


def test_mp4_says_that_its_colours_are_bt709_of_the_limited_range() -> None:
    with av.open(io.BytesIO(_encode(_frames(), 16))) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.colorspace, context.color_primaries, context.color_trc) == (1, 1, 1)
        assert context.color_range == 1
        assert (context.width, context.height) == (64, 48)
        times = [frame.time for frame in container.decode(stream)]
    assert times == pytest.approx([place / 16 for place in range(9)])


def test_fragment_says_its_place_and_its_time_and_is_bytes_unless_text_is_asked_for() -> None:
    seconds = itertools.count()
    interruption = Interruption("a model", lambda: False, clock=lambda: float(next(seconds)))
    frames = _frames(3)
    first, later = mp4_fragment(frames, 0, 0, 25, interruption), mp4_fragment(frames, 7, 7, 25, interruption)
    assert (later.first_frame, first.elapsed_s, later.elapsed_s) == (7, 1.0, 2.0)
    assert first.fragment[4:8] == b"ftyp" and first.fragment.count(b"moov") == 1
    assert later.fragment[4:8] == b"moof" and b"moov" not in later.fragment
    # Fragments count from 1.
    place = later.fragment.index(b"mfhd")
    assert int.from_bytes(later.fragment[place + 8 : place + 12], "big") == 8
    assert first.data == first.fragment


@pytest.mark.parametrize("sizes", [[7], [8, 0], [8, 20], [8, 8, 3]])
def test_file_is_refused_when_its_boxes_are_not_whole(sizes: list[int]) -> None:
    data = b"".join(size.to_bytes(4, "big") + b"free" for size in sizes)
    with pytest.raises(
        Unrecoverable,
        match=f"MP4: a box must end within the file, got one of {sizes[-1]} bytes with 8 bytes left",
    ):
        list(_boxes(data))


def test_boxes_of_a_file_are_told_apart_to_its_end() -> None:
    data = b"\0\0\0\x08free\0\0\0\x0bmdatabc\0\0\0\x08\xa9nam"
    assert list(_boxes(data)) == [
        ("free", data[:8]),
        ("mdat", data[8:19]),
        ("\xa9nam", data[19:]),
    ]
    assert list(_boxes(b"")) == []
