"""The stream program on a graph and models that answer by arithmetic: cuts, events, batches, bounds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from server_fixtures import graph

from slipway_serving.families.wakeword.stream import WakewordStream
from slipway_serving.protocol.errors import InvalidRequest, NotReady, Overloaded, SlipwayError
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.program import Call, Settings, Tensors

RATE_HZ = 16_000


def features(frames: int = 128) -> onnx.ModelProto:
    """A window's features are the size of its first sample; its rms is as it is."""
    return graph(
        [
            helper.make_node("Slice", ["audio", "zero", "one", "one"], ["first"]),
            helper.make_node("Abs", ["first"], ["size"]),
            helper.make_node("Unsqueeze", ["size", "two"], ["row"]),
            helper.make_node("Tile", ["row", "repeats"], ["input_values"]),
            helper.make_node("Mul", ["audio", "audio"], ["squares"]),
            helper.make_node("ReduceMean", ["squares", "one"], ["mean"]),
            helper.make_node("Sqrt", ["mean"], ["rms"]),
        ],
        {"audio": (TensorProto.FLOAT, ["batch", "samples"])},
        {"input_values": (TensorProto.FLOAT, ["batch", frames, 1]), "rms": (TensorProto.FLOAT, ["batch", 1])},
        {
            "zero": np.array([0]),
            "one": np.array([1]),
            "two": np.array([2]),
            "repeats": np.array([1, frames, 1]),
        },
    )


class Ears(InProcessModels):
    """Answers as the backbone and the heads do: a window's probability is the size of its first sample."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.windows: list[int] = []

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, Any]:
        if model == "wakeword_head_nobody":
            raise NotReady("wakeword_head_nobody: must be loaded and ready")
        if model.startswith("wakeword_head_"):
            probability = tensors["embedding"].ravel()
            return {"probability": probability, "threshold": np.full_like(probability, 0.5)}
        assert model == "wakeword_backbone"
        self.windows.append(len(tensors["input_values"]))
        return {"embedding": tensors["input_values"][:, 0]}


EARS = Ears()


def program(folder: Path, frames: int = 128, **parameters: str) -> WakewordStream:
    values = {"max_sessions": "64", "session_idle_s": "60", "cooldown_ms": "1000", **parameters}
    values["intra_op_thread_count"] = "1"
    config = {
        "name": "wakeword_stream",
        "parameters": {name: {"string_value": value} for name, value in values.items()},
    }
    version = folder / "wakeword_stream" / "1"
    version.mkdir(parents=True)
    onnx.save(features(frames), str(version / "features.onnx"))
    return WakewordStream(Settings("wakeword_stream", version, config))


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WakewordStream]:
    made = program(tmp_path_factory.mktemp("models"))
    yield made
    made.close()


def piece(pcm: np.ndarray, key: int | str = 1, words: list[str] | None = None, **call: Any) -> Call:
    tensors: dict[str, Any] = {"pcm": pcm[None]}
    if words is not None:
        tensors["words"] = np.array([[word.encode() for word in words]], np.object_)
    for name in ("cooldown_ms", "sample_rate"):
        if name in call:
            tensors[name] = np.array([[call.pop(name)]], np.int64)
    turn = Turn(key, start=call.pop("start", False), end=call.pop("end", False))
    return Call(tensors, call.pop("models", EARS), turn=turn, **call)


def one(stream: WakewordStream, call: Call) -> Tensors:
    (tensors,) = stream.run(call)
    return tensors


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-32768, 32768, int(seconds * RATE_HZ)).astype(np.int16)


def whole(stream: WakewordStream, parts: list[np.ndarray], key: int | str = 1, **first: Any) -> Tensors:
    """Send a recording in parts; return the joined answers."""
    answers = []
    for index, pcm in enumerate(parts):
        begin = {"words": ["jarvis", "computer"], **first} if index == 0 else {}
        end = index == len(parts) - 1
        answers.append(one(stream, piece(pcm, key, start=index == 0, end=end, **begin)))
    return {
        name: np.concatenate([answer[name] for answer in answers], axis=1)
        for name in answers[0]
        if name != "word"
    }


def test_windows_of_a_second_overlap_by_half_and_end_with_their_last_sample(stream: WakewordStream) -> None:
    pcm = noise(2.6)
    got = whole(stream, [pcm])
    assert got["end_s"].tolist() == [[1.0, 1.5, 2.0, 2.5]]
    expected = np.abs(pcm[[0, 8000, 16000, 24000]]) / 32768
    np.testing.assert_allclose(got["probability"][0, :, 0], np.abs(expected), rtol=1e-6)
    parts = [pcm[:15_999], pcm[15_999:16_000], pcm[16_000:]]
    first = one(stream, piece(parts[0], words=["jarvis"], start=True))
    assert first["end_s"].shape == (1, 0)
    assert first["probability"].shape == (1, 0, 1)
    assert one(stream, piece(parts[1]))["end_s"].tolist() == [[1.0]]
    one(stream, piece(parts[2], end=True))


@given(cuts=st.lists(st.integers(0, 5 * RATE_HZ), max_size=12), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_answers_are_the_same_however_a_recording_is_cut(
    stream: WakewordStream, cuts: list[int], seed: int
) -> None:
    pcm = noise(5.3, seed)
    expected = whole(stream, [pcm], key="whole")
    got = whole(stream, np.split(pcm, sorted(cuts)), key="cut")
    assert expected["end_s"].size == 9
    for name, array in expected.items():
        assert np.array_equal(got[name], array), name


def test_event_is_not_repeated_within_its_words_cooldown(stream: WakewordStream) -> None:
    pcm = np.full(int(4.6 * RATE_HZ), 30_000, np.int16)
    got = whole(stream, [pcm])
    # Windows end at 1.0, 1.5, ..., 4.5 s and are all detected.
    assert got["event_time_s"].tolist() == [[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]]
    assert got["event_word"].tolist() == [[b"jarvis", b"computer"] * 4]
    assert got["event_probability"].min() > 0.9
    assert whole(stream, [pcm], cooldown_ms=0)["event_time_s"].size == 16
    assert whole(stream, [pcm], cooldown_ms=60_000)["event_time_s"].tolist() == [[1.0, 1.0]]


def test_windows_of_all_streams_of_a_batch_go_together(stream: WakewordStream) -> None:
    ears = Ears()
    calls = [
        piece(noise(2.0, seed), seed + 1, ["jarvis"], start=True, end=True, models=ears) for seed in range(5)
    ]
    together = stream.run_batch(calls)
    assert sorted(ears.windows) == [3, 4, 4, 4]
    for seed, answer in enumerate(together):
        alone = one(stream, piece(noise(2.0, seed), 99, ["jarvis"], start=True, end=True))
        assert not isinstance(answer, SlipwayError)
        assert np.array_equal(answer["probability"], alone["probability"])


def test_silent_window_has_no_word_whatever_the_head_says(stream: WakewordStream) -> None:
    pcm = np.zeros(RATE_HZ, np.int16)
    pcm[0] = 20_000
    got = one(stream, piece(pcm, 7, ["jarvis"], start=True, end=True))
    assert got["probability"].tolist() == [[[0.0]]]
    assert got["threshold"].tolist() == [[[0.5]]]


def test_pieces_that_want_other_words_go_together(stream: WakewordStream) -> None:
    ears = Ears()
    words = (["jarvis"], ["jarvis", "computer"])
    calls = [
        piece(noise(1.0, key), key, words[key % 2], start=True, end=True, models=ears) for key in range(1, 7)
    ]
    answers = stream.run_batch(calls)
    assert sorted(ears.windows) == [2, 4]
    for key, answer in enumerate(answers, start=1):
        assert not isinstance(answer, SlipwayError)
        assert answer["word"].tolist() == [[word.encode() for word in words[key % 2]]]
        assert answer["probability"].shape == (1, 1, 1 + key % 2)


def test_stream_is_refused_when_the_backbone_sees_less_than_a_window(tmp_path: Path) -> None:
    short = program(tmp_path, frames=64)
    with pytest.raises(
        InvalidRequest, match=r"the backbone must take windows of 1 s, got one that takes at most 0\.66 s"
    ):
        one(short, piece(noise(0.1), 1, ["jarvis"], start=True))
    short.close()


def test_two_pieces_of_one_stream_in_a_batch_are_taken_in_order(stream: WakewordStream) -> None:
    pcm = noise(2.0)
    expected = whole(stream, [pcm], key="whole")
    first, second = stream.run_batch(
        [piece(pcm[:20_000], 5, ["jarvis", "computer"], start=True), piece(pcm[20_000:], 5, end=True)]
    )
    assert not isinstance(first, SlipwayError)
    assert not isinstance(second, SlipwayError)
    joined = np.concatenate([first["probability"], second["probability"]], axis=1)
    assert np.array_equal(joined, expected["probability"])


def test_failing_word_ends_its_stream_and_no_other(stream: WakewordStream) -> None:
    good, bad = stream.run_batch(
        [piece(noise(1.0), 1, ["jarvis"], start=True), piece(noise(1.0), 2, ["nobody"], start=True)]
    )
    assert not isinstance(good, SlipwayError)
    assert isinstance(bad, InvalidRequest)
    assert "got 'nobody'" in str(bad)
    with pytest.raises(InvalidRequest, match="session 2 is not open"):
        one(stream, piece(noise(1.0), 2))
    one(stream, piece(noise(1.0), 1, end=True))


def test_stream_without_words_has_those_whose_heads_are_loaded(tmp_path: Path) -> None:
    for word in ("jarvis", "nobody", "computer"):
        (tmp_path / f"wakeword_head_{word}").mkdir()
    with contextlib.closing(program(tmp_path)) as stream:
        answer = one(stream, piece(noise(2.0), 1, start=True))
        assert answer["word"].tolist() == [[b"computer", b"jarvis"]]
        assert answer["probability"].shape == (1, 3, 2)


def test_stream_without_words_ends_when_no_head_is_loaded(tmp_path: Path) -> None:
    with contextlib.closing(program(tmp_path)) as stream:
        for folder in (None, tmp_path / "wakeword_head_nobody"):
            if folder is not None:
                folder.mkdir()
            one(stream, piece(noise(0.5), 1, start=True))
            with pytest.raises(NotReady, match="no wake word is loaded; try `slipway export wakeword_head`"):
                one(stream, piece(noise(0.5), 1))
            with pytest.raises(InvalidRequest, match="session 1 is not open"):
                one(stream, piece(noise(0.5), 1))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (piece(noise(0.1), 0, start=True), "session id must be given"),
        (piece(noise(0.1), 7), "session 7 is not open"),
        (
            piece(noise(61.0), 7, start=True),
            r"pcm must have 0 to 960000 samples, got shape \[1, 976000\]; try pieces of at most 60 s",
        ),
        (piece(noise(0.1), 7, start=True, sample_rate=44_100), "sample_rate must be 16000 Hz .* got 44100"),
        (piece(noise(0.1), 7, start=True, cooldown_ms=-1), "cooldown_ms must be 0 to 60000, got -1"),
        (piece(noise(0.1), 7, start=True, cooldown_ms=60_001), "cooldown_ms must be 0 to 60000, got 60001"),
        (piece(noise(0.1), 7, ["../x"], start=True), "words must be 1 to 64"),
        (
            piece(noise(0.1), 7, ["jarvis"], cooldown_ms=5),
            "words, cooldown_ms must be given in the first turn of a session",
        ),
        (
            Call({"pcm": np.zeros((2, 9), np.int16)}, EARS, turn=Turn(7, start=True)),
            r"pcm must have a batch of 1, got shape \[2, 9\]",
        ),
    ],
)
def test_piece_is_refused_when_it_breaks_a_rule(stream: WakewordStream, call: Call, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        one(stream, call)


def test_piece_after_the_end_is_refused(stream: WakewordStream) -> None:
    whole(stream, [noise(1.0), noise(1.0)], key=8)
    with pytest.raises(InvalidRequest, match="session 8 is not open"):
        one(stream, piece(noise(1.0), 8))


def test_stream_ends_without_samples_and_begins_anew_when_it_is_started_twice(stream: WakewordStream) -> None:
    one(stream, piece(noise(0.9), 9, ["jarvis"], start=True))
    again = one(stream, piece(noise(0.9), 9, ["jarvis"], start=True))
    assert again["end_s"].size == 0
    assert one(stream, piece(noise(0.0), 9, end=True))["end_s"].size == 0
    with pytest.raises(InvalidRequest, match="is not open"):
        one(stream, piece(noise(0.1), 9))


def test_abandoned_streams_are_bounded_and_make_room_when_idle(tmp_path: Path) -> None:
    stream = program(tmp_path, max_sessions="100", session_idle_s="1")
    try:
        refused = 0
        for key in range(1, 10_001):
            (answer,) = stream.run_batch([piece(noise(0.01), key, ["jarvis"], start=True)])
            refused += isinstance(answer, Overloaded)
        held = stream._sessions
        assert len(held) <= 100
        assert refused >= 10_000 - 100 * 60
        deadline = time.monotonic() + 20
        while len(held):
            assert time.monotonic() < deadline, f"{len(held)} streams are still held"
            time.sleep(0.05)
        assert one(stream, piece(noise(1.0), 1, ["jarvis"], start=True))["end_s"].size == 1
    finally:
        stream.close()


def test_tail_of_a_stream_holds_no_more_than_a_window(stream: WakewordStream) -> None:
    one(stream, piece(noise(59.99), 11, ["jarvis"], start=True))
    listening = stream._sessions.acquire(Turn(11), lambda: pytest.fail("the stream is gone"))
    base = listening.tail.base
    assert listening.tail.size < RATE_HZ
    assert base is None or base.size < RATE_HZ
