"""`slipway listen`: what it says of a recording before a server is asked, and of the windows of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from slipway_cli import root
from slipway_client.listening import Heard, Stream
from slipway_serving.events import Event
from slipway_serving.wakeword.request import ListenTurn, Windows

NOBODY = "127.0.0.1:1"


def names(*texts: str) -> np.ndarray:
    return np.array([texts], np.object_)


class Session:
    """A session that answers its turns with the events of a test."""

    def __init__(self, events: list[Windows]) -> None:
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
    windows = Windows(
        word=names("hi", "bye"),
        end_s=np.array([[1.0, 1.5]]),
        probability=np.array([[[0.9, 0.1], [0.8, 0.7]]], np.float32),
        threshold=np.array([[[0.5, 0.6], [0.5, 0.6]]], np.float32),
        event_word=names("hi", "bye"),
        event_time_s=np.array([[1.0, 1.5]]),
        event_probability=np.array([[0.9, 0.7]], np.float32),
    )
    session = Session([windows])
    heard = list(Stream(session, (), 1000).listen([np.zeros(8_000, np.int16)] * 2))  # type: ignore[arg-type]
    assert [(each.word, each.time_s, each.event) for each in heard] == [
        ("hi", 1.0, True),
        ("bye", 1.0, False),
        ("hi", 1.5, False),
        ("bye", 1.5, True),
    ]
    assert heard[0] == Heard("hi", 1.0, pytest.approx(0.9), 0.5, True)
    assert [each.threshold for each in heard] == pytest.approx([0.5, 0.6, 0.5, 0.6])
    # The last turn fills up the last window: here the two pieces are one window already.
    assert session.turns == [(8_000, False), (8_000, False), (0, True)]
