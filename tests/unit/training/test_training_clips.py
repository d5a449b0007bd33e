"""Recordings as training hears them: windows, channels, rates, variations, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from slipway_serving.protocol.errors import InvalidRequest
from slipway_training.clips import read_clips, read_samples, varied

RATE_HZ = 16_000


def hum(seconds: float, amplitude: float = 0.5, rate_hz: int = RATE_HZ) -> np.ndarray:
    """Return a tone of 440 Hz."""
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    return (amplitude * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate_hz: int = RATE_HZ, subtype: str = "FLOAT") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate_hz, subtype=subtype)
    return path


def test_long_negative_is_cut_into_overlapping_windows_without_its_silence(tmp_path: Path) -> None:
    samples = np.concatenate([hum(2.0), np.zeros(2 * RATE_HZ, np.float32)])
    write(tmp_path / "deeper" / "radio.wav", samples)
    (clip,) = read_clips(tmp_path, positive=False)
    # Starts 0, 0.5, 1 s hum; 1.5 s hums for half its time; those from 2 s on are silent.
    assert [len(window) for window in clip.windows] == [RATE_HZ] * 4
    np.testing.assert_array_equal(clip.windows[1], samples[RATE_HZ // 2 : RATE_HZ // 2 + RATE_HZ])


def test_long_positive_is_its_loudest_second(tmp_path: Path) -> None:
    samples = np.concatenate([hum(1.0, 0.05), hum(1.0, 0.8), hum(1.0, 0.05)])
    write(tmp_path / "word.wav", samples)
    (clip,) = read_clips(tmp_path, positive=True)
    (window,) = clip.windows
    np.testing.assert_array_equal(window, samples[RATE_HZ : 2 * RATE_HZ])


def test_channels_are_averaged_and_other_rates_resampled(tmp_path: Path) -> None:
    stereo = np.stack([hum(0.5, rate_hz=44_100), np.zeros(22_050, np.float32)], axis=1)
    samples = read_samples(write(tmp_path / "stereo.flac", stereo, 44_100, "PCM_16"))
    assert samples.shape == (RATE_HZ // 2,)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples[800:-800], hum(0.5, 0.25)[800:-800], atol=2e-3)


def test_samples_beyond_full_scale_are_brought_within_it(tmp_path: Path) -> None:
    samples = read_samples(write(tmp_path / "hot.wav", hum(0.5, 3.0)))
    assert np.abs(samples).max() == pytest.approx(1.0)


def test_recordings_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "good.wav", hum(0.5))
    write(tmp_path / "nan.wav", np.full(RATE_HZ, np.nan, np.float32))
    write(tmp_path / "short.wav", hum(0.05))
    write(tmp_path / "slow.wav", hum(0.5), rate_hz=4000)
    write(tmp_path / "still.wav", hum(0.5, 0.001))
    (tmp_path / "text.wav").write_text("not audio")
    with pytest.raises(InvalidRequest) as caught:
        read_clips(tmp_path, positive=True)
    text = str(caught.value)
    for part in (
        "nan.wav must have finite samples",
        "short.wav must be at least 0.1 s long, got 0.05 s",
        "slow.wav must have a sampling rate of 8000 to 192000 Hz, got 4000",
        "still.wav must be louder than silence",
        "text.wav must be an audio file, got Format not recognised",
    ):
        assert part in text
    assert "good.wav" not in text


def test_recordings_that_cannot_be_decoded_are_not_left_out(tmp_path: Path) -> None:
    write(tmp_path / "good.wav", hum(0.5))
    (tmp_path / "phone.m4a").write_bytes(b"\0\0\0\x18ftypM4A ")
    write(tmp_path / "integers.wav", hum(0.5, 20_000))
    with pytest.raises(InvalidRequest) as caught:
        read_clips(tmp_path, positive=False)
    assert "phone.m4a must be an audio file, got Format not recognised; try converting it" in str(
        caught.value
    )
    assert (
        "integers.wav must have samples of -1 to 1 (a decoder's overshoot of up to 4 is accepted), got 2"
        in str(caught.value)
    )


def test_more_than_five_bad_recordings_are_counted(tmp_path: Path) -> None:
    for index in range(7):
        (tmp_path / f"{index}.wav").write_text("not audio")
    with pytest.raises(InvalidRequest, match="and 2 recordings more"):
        read_clips(tmp_path, positive=False)


def test_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="positive must hold recordings .* got none"):
        read_clips(tmp_path, positive=True)
    with pytest.raises(InvalidRequest, match="negative must be a folder of recordings"):
        read_clips(tmp_path / "absent", positive=False)


@pytest.mark.parametrize("seconds", [0.1, 0.6, 1.0])
def test_variation_is_a_second_that_differs_and_repeats_with_its_seed(seconds: float) -> None:
    window = hum(seconds)
    first, again = (varied(window, np.random.default_rng(3)) for _ in range(2))
    other = varied(window, np.random.default_rng(4))
    assert first.shape == (RATE_HZ,)
    assert np.abs(first).max() == pytest.approx(0.9)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("begin_s", [0.0, 0.1, 1.3, 2.6])
def test_variations_of_a_word_hold_it_wherever_a_streams_window_may_lie(
    tmp_path: Path, begin_s: float
) -> None:
    samples = np.zeros(3 * RATE_HZ, np.float32)
    begin = round(begin_s * RATE_HZ)
    samples[begin : begin + round(0.4 * RATE_HZ)] = hum(0.4)
    write(tmp_path / "word.wav", samples)
    (clip,) = read_clips(tmp_path, positive=True)
    (span,) = clip.spans
    assert span.size == 1.5 * RATE_HZ
    moments = []
    for seed in range(40):
        power = np.convolve(varied(span, np.random.default_rng(seed)) ** 2, np.full(320, 1 / 320), "same")
        loud = np.flatnonzero(power > 0.6 * np.percentile(power, 90))
        assert np.ptp(loud) / RATE_HZ == pytest.approx(0.4, rel=0.15)
        moments.append(loud.mean() / RATE_HZ)
    assert np.ptp(moments) > 0.3


def test_whole_windows_of_other_sounds_are_varied_as_they_are(tmp_path: Path) -> None:
    write(tmp_path / "speech.wav", hum(2.5))
    (clip,) = read_clips(tmp_path, positive=False)
    assert clip.spans == clip.windows
