"""`slipway listen`: what it says of a recording before a server is asked, and of the windows of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from matplotlib.figure import Figure

from slipway_cli import root
from slipway_cli.listen.plot import draw
from slipway_client.listening import StreamDetector, WindowResult, detect_in_clips
from slipway_client.sound import Recording
from slipway_serving.families.wakeword.request import ClipDecisions, ClipsRequest, ListenTurn, StreamDecisions
from slipway_serving.protocol.events import Event

NOBODY = "127.0.0.1:1"


def names(*texts: str) -> np.ndarray:
    return np.array([texts], np.object_)


class Session:
    """A session that answers its turns with the events of a test."""

    def __init__(self, events: list[StreamDecisions]) -> None:
        self.events, self.turns = events, list[tuple[int, bool]]()

    def step(self, turn: ListenTurn, last: bool = False) -> Iterator[Event]:
        self.turns.append((turn.pcm.size, last))
        yield from self.events if last else []

    @contextmanager
    def session(self, _: Any) -> Iterator[Session]:
        yield self


@pytest.mark.parametrize(("peak", "said"), [(1.0, False), (1.25, True), (3.5, True)])
def test_listen_says_by_what_a_recording_was_divided(
    peak: float, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loud.wav"
    soundfile.write(path, np.array([0.0, peak, -0.5] * 8_000, np.float32), 16_000, subtype="FLOAT")
    assert root.run(["listen", str(path), "--url", NOBODY]) == 1
    err = capsys.readouterr().err
    assert (f"{path}: divided by its peak, {peak:.3f}, to be within full scale" in err) == said
    assert NOBODY in err


def test_window_of_a_stream_is_an_event_when_the_server_says_so() -> None:
    windows = StreamDecisions(
        word=names("hi", "bye"),
        end_s=np.array([[1.0, 1.5]]),
        probability=np.array([[[0.9, 0.1], [0.8, 0.7]]], np.float32),
        threshold=np.array([[[0.5, 0.6], [0.5, 0.6]]], np.float32),
        event_word=names("hi", "bye"),
        event_time_s=np.array([[1.0, 1.5]]),
        event_probability=np.array([[0.9, 0.7]], np.float32),
    )
    session = Session([windows])
    heard = list(StreamDetector(session, (), 1000).detect([np.zeros(8_000, np.int16)] * 2))  # type: ignore[arg-type]
    assert [(each.word, each.time_s, each.event) for each in heard] == [
        ("hi", 1.0, True),
        ("bye", 1.0, False),
        ("hi", 1.5, False),
        ("bye", 1.5, True),
    ]
    assert heard[0] == WindowResult("hi", 1.0, pytest.approx(0.9), 0.5, True)
    assert [each.threshold for each in heard] == pytest.approx([0.5, 0.6, 0.5, 0.6])
    # The last turn fills up the last window: here the two pieces are one window already.
    assert session.turns == [(8_000, False), (8_000, False), (0, True)]


class Judge:
    """A client whose server detects every word in every clip but the first word in the third."""

    def __init__(self) -> None:
        self.clips: list[np.ndarray] = []

    def generate(self, request: ClipsRequest) -> Iterator[ClipDecisions]:
        first, rows = len(self.clips), len(request.audio)
        self.clips += list(request.audio)
        detected = np.array([[first + row != 2, True] for row in range(rows)])
        yield ClipDecisions(
            word=np.array([["hi", "bye"]] * rows, np.object_),
            probability=np.where(detected, 0.9, 0.1).astype(np.float32),
            threshold=np.full((rows, 2), 0.5, np.float32),
            detected=detected,
            rms=np.ones((rows, 1), np.float32),
        )


def test_clips_overlap_by_half_and_events_keep_their_distance() -> None:
    rate_hz = 8_000
    samples = np.arange(1, 17_601, dtype=np.float32) / 20_000
    judge = Judge()
    heard = list(detect_in_clips(judge, Recording(samples, rate_hz), (), 1.0))  # type: ignore[arg-type]
    padded = np.pad(samples, (0, 2_400))
    assert [clip.tolist() for clip in judge.clips] == [
        padded[at : at + rate_hz].tolist() for at in (0, 4_000, 8_000, 12_000)
    ]
    assert [(each.time_s, each.event) for each in heard if each.word == "hi"] == [
        (1.0, True), (1.5, False), (2.0, False), (2.5, True)
    ]  # fmt: skip
    assert [(each.time_s, each.event) for each in heard if each.word == "bye"] == [
        (1.0, True), (1.5, False), (2.0, True), (2.5, False)
    ]  # fmt: skip


def test_plot_has_a_line_and_a_threshold_for_each_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    heard = [WindowResult("hi", 1.0, 0.9, 0.5, True), WindowResult("bye", 1.0, 0.2, 0.6, False)]
    draw([*heard, WindowResult("hi", 1.5, 0.1, 0.5, False)], tmp_path / "heard.png")
    assert (tmp_path / "heard.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    assert axes.get_title() == "Wake words; dashed: threshold, large dots: detections"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("end of the window (s)", "probability")
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.9, 0.1], [0.5, 0.5], [0.2], [0.6]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["hi", "bye"]
    assert [dots.get_offsets().tolist() for dots in axes.collections] == [[[1.0, 0.9]], []]
    draw([], tmp_path / "nothing.png")
    assert figures[1].axes[0].get_legend() is None
