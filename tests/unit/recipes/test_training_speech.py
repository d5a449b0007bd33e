"""The data of the wake words' demo checkpoint: rooms, and what windows of synthetic speech hold."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from transformers import ASTFeatureExtractor

from slipway_export.families.wakeword.features import Features
from slipway_recipes.speech import espeak
from slipway_recipes.speech.features import QuickFeatures
from slipway_recipes.speech.recipe import PREPROCESSOR
from slipway_recipes.speech.rooms import echoed, noisy
from slipway_recipes.speech.streams import hearings, spoken, targets, window, words
from slipway_recipes.speech.voices import HEARD, UNHEARD, drawn_voice, otherwise
from slipway_serving.families.wakeword.audio import loudness
from slipway_serving.protocol.errors import InvalidRequest
from slipway_training.clips import noise_of

# What trains from synthetic speech needs it; tests, demo and serving do not.
speaks = pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None, reason="espeakng-loader is not installed"
)


def test_voices_that_judge_are_none_that_train() -> None:
    assert not set(HEARD) & set(UNHEARD)
    assert drawn_voice(np.random.default_rng(0), ("f3",)).name.endswith("+f3")


def test_speech_is_otherwise_higher_as_it_is_shorter_and_of_another_timbre() -> None:
    time_s = np.arange(16_000) / 16_000
    said = np.sin(2 * np.pi * 400 * time_s).astype(np.float32) + np.sin(2 * np.pi * 3200 * time_s)
    louder = []
    for seed in range(20):
        heard, stretched = otherwise(said.astype(np.float32), np.random.default_rng(seed))
        assert 1 / 1.2 <= stretched <= 1.2
        assert heard.size == pytest.approx(16_000 * stretched, abs=2)
        assert np.abs(heard).max() == pytest.approx(0.5)
        power = np.abs(np.fft.rfft(heard * np.hanning(heard.size), 64_000)) ** 2
        peaks_hz = [low + 0.25 * int(np.argmax(power[4 * low : 4 * low + 8_000])) for low in (100, 2200)]
        assert peaks_hz == pytest.approx([400 / stretched, 3200 / stretched], rel=0.01)
        low, high = (power[4 * round(hz) - 8 : 4 * round(hz) + 8].max() for hz in peaks_hz)
        louder.append(10 * np.log10(high / low))
    assert -12 <= min(louder) < -3 and 3 < max(louder) <= 12


def test_words_are_many_and_each_is_one() -> None:
    assert len(words()) == len(set(words())) > 700
    assert "slipway" not in words()


def test_echoes_follow_what_was_said_and_leave_its_beginning() -> None:
    click = np.zeros(8000, np.float32)
    click[1000] = 1.0
    heard = echoed(click, np.random.default_rng(0))
    assert heard.shape == click.shape
    assert np.abs(heard[:999]).max() < 1e-5
    assert heard[1000] == pytest.approx(1.0, abs=1e-4)
    assert 0.05 < np.sqrt(np.sum(heard[1001:] ** 2)) < 1.1


def test_noise_lies_below_what_was_said() -> None:
    random = np.random.default_rng(1)
    said = 0.3 * noise_of(16_000, random)
    heard = noisy(said, random)
    gain = np.dot(heard, said) / np.dot(said, said)
    below_db = 20 * np.log10(loudness(said) / loudness(heard / gain - said))
    assert 3 < below_db < 36
    assert np.abs(heard).max() <= 0.95


def test_features_of_trainings_are_those_that_are_served() -> None:
    extractor = ASTFeatureExtractor(**PREPROCESSOR)
    random = np.random.default_rng(2)
    windows = torch.from_numpy(np.stack([0.2 * noise_of(16_000, random) for _ in range(4)]))
    windows[1, 4000:] *= 1e-3
    served, _ = Features(extractor).eval()(windows)
    torch.testing.assert_close(QuickFeatures(extractor)(windows), served, atol=1e-3, rtol=0)


def test_targets_share_a_window_among_its_words() -> None:
    wanted = targets([[3, 5], [], [7, 7]], 9)
    assert wanted.shape == (3, 10)
    assert wanted[0, 3] == wanted[0, 5] == 0.5
    assert wanted[1, -1] == wanted[2, 7] == 1
    np.testing.assert_array_equal(wanted.sum(axis=1), 1)


def test_speech_is_refused_with_what_to_install_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "espeakng_loader", None)
    espeak._library.cache_clear()
    with pytest.raises(InvalidRequest, match=r'try pip install "\.\[training,speech\]"'):
        espeak.say("hello", espeak.Voice("gmw/en"))
    espeak._library.cache_clear()


@speaks
def test_window_holds_the_same_words_when_its_seed_is_the_same() -> None:
    # What espeak-ng says differs in breath and phase each time.
    first, again = (window(np.random.default_rng(4), words()) for _ in range(2))
    assert first[1] == again[1] != []
    drawn = [window(np.random.default_rng(seed), words()) for seed in range(40)]
    assert {samples.shape for samples, _ in drawn} == {(16_000,)}
    assert all(np.abs(samples).max() <= 0.95 + 1e-6 for samples, _ in drawn)
    assert sum(len(held) == 1 for _, held in drawn) > 15


@speaks
def test_a_saying_is_heard_of_two_speakers_when_windows_are_drawn_for_a_step() -> None:
    drawn = hearings(np.random.default_rng(4), words(), 41)
    assert [held for _, held in drawn] == [
        held for _, held in hearings(np.random.default_rng(4), words(), 41)
    ]
    assert len(drawn) == 41 and {samples.shape for samples, _ in drawn} == {(16_000,)}
    assert all(np.abs(samples).max() <= 0.95 + 1e-6 for samples, _ in drawn)
    told = [words()[index] for _, held in drawn for index in held]
    assert len(told) > 25 and 10 < len(set(told)) <= 0.8 * len(told)


@speaks
def test_texts_are_said_one_after_the_other_where_it_is_told() -> None:
    said, places = spoken(["yellow", "zebra"], np.random.default_rng(0))
    assert places[0][1] <= places[1][0] < places[1][1] == said.size
    for begin, end in places:
        assert loudness(said[begin:end]) > 0.02
        assert 0.2 < (end - begin) / 16_000 < 1.2


@speaks
def test_voice_is_refused_when_nobody_has_it() -> None:
    with pytest.raises(InvalidRequest, match="voice must be one of espeak-ng's, got 'nobody'"):
        espeak.say("hello", espeak.Voice("nobody"))
