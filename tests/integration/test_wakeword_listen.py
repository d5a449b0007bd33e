"""`slipway listen` on a real Triton, recordings heard as clips and as streams, and what Locust sends."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from load_environment import assert_all_answered, load_environment
from wakeword_fixtures import CLOSE, RATE_HZ, Exported, export_all, pcm_of, sounds

from slipway_cli.listen.commands import listen
from slipway_client import Client, InvalidRequest
from slipway_client.listening import StreamDetector, WindowResult, detect_in_clips, split_recording
from slipway_client.sound import Recording, read_recording
from slipway_serving.triton.server import Server, ServerConfig


@pytest.fixture(scope="module")
def exported(shared: Path) -> Exported:
    return export_all(shared)


@pytest.fixture(scope="module")
def fresh(exported: Exported) -> Iterator[Server]:
    """A server whose streams nobody abandoned."""
    with Server(ServerConfig(exported.repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "sounds.wav"
    soundfile.write(path, pcm_of(4.7, 11), RATE_HZ)
    return path


def heard_in(server: Server, recording: Recording) -> tuple[list[WindowResult], list[WindowResult]]:
    with Client(server.grpc_url) as client:
        words = ["jarvis", "computer"]
        streamed = list(StreamDetector(client, words, 1000).detect(split_recording(recording)))
        return list(detect_in_clips(client, recording, words, 1.0)), streamed


def test_recording_as_clips_and_as_stream_says_the_same(fresh: Server) -> None:
    samples = pcm_of(4.7, 11).astype(np.float32) / 32768
    in_parts, streamed = heard_in(fresh, Recording(samples, RATE_HZ))
    # 4.7 s are filled up to 5.0 s, so that the last window holds the end.
    assert [one.time_s for one in streamed[::2]] == [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
    assert len(in_parts) == len(streamed)
    for one, other in zip(in_parts, streamed, strict=True):
        assert (one.word, one.time_s, one.event) == (other.word, other.time_s, other.event)
        assert one.probability == pytest.approx(other.probability, abs=CLOSE)
    assert any(one.event for one in streamed)
    assert any(one.probability >= one.threshold and not one.event for one in streamed)


@pytest.mark.parametrize("stream", [False, True])
def test_listen_prints_detections_and_draws_them(
    fresh: Server, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stream: bool
) -> None:
    plot = tmp_path / "heard.png"
    listen(str(recording), word=["computer"], stream=stream, plot=plot, url=fresh.grpc_url)
    out = capsys.readouterr().out
    detections = re.findall(r"^ +(\d\.\d\d) s  computer  (0\.\d{3}) \(threshold 0\.500\)$", out, re.MULTILINE)
    assert len(detections) >= 2
    assert f"sounds.wav (4.7 s): 9 windows, {len(detections)} detections" in out
    assert re.search(r"^  computer: highest probability 0\.\d{3} at \d\.\d\d s$", out, re.MULTILINE)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_listen_prints_one_document_when_json_is_asked(
    fresh: Server, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "heard.png"
    listen(str(recording), word=["computer"], plot=plot, url=fresh.grpc_url, json=True)
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["source"], document["windows"], document["plot"]) == (str(recording), 9, str(plot))
    assert len(document["detections"]) >= 2
    for one in (*document["detections"], *document["highest"]):
        assert one["word"] == "computer" and one["threshold"] == 0.5
        assert one["probability"] >= 0.5 and 1.0 <= one["time_s"] <= 5.0
    (best,) = document["highest"]
    assert best["probability"] == max(one["probability"] for one in document["detections"])
    assert f"9 windows, {len(document['detections'])} detections" in err
    with pytest.raises(InvalidRequest, match="--plot must be a file that does not exist yet, got"):
        listen(str(recording), word=["computer"], plot=plot, url=fresh.grpc_url)
    listen(str(recording), word=["computer"], plot=plot, url=fresh.grpc_url, overwrite=True, quiet=True)


def test_listen_takes_raw_samples_from_stdin(
    fresh: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = io.BytesIO(pcm_of(4.7, 11).tobytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
    listen("-", word=["computer"], url=fresh.grpc_url)
    assert "stdin: 9 windows" in capsys.readouterr().out


def test_listen_refuses_stereo_unless_its_mean_is_asked_for(
    fresh: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([pcm_of(1.0, 0)] * 2, axis=1), RATE_HZ)
    with pytest.raises(InvalidRequest, match="stereo.wav must be mono, got 2 channels; try --mono"):
        listen(str(path), url=fresh.grpc_url)
    listen(str(path), mono=True, url=fresh.grpc_url)
    assert "stereo.wav (1.0 s): 1 windows" in capsys.readouterr().out


def test_loud_mp3_of_another_rate_says_the_same_as_clips_and_as_stream(
    fresh: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loud.mp3"
    soundfile.write(path, np.clip(20 * sounds(2.2, 0, 44_100), -1, 1), 44_100)
    recording = read_recording(path)
    assert recording.peak > 1.01
    in_parts, streamed = heard_in(fresh, recording)
    assert [one.time_s for one in streamed[::2]] == [1.0, 1.5, 2.0, 2.5]
    for one, other in zip(in_parts, streamed, strict=True):
        assert (one.word, one.time_s, one.event) == (other.word, other.time_s, other.event)
        assert one.probability == pytest.approx(other.probability, abs=1e-3)
    for stream in (False, True):
        listen(str(path), stream=stream, url=fresh.grpc_url)
        said = capsys.readouterr()
        assert "loud.mp3 (2.2 s): 4 windows" in said.out
        assert said.err == f"{path}: divided by its peak, {recording.peak:.3f}, to be within full scale\n"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("none.wav", None, "must be an audio file that can be read, got No such file"),
        ("bad.wav", b"RIFF", "must be an audio file, got"),
    ],
)
def test_listen_refuses_what_is_no_audio(
    fresh: Server, tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=text):
        listen(str(tmp_path / name), url=fresh.grpc_url)


def test_listen_refuses_a_plot_that_cannot_be_written(recording: Path, tmp_path: Path) -> None:
    for plot in (tmp_path / "heard.txt", tmp_path / "nowhere" / "heard.png"):
        with pytest.raises(InvalidRequest, match="--plot must end in .png"):
            listen(str(recording), plot=plot)


def test_clips_and_streams_are_answered_when_locust_sends_them(
    fresh: Server, shared: Path, tmp_path: Path
) -> None:
    line = "--family wakeword --users 2 --seconds 3 --session-s 1"
    done = load_environment(shared).load(tmp_path, fresh.grpc_url, line)
    for model in ("wakeword", "wakeword_stream"):
        assert_all_answered(done, model)
