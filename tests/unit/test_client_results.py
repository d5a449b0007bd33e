"""Reassembly of a stream: whole results, and every way in which one can be broken."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from slipway_client.results import Assembler, Frames, Progress, Video
from slipway_serving.errors import Unrecoverable
from slipway_serving.wan_t2v.request import TextToVideoRequest


def assembler(**fields: Any) -> Assembler:
    request = TextToVideoRequest(**{"prompt": "x", "frames": 5, "height": 32, "width": 64, **fields})
    return Assembler(request, "wan_t2v")


def chunk(index: int, chunks: int, **payload: Any) -> dict[str, Any]:
    numbers = {"chunk": np.array([index], np.int32), "chunks": np.array([chunks], np.int32)}
    return numbers | {"elapsed_s": np.array([1.5], np.float32)} | payload


def video_chunk(index: int, chunks: int, data: bytes) -> dict[str, Any]:
    return chunk(index, chunks, video=np.array([data], np.object_))


def progress(**more: Any) -> dict[str, Any]:
    return {"step": np.array([2]), "steps": np.array([8]), "elapsed_s": np.array([0.5]), **more}


def test_progress_is_reported_when_a_step_arrives() -> None:
    assert assembler().add(progress()) == Progress(2, 8, 0.5, None)


@pytest.mark.parametrize("flat", [False, True])
def test_preview_has_the_shape_of_the_video_when_sent_as_tensor_or_as_json(flat: bool) -> None:
    pixels = np.arange(4 * 8 * 3).reshape(4, 8, 3)
    event = assembler().add(progress(preview=pixels.reshape(-1) if flat else pixels.astype(np.uint8)))
    assert event is not None and event.preview is not None
    assert event.preview.dtype == np.uint8
    np.testing.assert_array_equal(event.preview, pixels)


def test_preview_is_refused_when_its_size_fits_no_shape() -> None:
    with pytest.raises(Unrecoverable, match="aspect, got 7 values"):
        assembler().add(progress(preview=np.zeros(7)))


def test_video_is_joined_in_order_when_chunks_arrive_out_of_order() -> None:
    parts = assembler()
    for index in (2, 0, 1):
        assert parts.add(video_chunk(index, 3, bytes([index]) * 2)) is None
    assert parts.result() == Video(b"\0\0\1\1\2\2", 1.5)


def test_base64_chunks_are_decoded_each_when_the_output_is_text() -> None:
    parts = assembler(output="video_base64")
    for index, data in enumerate((b"a", b"bc")):
        parts.add(video_chunk(index, 2, base64.b64encode(data)))
    assert parts.result() == Video(b"abc", 1.5)


def test_base64_chunk_is_refused_when_it_is_no_base64() -> None:
    parts = assembler(output="video_base64")
    parts.add(video_chunk(0, 1, b"not base64!"))
    with pytest.raises(Unrecoverable, match="base64"):
        parts.result()


def test_frames_are_joined_when_all_have_arrived() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (5, 32, 64, 3), np.uint8)
    parts = assembler(output="frames")
    parts.add(chunk(0, 2, frames=frames[:2]))
    parts.add(chunk(1, 2, frames=frames[2:]))
    result = parts.result()
    assert isinstance(result, Frames)
    np.testing.assert_array_equal(result.array, frames)


@pytest.mark.parametrize("arrived", [[0, 1], [1, 2], [0, 2]])
def test_result_is_refused_when_a_chunk_is_missing(arrived: list[int]) -> None:
    parts = assembler()
    for index in arrived:
        parts.add(video_chunk(index, 3, b"x"))
    missing = ({0, 1, 2} - set(arrived)).pop()
    with pytest.raises(Unrecoverable, match=f"3 chunks, got 2, without {missing}"):
        parts.result()


def test_result_is_refused_when_the_stream_brought_none() -> None:
    with pytest.raises(Unrecoverable, match="must end with a result"):
        assembler().result()


@pytest.mark.parametrize("shape", [(4, 32, 64, 3), (5, 64, 32, 3), (6, 32, 64, 3)])
def test_frames_are_refused_when_they_are_not_what_was_asked(shape: tuple[int, ...]) -> None:
    parts = assembler(output="frames")
    parts.add(chunk(0, 1, frames=np.zeros(shape, np.uint8)))
    with pytest.raises(Unrecoverable, match=r"\[5, 32, 64, 3\]"):
        parts.result()


@pytest.mark.parametrize(
    "second",
    [
        video_chunk(0, 2, b"x"),
        video_chunk(2, 2, b"x"),
        video_chunk(-1, 2, b"x"),
        video_chunk(1, 3, b"x"),
        chunk(1, 2),
        chunk(1, 2, frames=np.zeros((1, 32, 64, 3), np.uint8)),
        {"other": np.zeros(1)},
        {},
        {"chunk": np.array([1])},
    ],
    ids=["twice", "beyond", "negative", "other count", "empty", "frames", "unknown", "nothing", "no count"],
)
def test_response_is_refused_when_it_contradicts_the_others(second: dict[str, Any]) -> None:
    parts = assembler()
    parts.add(video_chunk(0, 2, b"x"))
    with pytest.raises(Unrecoverable):
        parts.add(second)
