"""The served wake words against transformers' networks, in clips and in streams, and what they refuse."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from observability_fixtures import value
from server_fixtures import wait_until
from wakeword_fixtures import (
    CLOSE,
    RATE_HZ,
    THRESHOLD,
    Exported,
    Reference,
    clips,
    export_all,
    pcm_of,
    sounds,
)

from slipway_client import AsyncClient, Client, InvalidRequest, SlipwayError, Turn
from slipway_client.listening import StreamDetector, split_recording
from slipway_client.sound import Recording
from slipway_serving.families.wakeword.request import (
    ClipDecisions,
    ClipsRequest,
    ListenRequest,
    ListenTurn,
    StreamDecisions,
)
from slipway_serving.protocol.turns import NO_SESSION, Turns
from slipway_serving.triton.server import Server, ServerConfig

# Of a probability of an int8 head.
INT8_CLOSE = 0.05


@pytest.fixture(scope="module")
def exported(shared: Path) -> Exported:
    return export_all(shared)


@pytest.fixture(scope="module")
def server(exported: Exported) -> Iterator[Server]:
    with Server(ServerConfig(exported.repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def reference(exported: Exported) -> Reference:
    return Reference(exported)


def count(server: Server, model: str, metric: str = "nv_inference_count") -> int:
    """Read a model's counter when it stands still: Triton counts a request after it has answered it."""
    reads = [-1.0, counter(server, model, metric)]

    def still() -> bool:
        reads.append(counter(server, model, metric))
        return len(reads) > 5 and len(set(reads[-5:])) == 1

    wait_until(still, f"{metric} of {model} stands still")
    return int(reads[-1])


def counter(server: Server, model: str, metric: str = "nv_inference_count") -> float:
    """Read a counter of Triton's; the parser gives it the ending that OpenMetrics asks for."""
    return value(server, f"{metric}_total", model=model, version="1")


# Clips.


@pytest.mark.parametrize(
    ("seconds", "rate_hz"),
    [(1.0, RATE_HZ), (0.1, RATE_HZ), (1.3, RATE_HZ), (0.7, 8_000), (1.0, 44_100), (1.2, 48_000)],
)
def test_served_probability_equals_transformers(
    client: Client, reference: Reference, seconds: float, rate_hz: int
) -> None:
    for seed in range(3):
        audio = sounds(seconds, seed, rate_hz)
        got = client.infer("wakeword", clips(audio, rate_hz=rate_hz, words=("jarvis", "computer", "alexa")))
        expected = [reference.probability(word, audio, rate_hz) for word in ("jarvis", "computer", "alexa")]
        np.testing.assert_allclose(got["probability"][0, :2], expected[:2], atol=CLOSE)
        np.testing.assert_allclose(got["probability"][0, 2], expected[2], atol=INT8_CLOSE)
        assert got["threshold"][0].tolist() == [THRESHOLD] * 3
        assert np.array_equal(got["detected"], got["probability"] >= THRESHOLD)


def test_comparison_with_transformers_can_fail(client: Client, reference: Reference) -> None:
    """Another clip, rate or word would be off by far more than the bound."""
    audio = sounds(1.0, 0)
    expected = reference.probability("jarvis", audio)
    wrong = [
        client.infer("wakeword", clips(sounds(1.0, 2), words=("jarvis",))),
        client.infer("wakeword", clips(audio, rate_hz=13_000, words=("jarvis",))),
        client.infer("wakeword", clips(audio, words=("computer",))),
    ]
    assert all(abs(answer["probability"][0, 0] - expected) > 50 * CLOSE for answer in wrong)


def test_every_loaded_word_is_judged_when_none_is_named_in_one_backbone_pass(
    server: Server, client: Client
) -> None:
    before = count(server, "wakeword_backbone")
    got = client.infer("wakeword", clips(sounds(1.0, 1)))
    assert got["word"].tolist() == [[b"alexa", b"computer", b"jarvis"]]
    assert got["probability"].shape == got["threshold"].shape == got["detected"].shape == (1, 3)
    wait_until(lambda: counter(server, "wakeword_backbone") > before, "the pass is counted")
    assert count(server, "wakeword_backbone") - before == 1


def test_fused_graph_equals_backbone_and_head(client: Client, reference: Reference) -> None:
    audio = sounds(1.0, 4)
    features = client.infer("wakeword_features", {"audio": audio[None]})
    fused = client.infer("wakeword_head_jarvis_fused", {"input_values": features["input_values"]})
    embedding = client.infer("wakeword_backbone", {"input_values": features["input_values"]})["embedding"]
    head = client.infer("wakeword_head_jarvis", {"embedding": embedding})
    np.testing.assert_allclose(fused["logits"], head["logits"], atol=1e-5)
    np.testing.assert_allclose(fused["probability"], reference.probability("jarvis", audio), atol=CLOSE)
    assert fused["logits"].shape == (1, 2)


@pytest.mark.parametrize("level", [0.0, 0.004])
def test_silence_has_probability_zero(client: Client, level: float) -> None:
    quiet = np.full(RATE_HZ, level, np.float32)
    got = client.infer("wakeword", clips(quiet, sounds(1.0, 1), words=("jarvis",)))
    assert got["probability"][0, 0] == 0.0
    assert got["probability"][1, 0] > 0.0
    assert got["rms"][0, 0] == pytest.approx(level)
    assert got["detected"].tolist()[0] == [False]


def test_concurrent_clips_are_merged_and_keep_their_own_answers(server: Server, client: Client) -> None:
    audio = [sounds(0.3 + 0.01 * seed, seed) for seed in range(64)]
    alone = [client.infer("wakeword", clips(one, words=("jarvis",)))["probability"][0, 0] for one in audio]

    def ask(one: np.ndarray) -> float:
        answer = client.infer("wakeword", clips(one, words=("jarvis",)))
        return float(answer["probability"][0, 0])

    def merged() -> bool:
        models = ("wakeword_backbone", "wakeword_head_jarvis")
        before = [count(server, model, "nv_inference_exec_count") for model in models]
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(ask, audio))
        np.testing.assert_allclose(together, alone, atol=CLOSE)
        after = [count(server, model, "nv_inference_exec_count") for model in models]
        return all(0 < now - then < 48 for now, then in zip(after, before, strict=True))

    # Threads that hardly get to run do not meet: then they ask again.
    wait_until(merged, "64 requests at once run as fewer than 48")


BAD_CLIPS: list[tuple[dict[str, Any], str]] = [
    (clips(np.zeros(0, np.float32)), "audio must have 1 "),  # by the graph or by the model after it
    (clips(sounds(2.0, 0)), "audio must be at most 1.30 s long, got 2.00 s; try wakeword_stream"),
    (clips(np.full(RATE_HZ, np.nan, np.float32)), "audio must be finite, got nan at sample 0"),
    (clips(sounds(1.0, 0) * 32768), "audio must be within -1 to 1"),
    (clips(sounds(1.0, 0), rate_hz=4_000), "sample_rate must be 8000 to 192000 Hz, got 4000"),
    (clips(sounds(1.0, 0), rate_hz=-1), "sample_rate must be 8000 to 192000 Hz, got -1"),
    (clips(sounds(1.0, 0), words=("nobody",)), "word must be a served word, got 'nobody'; try one of: alexa"),
    (clips(sounds(1.0, 0), words=("../jarvis",)), "words must be 1 to 64 characters a-z"),
    (clips(sounds(1.0, 0), words=("jarvis_fused",)), "not ending in _fused"),
    (clips((sounds(1.0, 0) * 32767).astype(np.int16)), "audio must be FP32"),
    (clips(np.stack([sounds(1.0, 0)] * 2, axis=1)), "audio must be FP32"),
    ({"audio": sounds(1.0, 0)[None]}, "sample_rate"),
]


@pytest.mark.parametrize(("tensors", "text"), BAD_CLIPS)
def test_clip_is_refused_when_it_breaks_a_rule(client: Client, tensors: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        client.infer("wakeword", tensors)
    assert client.infer("wakeword", clips(sounds(1.0, 0)))["probability"].shape == (1, 3)


def test_wrong_clips_fail_alone_among_good_ones(client: Client) -> None:
    good = clips(sounds(1.0, 5), words=("jarvis",))
    alone = client.infer("wakeword", good)["probability"][0, 0]

    def ask(tensors: dict[str, Any]) -> Any:
        try:
            return client.infer("wakeword", tensors)["probability"][0, 0]
        except SlipwayError as error:
            return error

    mixed = [tensors for bad, _ in BAD_CLIPS for tensors in (good, bad)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, mixed))
    np.testing.assert_allclose(answers[::2], alone, atol=CLOSE)
    assert all(isinstance(answer, InvalidRequest) for answer in answers[1::2])


def test_hour_of_audio_is_refused(server: Server, client: Client) -> None:
    with pytest.raises(
        # By the graph, or with a C++ backend by the model after it.
        InvalidRequest,
        match="audio must (have 1 to 250548 for samples, .* got 28800000|be at most 10.00 s long, got 3600)",
    ):
        client.infer("wakeword", clips(np.zeros(3600 * 8_000, np.float32), rate_hz=8_000))
    with pytest.raises(InvalidRequest, match=r"pcm must have 0 to 960000 samples, got shape \[1, 57600000\]"):
        client.infer(
            "wakeword_stream", {"pcm": np.zeros((1, 3600 * RATE_HZ), np.int16)}, turn=Turn(1, start=True)
        )
    assert client.infer("wakeword", clips(sounds(1.0, 0)))["probability"].shape == (1, 3)


def test_company_in_a_batch_moves_an_int8_probability_by_no_more_than_its_rounding(client: Client) -> None:
    """Activations are quantized by the largest of the whole batch; a float head knows no company."""
    audio = [sounds(1.0, seed) for seed in range(8)]
    words = ("alexa", "jarvis")
    alone = [client.infer("wakeword", clips(one, words=words))["probability"][0] for one in audio]
    together = client.infer("wakeword", clips(*audio, words=words))["probability"]
    moved = np.abs(together - np.array(alone)).max(axis=0)
    print(f"moved: int8 {moved[0]:.1e}, float {moved[1]:.1e}")
    assert moved[0] < INT8_CLOSE
    assert moved[1] < 1e-5


# Streams.


def listened(client: Client, parts: list[np.ndarray], words: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Stream a recording in parts; return the joined answers."""
    turns = Turns(f"test-{np.random.default_rng().integers(2**62)}")
    options = {"words": np.array([[word.encode() for word in words]], np.object_)} if words else {}
    answers = []
    for index, part in enumerate(parts):
        turn = turns.next(last=index == len(parts) - 1)
        tensors = {"pcm": part[None], **(options if index == 0 else {})}
        answers.append(client.infer("wakeword_stream", tensors, turn=turn))
    joined = ("end_s", "probability", "threshold", "event_word", "event_time_s", "event_probability")
    kept = [answer for answer in answers if answer["end_s"].size]
    return {name: np.concatenate([answer[name] for answer in kept], axis=1) for name in joined}


def test_stream_says_of_each_window_what_the_whole_networks_say(client: Client, reference: Reference) -> None:
    pcm = pcm_of(4.2, 3)
    got = listened(client, [pcm], ("jarvis", "computer"))
    assert got["end_s"].tolist() == [[1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]]
    for row, end_s in enumerate(got["end_s"][0]):
        window = pcm[int((end_s - 1) * RATE_HZ) : int(end_s * RATE_HZ)].astype(np.float32) / 32768
        for column, word in enumerate(("jarvis", "computer")):
            expected = reference.probability(word, window)
            assert got["probability"][0, row, column] == pytest.approx(expected, abs=CLOSE)


@given(cuts=st.lists(st.integers(0, 3 * RATE_HZ), max_size=8), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_stream_equals_the_whole_recording_however_it_is_cut(
    client: Client, cuts: list[int], seed: int
) -> None:
    pcm = pcm_of(3.2, seed)
    # Of int8 heads, the rows of a batch share one scale: see the test below.
    words = ("jarvis", "computer")
    whole = listened(client, [pcm], words)
    got = listened(client, np.split(pcm, sorted(cuts)), words)
    assert whole["end_s"].size == 5
    for name in ("end_s", "event_word", "event_time_s", "threshold"):
        assert np.array_equal(got[name], whole[name]), name
    for name in ("probability", "event_probability"):
        # Batches of other sizes are rounded differently.
        np.testing.assert_allclose(got[name], whole[name], atol=1e-5)


def test_streams_side_by_side_are_merged_and_keep_their_own_answers(server: Server, client: Client) -> None:
    recordings = [pcm_of(4.0, seed) for seed in range(8)]
    alone = [listened(client, [pcm], ("jarvis",)) for pcm in recordings]
    before = count(server, "wakeword_stream"), count(server, "wakeword_stream", "nv_inference_exec_count")

    def run(pcm: np.ndarray) -> dict[str, np.ndarray]:
        return listened(client, np.split(pcm, range(4_000, pcm.size, 4_000)), ("jarvis",))

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, recordings))
    for got, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(got["probability"], expected["probability"], atol=1e-5)
        assert np.array_equal(got["event_time_s"], expected["event_time_s"])
    pieces = count(server, "wakeword_stream") - before[0]
    runs = count(server, "wakeword_stream", "nv_inference_exec_count") - before[1]
    assert pieces == 8 * 16
    assert runs < pieces


@pytest.mark.parametrize(
    ("tensors", "turn", "text"),
    [
        ({}, NO_SESSION, "session id must be given"),
        ({}, Turn("nobody"), "session 'nobody' is not open"),
        ({"sample_rate": np.array([[44_100]])}, Turn(5, start=True), "sample_rate must be 16000 Hz"),
        ({"words": np.array([[b"a/b"]], np.object_)}, Turn(5, start=True), "words must be 1 to 64"),
        ({"pcm": np.zeros((1, 9), np.float32)}, Turn(5, start=True), "pcm must be INT16"),
        ({"pcm": np.zeros((2, 9), np.int16)}, Turn(5, start=True), "pcm must have a batch of 1"),
    ],
)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_piece_is_refused_when_it_breaks_a_rule(
    server: Server, protocol: Any, tensors: dict[str, Any], turn: Turn, text: str
) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Client(url, protocol) as client, pytest.raises(InvalidRequest, match=text):
        client.infer("wakeword_stream", {"pcm": pcm_of(1.0, 0)[None], **tensors}, turn=turn)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_async_client_streams_too(server: Server, protocol: Any) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    key = f"async over {protocol}"
    async with AsyncClient(url, protocol) as client:
        pcm = pcm_of(1.0, 0)[None]
        first = await client.infer("wakeword_stream", {"pcm": pcm}, turn=Turn(key, start=True))
        second = await client.infer("wakeword_stream", {"pcm": pcm}, turn=Turn(key, end=True))
        assert first["end_s"].tolist() == [[1.0]]
        assert second["end_s"].tolist() == [[1.5, 2.0]]
        with pytest.raises(InvalidRequest, match="is not open"):
            await client.infer("wakeword_stream", {"pcm": pcm}, turn=Turn(key))


def named(*words: str) -> Any:
    return np.array([words], np.object_)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_session_says_what_the_request_of_a_clip_says(server: Server, protocol: Any) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    pcm = pcm_of(1.5, 3)
    audio = pcm[None, :RATE_HZ].astype(np.float32) / 32768
    with Client(url, protocol) as client:
        rate = np.array([[RATE_HZ]], np.int64)
        (clip,) = client.generate(ClipsRequest(audio, rate, named("jarvis", "computer")))
        with client.session(ListenRequest(named("jarvis", "computer"), cooldown_ms=0)) as session:
            (first,) = session.step(ListenTurn(pcm[None, :9_000]))
            (second,) = session.step(ListenTurn(pcm[None, 9_000:]), last=True)
        assert isinstance(clip, ClipDecisions)
        assert isinstance(first, StreamDecisions)
        assert isinstance(second, StreamDecisions)
        assert first.end_s.shape == (1, 0)
        assert second.end_s.tolist() == [[1.0, 1.5]]
        assert clip.word.tolist() == second.word.tolist() == [["jarvis", "computer"]]
        np.testing.assert_allclose(second.probability[0, 0], clip.probability[0], atol=CLOSE)
        with pytest.raises(InvalidRequest, match="is not open"):
            client.infer("wakeword_stream", {"pcm": pcm[None]}, turn=Turn(session.id))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_session_ends_on_the_server_when_its_async_body_is_left(server: Server, protocol: Any) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    pcm = pcm_of(1.0, 0)[None]
    async with AsyncClient(url, protocol) as client:
        async with client.session(ListenRequest(named("jarvis"))) as session:
            (said,) = [event async for event in session.step(ListenTurn(pcm))]
        assert isinstance(said, StreamDecisions)
        assert said.end_s.tolist() == [[1.0]]
        with pytest.raises(InvalidRequest, match="is not open"):
            await client.infer("wakeword_stream", {"pcm": pcm}, turn=Turn(session.id))


class Remembering(Client):
    """Keeps the ids of the sessions that were opened."""

    def session(self, *arguments: Any, **options: Any) -> Any:
        opened = super().session(*arguments, **options)
        self.last = opened.id
        return opened


def test_listening_ends_its_session_when_the_loop_is_left(server: Server) -> None:
    recording = Recording(pcm_of(4.0, 3).astype(np.float32) / 32768, RATE_HZ)
    with Remembering(server.grpc_url) as client:
        heard = StreamDetector(client, ["jarvis"], 1000).detect(split_recording(recording))
        assert next(heard).time_s == 1.0
        heard.close()  # type: ignore[attr-defined]
        with pytest.raises(InvalidRequest, match="is not open"):
            client.infer("wakeword_stream", {"pcm": pcm_of(1.0, 0)[None]}, turn=Turn(client.last))


def test_piece_after_the_end_is_refused(client: Client) -> None:
    client.infer("wakeword_stream", {"pcm": pcm_of(1.0, 0)[None]}, turn=Turn(6, start=True, end=True))
    with pytest.raises(InvalidRequest, match="session 6 is not open"):
        client.infer("wakeword_stream", {"pcm": pcm_of(1.0, 0)[None]}, turn=Turn(6))


def test_unknown_word_ends_its_stream_and_no_other(client: Client) -> None:
    pcm = pcm_of(1.0, 0)[None]
    client.infer("wakeword_stream", {"pcm": pcm}, turn=Turn(7, start=True))
    with pytest.raises(InvalidRequest, match="word must be a served word, got 'nobody'"):
        words = np.array([[b"nobody"]], np.object_)
        client.infer("wakeword_stream", {"pcm": pcm, "words": words}, turn=Turn(8, start=True))
    assert client.infer("wakeword_stream", {"pcm": pcm}, turn=Turn(7, end=True))["end_s"].tolist() == [
        [1.5, 2.0]
    ]


def test_ten_thousand_abandoned_streams_hold_bounded_memory(exported: Exported, server: Server) -> None:
    stub = next(
        process
        for process in psutil.Process(server.pid).children(recursive=True)
        if any("wakeword_stream" in argument for argument in process.cmdline())
    )
    before = stub.memory_info().rss
    answers: queue.Queue[Any] = queue.Queue()
    pcm = triton.InferInput("pcm", [1, 1_600], "INT16")
    pcm.set_data_from_numpy(np.zeros((1, 1_600), np.int16))
    refused, started_s = 0, time.monotonic()
    with triton.InferenceServerClient(server.grpc_url) as raw:
        for first in range(0, 10_000, 500):
            for key in range(first, first + 500):
                raw.async_infer(
                    "wakeword_stream",
                    [pcm],
                    callback=lambda result, error: answers.put(error),
                    sequence_id=1_000_000 + key,
                    sequence_start=True,
                )
            refused += sum(answers.get(timeout=300) is not None for _ in range(500))
    # 1024 wait until they fall idle, each for 60 s; the others are told so.
    rounds = 1 + int((time.monotonic() - started_s) / 60)
    assert refused >= 10_000 - 1_024 * rounds
    assert stub.memory_info().rss - before < 64 * 2**20
    with Client(server.grpc_url) as client:
        assert client.infer("wakeword", clips(sounds(1.0, 0)))["probability"].shape == (1, 3)
