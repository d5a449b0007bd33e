"""How a recording is read and cut for the server."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from slipway_client.listening import padded_size, read_pieces, split_recording
from slipway_client.sound import Recording, read_recording
from slipway_serving.protocol.errors import InvalidRequest


@pytest.mark.parametrize(
    ("size", "filled"), [(0, 16), (1, 16), (16, 16), (17, 24), (24, 24), (25, 32), (100, 104)]
)
def test_windows_cover_every_sample(size: int, filled: int) -> None:
    assert padded_size(size, window=16, hop=8) == filled


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
    assert np.array_equal(np.concatenate(list(read_pieces(Slow(pcm.tobytes(), most)))), pcm)  # type: ignore[arg-type]


def test_half_a_sample_at_the_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must contain whole 16-bit samples"):
        list(read_pieces(io.BytesIO(b"\0\0\0")))


def test_recording_becomes_the_int16_that_its_file_held(tmp_path: Path) -> None:
    pcm = np.array([-32768, -1, 0, 1, 32767] * 4_000, np.int16)
    soundfile.write(tmp_path / "a.wav", pcm, 16_000)
    recording = read_recording(tmp_path / "a.wav")
    assert recording.seconds == 1.25
    assert [piece.size for piece in split_recording(recording)] == [8_000, 8_000, 4_000]
    assert np.array_equal(np.concatenate(list(split_recording(recording))), pcm)


def test_full_scale_of_a_float_recording_becomes_the_largest_int16() -> None:
    (piece,) = split_recording(Recording(np.array([1.0, -1.0], np.float32), 16_000))
    assert piece.tolist() == [32767, -32768]


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (np.zeros(0, np.float32), "a.wav must contain audio, got no samples"),
        (
            np.array([0.0, 4.5], np.float32),
            "a.wav must have samples of -1 to 1 .a decoder's overshoot of up to 4 is accepted., got 4.5",
        ),
        (np.array([0.0, np.nan], np.float32), "a.wav must have finite samples, got NaN or infinity"),
        (np.array([0.0, -np.inf], np.float32), "a.wav must have finite samples, got NaN or infinity"),
    ],
)
def test_recording_is_refused_when_it_breaks_a_rule(tmp_path: Path, samples: np.ndarray, text: str) -> None:
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    with pytest.raises(InvalidRequest, match=text):
        read_recording(tmp_path / "a.wav")


def clipped(rate_hz: int, seconds: float = 1.0) -> np.ndarray:
    """Return sound as loud as music is today: much of it is at full scale."""
    time_s = np.arange(round(rate_hz * seconds)) / rate_hz
    noise = np.random.default_rng(0).normal(0, 1, time_s.size)
    return np.clip(3 * np.sin(2 * np.pi * 220 * time_s) + noise, -1, 1).astype(np.float32)


@pytest.mark.parametrize("rate_hz", [16_000, 44_100])
@pytest.mark.parametrize("kind", ["mp3", "ogg"])
def test_overshoot_of_a_decoder_is_brought_to_full_scale(tmp_path: Path, kind: str, rate_hz: int) -> None:
    path = tmp_path / f"loud.{kind}"
    soundfile.write(path, clipped(rate_hz), rate_hz)
    decoded, _ = soundfile.read(path, dtype="float32")
    assert np.abs(decoded).max() > 1.1
    recording = read_recording(path)
    assert np.abs(recording.samples).max() == pytest.approx(1.0, abs=1e-6)
    # One factor for the whole of it: nothing is clipped.
    plain = decoded if rate_hz == 16_000 else soxr.resample(decoded, rate_hz, 16_000)
    assert recording.peak == pytest.approx(np.abs(plain).max())
    np.testing.assert_allclose(recording.samples * recording.peak, plain, atol=1e-6)
    assert sum(piece.size for piece in split_recording(recording)) == recording.samples.size


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000, 192_000])
def test_streamed_file_of_another_rate_is_the_file_resampled_first(tmp_path: Path, rate_hz: int) -> None:
    sound = (0.3 * clipped(rate_hz, 2.2)).astype(np.float32)
    soundfile.write(tmp_path / "given.wav", sound, rate_hz, subtype="FLOAT")
    soundfile.write(tmp_path / "before.wav", soxr.resample(sound, rate_hz, 16_000), 16_000, subtype="FLOAT")
    given, before = (read_recording(tmp_path / f"{name}.wav") for name in ("given", "before"))
    assert given.rate_hz == before.rate_hz == 16_000
    np.testing.assert_array_equal(given.samples, before.samples)
    np.testing.assert_array_equal(
        np.concatenate(list(split_recording(given))), np.concatenate(list(split_recording(before)))
    )


@pytest.mark.parametrize(
    ("name", "subtype", "step"),
    [
        ("a.wav", "PCM_U8", 1 / 128),
        ("a.wav", "PCM_16", 1 / 32768),
        ("a.wav", "PCM_24", 1 / 2**23),
        ("a.wav", "PCM_32", 1 / 2**24),
        ("a.wav", "DOUBLE", 1e-7),
        ("a.flac", "PCM_24", 1 / 2**23),
        ("a.aiff", "PCM_16", 1 / 32768),
    ],
)
def test_file_of_any_depth_is_read(tmp_path: Path, name: str, subtype: str, step: float) -> None:
    sound = (0.5 * clipped(16_000)).astype(np.float32)
    soundfile.write(tmp_path / name, sound, 16_000, subtype=subtype)
    np.testing.assert_allclose(read_recording(tmp_path / name).samples, sound, atol=step)


def test_channels_are_refused_unless_their_mean_is_asked_for(tmp_path: Path) -> None:
    left = (0.5 * clipped(16_000)).astype(np.float32)
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([left, np.zeros_like(left)], axis=1), 16_000, subtype="FLOAT")
    with pytest.raises(InvalidRequest, match="stereo.wav must be mono, got 2 channels; try --mono"):
        read_recording(path)
    np.testing.assert_array_equal(read_recording(path, mono=True).samples, left / 2)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        (
            "phone.m4a",
            b"\0\0\0\x18ftypM4A ",
            "must be an audio file, got Format not recognised; try converting it",
        ),
        ("pcm.raw", bytes(1000), "must be an audio file, got"),
        ("empty.wav", b"", "must be an audio file, got"),
        ("none.wav", None, "must be an audio file that can be read, got No such file or directory"),
    ],
)
def test_file_that_is_no_audio_is_refused(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=f"{name} {text}"):
        read_recording(tmp_path / name)


def test_file_of_a_rate_that_is_not_served_is_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "slow.wav", clipped(4_000), 4_000)
    with pytest.raises(
        InvalidRequest, match="slow.wav must have a sampling rate of 8000 to 192000 Hz, got 4000"
    ):
        read_recording(tmp_path / "slow.wav")
