"""Audio before the backbone: loudness, peak, rate, features, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ASTFeatureExtractor

from slipway_export.families.wakeword.features import Features
from slipway_serving.families.wakeword.audio import Extractor, loudness, prepare
from slipway_serving.families.wakeword.audio_limits import is_silent
from slipway_serving.protocol.errors import InvalidRequest

RATE_HZ = 16_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("extractor")
    ASTFeatureExtractor(max_length=128, mean=-6.845978, std=5.5654526).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def extract(folder: Path) -> Extractor:
    return Extractor(folder)


def tone(seconds: float = 1.0, rate_hz: int = RATE_HZ, level: float = 0.3) -> np.ndarray:
    """Two sines at rising frequency, so that its features change over time."""
    time_s = np.arange(int(seconds * rate_hz)) / rate_hz
    return (level * np.sin(2 * np.pi * (300 + 400 * time_s) * time_s)).astype(np.float32)


def test_features_are_those_of_transformers_extractor(extract: Extractor, folder: Path) -> None:
    reference = ASTFeatureExtractor.from_pretrained(folder)
    loud = tone() / np.abs(tone()).max() * 0.9
    expected = reference(loud, sampling_rate=RATE_HZ, return_tensors="np")["input_values"][0]
    features = extract(tone(), RATE_HZ)
    assert features.input_values.shape == (128, 128)
    np.testing.assert_allclose(features.input_values, expected, atol=1e-4)
    # Rows beyond the clip: a zero before the normalization.
    np.testing.assert_allclose(features.input_values[98:], 6.845978 / (2 * 5.5654526), rtol=1e-5)


HALF = np.concatenate([np.zeros(8_000, np.float32), tone(0.5)])
CLIPS = {
    "chirp": tone(),
    "one frame": tone()[:400],
    "no frame": tone()[:399],
    "longest": tone(2.0)[:20_879],
    "pure tone": (0.9 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.float32),
    "click": np.eye(1, RATE_HZ, 8_000, dtype=np.float32)[0],
    "offset": 0.5 + 0.01 * tone(),
    "constant": np.full(RATE_HZ, 0.5, np.float32),
    "clipped": np.clip(5 * tone(), -1, 1),
    "as loud as silence may be": np.full(RATE_HZ, 0.00501, np.float32),
    "half of it nothing": HALF,
}


@pytest.mark.parametrize("name", CLIPS)
def test_network_of_features_equals_transformers_extractor(folder: Path, name: str) -> None:
    reference = ASTFeatureExtractor.from_pretrained(folder)
    features, rms = Features(reference)(torch.from_numpy(CLIPS[name][None]))
    prepared = prepare(CLIPS[name], RATE_HZ)
    # The extractor takes no clip without a frame: all of its rows are padding.
    padded = prepared if prepared.size >= 400 else np.zeros(400, np.float32)
    expected = reference(padded, sampling_rate=RATE_HZ, return_tensors="np")["input_values"]
    if prepared.size < 400:
        expected[:] = expected[0, -1]
    np.testing.assert_allclose(features.numpy(), expected, atol=1e-6)
    assert rms.item() == pytest.approx(loudness(CLIPS[name]), rel=1e-6)


def test_network_of_features_gives_zeros_for_silence_as_the_extractor_does(
    extract: Extractor, folder: Path
) -> None:
    quiet = np.stack([np.zeros(RATE_HZ, np.float32), np.full(RATE_HZ, 0.0049, np.float32), tone()])
    features, _ = Features(ASTFeatureExtractor.from_pretrained(folder))(torch.from_numpy(quiet))
    for row, clip in zip(features.numpy(), quiet, strict=True):
        np.testing.assert_allclose(row, extract(clip, RATE_HZ).input_values, atol=1e-6)


def test_network_of_features_lets_no_samples_harm_their_neighbours(folder: Path) -> None:
    network = Features(ASTFeatureExtractor.from_pretrained(folder))
    wrong = [np.full(RATE_HZ, value, np.float32) for value in (np.nan, np.inf, -np.inf, 3e38)]
    features, rms = network(torch.from_numpy(np.stack([*wrong, tone()])))
    assert features.isfinite().all()
    assert rms.isfinite().all()
    assert torch.equal(features[-1:], network(torch.from_numpy(tone()[None]))[0])


def test_network_of_features_leaves_the_normalization_out_where_the_checkpoint_does(folder: Path) -> None:
    plain = ASTFeatureExtractor.from_pretrained(folder, do_normalize=False)
    expected = plain(prepare(tone(), RATE_HZ), sampling_rate=RATE_HZ, return_tensors="np")["input_values"]
    features, _ = Features(plain)(torch.from_numpy(tone()[None]))
    np.testing.assert_allclose(features.numpy(), expected, atol=1e-5)


def test_level_changes_nothing_when_it_is_not_silent(extract: Extractor) -> None:
    quiet, loud = (extract(tone(level=level), RATE_HZ).input_values for level in (0.02, 0.9))
    np.testing.assert_allclose(quiet, loud, atol=1e-3)


def test_peak_is_brought_to_nine_tenths_only_above_one_hundredth() -> None:
    assert np.abs(prepare(tone(level=0.02), RATE_HZ)).max() == pytest.approx(0.9)
    assert np.array_equal(prepare(tone(level=0.009), RATE_HZ), tone(level=0.009))


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000, 192_000])
def test_clip_of_another_rate_gives_nearly_the_same_features(extract: Extractor, rate_hz: int) -> None:
    resampled = prepare(tone(rate_hz=rate_hz), rate_hz)
    assert abs(resampled.size - RATE_HZ) <= 1
    inner = slice(200, -200)
    np.testing.assert_allclose(resampled[:RATE_HZ][inner], prepare(tone(), RATE_HZ)[inner], atol=0.02)
    assert extract(tone(rate_hz=rate_hz), rate_hz).input_values.shape == (128, 128)


def test_clip_is_silent_below_the_loudness_rule(extract: Extractor) -> None:
    constant = np.full(RATE_HZ, 0.0049, np.float32)
    assert loudness(constant) == pytest.approx(0.0049)
    assert extract(constant, RATE_HZ).silent
    assert not extract(np.full(RATE_HZ, 0.0051, np.float32), RATE_HZ).silent
    assert is_silent(0.0)


def test_longest_clip_is_what_the_backbone_sees(extract: Extractor, tmp_path: Path) -> None:
    assert extract.longest_s == (400 + 127 * 160 + 159) / RATE_HZ
    longest = int(extract.longest_s * RATE_HZ)
    assert extract(tone(2.0)[:longest], RATE_HZ).input_values.shape == (128, 128)
    with pytest.raises(InvalidRequest, match=r"audio must be at most 1.30 s long"):
        extract(tone(2.0)[: longest + 1], RATE_HZ)
    ASTFeatureExtractor(max_length=1024).save_pretrained(tmp_path)
    long = Extractor(tmp_path)
    assert long.longest_s == 10.0
    assert long(tone(10.0), RATE_HZ).input_values.shape == (1024, 128)


@pytest.mark.parametrize(
    ("samples", "rate_hz", "text"),
    [
        (tone(), 7_999, "sample_rate must be 8000 to 192000 Hz, got 7999"),
        (tone(), 0, "sample_rate must be 8000 to 192000 Hz, got 0"),
        (tone(), -16_000, "sample_rate must be 8000 to 192000 Hz, got -16000"),
        (tone(), 192_001, "sample_rate must be 8000 to 192000 Hz, got 192001"),
        (tone()[:0], RATE_HZ, r"audio must have 1 or more samples, got shape \[1, 0\]"),
        (tone()[:1599], RATE_HZ, "audio must be at least 0.1 s long, got 0.10 s"),
        (
            tone(3600.0, 8_000),
            8_000,
            "audio must be at most 10.00 s long, got 3600.00 s; try wakeword_stream",
        ),
        (np.full(RATE_HZ, np.nan, np.float32), RATE_HZ, "audio must be finite, got nan at sample 0"),
        (np.full(RATE_HZ, np.inf, np.float32), RATE_HZ, "audio must be finite, got inf at sample 0"),
        (
            tone() * 32768,
            RATE_HZ,
            "audio must be within -1 to 1, got -?98.*; try dividing int16 samples by 32768",
        ),
        (
            np.stack([tone(), tone()]),
            RATE_HZ,
            r"audio must be float32 \[batch, samples\], got float32 \[1, 2, 16000\]",
        ),
    ],
)
def test_clip_is_refused_when_it_breaks_a_rule(
    extract: Extractor, samples: np.ndarray, rate_hz: int, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        extract(samples, rate_hz)


def test_extractor_is_refused_without_its_file_or_at_another_rate(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="must contain preprocessor_config.json"):
        Extractor(tmp_path)
    ASTFeatureExtractor(sampling_rate=8000).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match="sampling_rate must be 16000"):
        Extractor(tmp_path)
