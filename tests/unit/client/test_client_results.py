"""Reassembly of a stream: whole results, and every way in which one can be broken."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from slipway_client.results import Assembler, Frames, Video, join_frames
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import FramesPart, Progress, VideoPart, read, tensors
from slipway_serving.protocol.snapshots.requests import Restored


class Stream:
    """An assembler that is fed with responses."""

    def __init__(self, **fields: Any) -> None:
        request = TextToVideoRequest(**{"prompt": "x", "frames": 5, "height": 32, "width": 64, **fields})
        self._assembler = Assembler(request, "wan_t2v")

    def add(self, response: dict[str, Any]) -> Any:
        return self._assembler.add(read(TextToVideoRequest.events, response, "wan_t2v"))

    def result(self) -> Any:
        (result,) = self._assembler.results()
        return result


def assembler(**fields: Any) -> Stream:
    return Stream(**fields)


def chunk(index: int, chunks: int, **payload: Any) -> dict[str, Any]:
    numbers = {"chunk": np.array([index], np.int32), "chunks": np.array([chunks], np.int32)}
    return numbers | {"elapsed_s": np.array([1.5], np.float32)} | payload


def frames_chunk(index: int, chunks: int, frames: Any, first: int = 0) -> dict[str, Any]:
    return chunk(index, chunks, frames=frames, first_frame=np.array([first], np.int32))


def video_chunk(index: int, chunks: int, data: bytes) -> dict[str, Any]:
    return chunk(index, chunks, video=np.array([data], np.object_))


def progress(**more: Any) -> dict[str, Any]:
    return {"step": np.array([2]), "steps": np.array([8]), "elapsed_s": np.array([0.5]), **more}


def test_progress_is_reported_when_a_step_arrives() -> None:
    assert assembler().add(progress()) == Progress(2, 8, 0.5, None)


@pytest.mark.parametrize("flat", [False, True])
def test_preview_has_the_shape_of_the_video_when_sent_as_tensor_or_as_json(flat: bool) -> None:
    pixels = np.arange(4 * 8 * 3).reshape(4, 8, 3)
    size = {"height": np.array([4]), "width": np.array([8])}
    shown = pixels.reshape(-1) if flat else pixels.astype(np.uint8)
    event = assembler().add(progress(preview=shown, **size))
    assert event is not None and event.preview is not None
    assert event.preview.dtype == np.uint8
    np.testing.assert_array_equal(event.preview, pixels)


def test_preview_is_refused_when_its_size_fits_no_shape() -> None:
    size = {"height": np.array([4]), "width": np.array([8])}
    with pytest.raises(Unrecoverable, match=r"preview must have the shape \[4, 8, 3\].*got 7 values"):
        assembler().add(progress(preview=np.zeros(7, np.int64), **size))


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
    with pytest.raises(Unrecoverable, match="base64"):
        parts.add(video_chunk(0, 1, b"not base64!"))


def test_frames_are_joined_when_all_have_arrived() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (5, 32, 64, 3), np.uint8)
    parts = assembler(output="frames")
    parts.add(frames_chunk(0, 2, frames[:2]))
    parts.add(frames_chunk(1, 2, frames[2:], first=2))
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
    with pytest.raises(Unrecoverable, match="must contain a result"):
        assembler().result()


def test_result_is_refused_when_the_stream_brought_progress_alone() -> None:
    parts = assembler()
    parts.add(progress())
    with pytest.raises(Unrecoverable) as failure:
        parts.result()
    text = "stream must contain a result, got none before its end; try again, and see the server's log"
    assert str(failure.value) == f"wan_t2v: {text}"


def test_stream_is_whole_when_its_one_event_is_an_answer_of_another_kind() -> None:
    made = Assembler(TextToVideoRequest(prompt="x"), "wan_t2v")
    made.add(Progress(1, 2, 0.5))
    event = Restored(1, 3)
    assert made.add(event) is event
    made.add(Progress(2, 2, 0.5))
    assert made.results() == []


def test_result_has_the_numbers_of_its_last_part() -> None:
    for kind in ("video", "frames"):
        parts = assembler(output=kind)
        for index, rate in enumerate((0.25, 0.75)):
            part = video_chunk(index, 2, b"x")
            if kind == "frames":
                first, count = (0, 2) if index == 0 else (2, 3)
                part = frames_chunk(index, 2, np.zeros((count, 32, 64, 3), np.uint8), first)
            rates = {"cache_hit_rate": np.array([rate], np.float32)}
            parts.add({**part, **rates, "elapsed_s": np.array([index + 0.5], np.float32)})
        result = parts.result()
        assert (result.elapsed_s, result.cache_hit_rate) == (1.5, 0.75)


def test_missing_chunks_are_named_up_to_the_eighth_when_many_are_missing() -> None:
    parts = assembler()
    parts.add(video_chunk(0, 11, b"x"))
    with pytest.raises(
        Unrecoverable, match="must have 11 chunks, got 1, without 1, 2, 3, 4, 5, 6, 7, 8; try"
    ):
        parts.result()


def fragment(first: int, frames: int, data: bytes, chunk: int, total: int = 6) -> VideoPart:
    return VideoPart(chunk, None, 1.0, data, first_frame=first, part_frames=frames, frames_total=total)


def fragments(*parts: VideoPart) -> Any:
    made = Assembler(TextToVideoRequest(prompt="x"), "wan_t2v")
    for each in parts:
        made.add(each)
    (result,) = made.results()
    return result


def test_fragments_are_in_the_order_of_time_when_they_came_in_another() -> None:
    video = fragments(fragment(4, 2, b"c", 0), fragment(0, 1, b"a", 1), fragment(1, 3, b"b", 2))
    assert video.data == b"abc"
    assert fragments(fragment(0, 6, b"one", 0)).data == b"one"


@pytest.mark.parametrize(
    ("parts", "runs"),
    [
        ([(0, 2), (3, 3)], "0 to 1, 3 to 5"),
        ([(1, 5)], "1 to 5"),
        ([(0, 5)], "0 to 4"),
        ([(0, 7)], "0 to 6"),
        ([(0, 4), (3, 3)], "0 to 3, 3 to 5"),
    ],
    ids=["a gap", "no beginning", "no end", "too long", "twice"],
)
def test_fragments_are_refused_when_they_make_no_whole_video(parts: list[tuple[int, int]], runs: str) -> None:
    with pytest.raises(
        Unrecoverable, match=f"wan_t2v: video must have each of its 6 frames once, got frames {runs}; try"
    ):
        fragments(*(fragment(first, count, b"x", chunk) for chunk, (first, count) in enumerate(parts)))


def test_chunks_of_a_file_are_in_their_order_when_one_has_no_place_in_time() -> None:
    made = fragments(fragment(0, 3, b"b", 1), VideoPart(0, None, 1.0, b"a"))
    assert made.data == b"ab"


def test_parts_are_refused_when_a_number_of_theirs_comes_twice_or_is_of_another_count() -> None:
    parts = assembler()
    parts.add(video_chunk(0, 2, b"x"))
    with pytest.raises(Unrecoverable, match="chunk must be a new one of 2 chunks, got 0 of 2"):
        parts.add(video_chunk(0, 2, b"x"))
    with pytest.raises(Unrecoverable, match="chunk must be a new one of 2 chunks, got 1 of 3"):
        parts.add(video_chunk(1, 3, b"x"))
    parts.add(video_chunk(1, 2, b"y"))
    assert parts.result().data == b"xy"


@pytest.mark.parametrize("shape", [(4, 32, 64, 3), (5, 64, 32, 3), (6, 32, 64, 3)])
def test_frames_are_refused_when_they_are_not_what_was_asked(shape: tuple[int, ...]) -> None:
    parts = assembler(output="frames")
    parts.add(frames_chunk(0, 1, np.zeros(shape, np.uint8)))
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
        frames_chunk(1, 2, np.zeros((1, 32, 64, 3), np.uint8)),
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


def part(first: int, count: int, value: int, **more: Any) -> FramesPart:
    return FramesPart(np.full((count, 2, 2, 3), value, np.uint8), first, 1.0, **more)


def test_frames_are_in_the_order_of_time_when_parts_came_in_another() -> None:
    whole = join_frames([part(4, 2, 7, frames_total=6), part(0, 4, 3, frames_total=6)], "here")
    assert whole[:, 0, 0, 0].tolist() == [3, 3, 3, 3, 7, 7]


def test_later_part_holds_when_two_have_the_same_frame() -> None:
    parts = [part(0, 4, 1, final=False), part(2, 4, 2), part(0, 2, 3)]
    assert join_frames(parts, "here")[:, 0, 0, 0].tolist() == [3, 3, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([part(2, 2, 1)], "got no final frame 0 of 4"),
        ([part(0, 2, 1, frames_total=5)], "got no final frame 2 of 5"),
        ([part(0, 2, 1), part(2, 2, 1, final=False)], "got no final frame 2 of 4"),
        ([part(0, 2, 1, frames_total=2), part(2, 1, 1, frames_total=2)], "to one video of 2 frames"),
        ([part(-1, 2, 1)], "to one video"),
        ([part(0, 1, 1, frames_total=2), part(1, 1, 1, frames_total=3)], "to one video"),
        (
            [part(0, 1, 1), FramesPart(np.zeros((1, 2, 4, 3), np.uint8), 1, 1.0)],
            r"here: parts must belong to one video of 2 frames, got parts of shapes"
            r" \[\[1, 2, 2, 3\], \[1, 2, 4, 3\]\]",
        ),
    ],
    ids=[
        "no beginning",
        "no end",
        "not final",
        "beyond the end",
        "before the beginning",
        "two ends",
        "two sizes",
    ],
)
def test_frames_are_refused_when_they_make_no_whole_video(parts: list[FramesPart], problem: str) -> None:
    with pytest.raises(Unrecoverable, match=problem):
        join_frames(parts, "here")


def test_frames_are_the_same_when_they_came_as_text() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 2, 3), np.uint8)
    sent = tensors(FramesPart(frames, 5, 1.0).as_text())
    assert "frames" not in sent
    flat = {name: array.reshape(-1) for name, array in sent.items()}
    back = read([Progress, FramesPart, VideoPart], flat, "here")
    assert isinstance(back, FramesPart) and (back.first_frame, back.final) == (5, True)
    np.testing.assert_array_equal(back.pixels, frames)


def test_event_is_handed_on_when_it_is_no_part_of_a_result() -> None:
    event = Progress(1, 2, 0.5)
    assert Assembler(TextToVideoRequest(prompt="x"), "wan_t2v").add(event) is event
