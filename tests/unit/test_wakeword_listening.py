"""How a recording is read and cut for the server."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from slipway_client.listening import Recording, filled_up, pieces_from, pieces_of, read_recording
from slipway_serving.errors import InvalidRequest


@pytest.mark.parametrize(
    ("size", "filled"), [(0, 16), (1, 16), (16, 16), (17, 24), (24, 24), (25, 32), (100, 104)]
)
def test_windows_cover_every_sample(size: int, filled: int) -> None:
    assert filled_up(size, window=16, hop=8) == filled


class Slow(io.RawIOBase):
    """Gives at most so many bytes at a time, as a pipe does."""

    def __init__(self, content: bytes, most: int) -> None:
        self.content, self.most = content, most

    def read(self, size: int = -1) -> bytes:
        given = self.content[: min(size, self.most)]
        self.content = self.content[len(given) :]
        return given


@pytest.mark.parametrize("most", [1, 3, 7_999, 16_000, 100_000])
def test_samples_come_whole_from_a_pipe_that_cuts_them(most: int) -> None:
    pcm = np.arange(-9_000, 9_000, dtype="<i2")
    assert np.array_equal(np.concatenate(list(pieces_from(Slow(pcm.tobytes(), most)))), pcm)  # type: ignore[arg-type]


def test_half_a_sample_at_the_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be whole 16-bit samples"):
        list(pieces_from(io.BytesIO(b"\0\0\0")))


def test_recording_becomes_the_int16_that_its_file_held(tmp_path: Path) -> None:
    pcm = np.array([-32768, -1, 0, 1, 32767] * 4_000, np.int16)
    soundfile.write(tmp_path / "a.wav", pcm, 16_000)
    recording = read_recording(tmp_path / "a.wav")
    assert recording.seconds == 1.25
    assert [piece.size for piece in pieces_of(recording)] == [8_000, 8_000, 4_000]
    assert np.array_equal(np.concatenate(list(pieces_of(recording))), pcm)


def test_full_scale_of_a_float_recording_becomes_the_largest_int16() -> None:
    (piece,) = pieces_of(Recording(np.array([1.0, -1.0], np.float32), 16_000))
    assert piece.tolist() == [32767, -32768]


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (np.zeros(0, np.float32), "file must hold audio, got an empty"),
        (np.array([0.0, 1.5], np.float32), "samples must be within -1 to 1, got 1.5"),
        (np.array([0.0, np.nan], np.float32), "samples must be within -1 to 1, got nan"),
    ],
)
def test_recording_is_refused_when_it_breaks_a_rule(tmp_path: Path, samples: np.ndarray, text: str) -> None:
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    with pytest.raises(InvalidRequest, match=text):
        read_recording(tmp_path / "a.wav")
