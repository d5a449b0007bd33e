"""The studio's microphones and motion in Debian's Chromium, before a real Triton.

The wake word and the inertial correction are the demo checkpoints, since the tests ask for what a person
sees: a word that is heard, and a path that gets better.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import speech
from gateway_fixtures import Gateway, running_gateway
from playwright.sync_api import expect
from studio_page import LIMIT_MS, assert_view_fits_a_phone, chromium, opened

from slipway_demo import folder
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

WORD = "slipway"
NEW_WORD = "jarvis"
TRAINING_MS = 400_000
MICROPHONE_HZ = 48_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A wake word, and a correction of inertial signals."""
    repository = tmp_path_factory.mktemp("studio_live") / "repository"
    for family, checkpoint in (("wakeword", "demo"), ("wakeword_head", WORD), ("airimu", "demo")):
        run_export(family_named(family), ExportOptions(checkpoint, repository))
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with Server(ServerConfig(repository, **ports, model_control="explicit")) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose callers may train words."""
    data = tmp_path_factory.mktemp("studio_live_gateway")
    training = {
        "--models": data / "trained",
        "--repository": server.config.repository,
        "--backbone": "demo",
        "--control": server.http_url,
        "--control-token-file": server.control_token_file,
    }
    arguments = [str(part) for option in training.items() for part in option]
    with running_gateway([server.grpc_url], data, *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def said() -> Path:
    """The recording of the word that comes with its checkpoint."""
    return folder("wakeword_head") / "said.ogg"


@pytest.fixture(scope="module")
def browser(said: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium whose microphone hears the word again and again."""
    samples, rate = soundfile.read(said, dtype="float32")
    spoken = tmp_path_factory.mktemp("microphone") / "said.wav"
    silence = np.zeros(MICROPHONE_HZ, np.float32)
    sound = np.concatenate([silence, soxr.resample(samples, rate, MICROPHONE_HZ), silence])
    soundfile.write(spoken, sound, MICROPHONE_HZ, subtype="PCM_16")
    arguments = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with chromium(*arguments, f"--use-file-for-fake-audio-capture={spoken}") as running:
        yield running


def test_word_is_heard_from_the_microphone(browser: Any, gateway: Gateway) -> None:
    with opened(browser, f"{gateway.url}/#/listen", permissions=["microphone"]) as page:
        page.get_by_role("button", name="Use the microphone").click()
        expect(page.locator("tbody td.strong").first).to_have_text(WORD, timeout=LIMIT_MS)
        assert page.locator(".plot .series").count() == 1
        assert page.locator(".plot .threshold").count() == 1
        page.get_by_role("button", name="Stop listening").click()
        expect(page.get_by_role("button", name="Use the microphone")).to_be_visible()
        expect(page.locator("[role=status]", has_text="s were heard")).to_be_visible(timeout=LIMIT_MS)


def test_word_is_heard_in_a_file(browser: Any, gateway: Gateway, said: Path, tmp_path: Path) -> None:
    with opened(browser, f"{gateway.url}/#/listen") as page:
        page.set_input_files("input[type=file]", said)
        expect(page.locator("[role=status]", has_text="2 detections")).to_be_visible(timeout=LIMIT_MS)
        assert page.locator(".plot .marker").count() == 2
        no_sound = tmp_path / "no.wav"
        no_sound.write_bytes(b"no sound")
        page.set_input_files("input[type=file]", no_sound)
        expect(page.get_by_role("alert")).to_contain_text("no.wav cannot be read as sound")


def test_word_is_trained_from_recordings_and_then_heard(
    browser: Any, gateway: Gateway, tmp_path: Path
) -> None:
    speaker = speech.speaker()
    others = [word for word in speech.WORDS if word != NEW_WORD]
    positive = speech.write(tmp_path / "positive", {NEW_WORD: 60}, speaker, seed=1)
    negative = speech.write(tmp_path / "negative", dict.fromkeys(others, 12), speaker, seed=2)
    silence = np.zeros(speech.RATE_HZ, np.float32)
    said = speaker.say(NEW_WORD, np.random.default_rng(9))
    unheard = tmp_path / "unheard.wav"
    soundfile.write(unheard, np.concatenate([silence, said, silence]), speech.RATE_HZ, subtype="PCM_16")
    with opened(browser, f"{gateway.url}/#/listen") as page:
        train = page.get_by_role("button", name="Train the word")
        page.get_by_label("Word", exact=True).fill(NEW_WORD)
        page.get_by_label("Recordings of the word").set_input_files(sorted(positive.iterdir()))
        expect(train).to_be_disabled()
        page.get_by_label("Recordings of other sounds").set_input_files(sorted(negative.iterdir()))
        train.click()
        ready = page.locator("main [role=status]", has_text=f"The server listens for “{NEW_WORD}” now")
        expect(ready).to_be_visible(timeout=TRAINING_MS)
        page.locator(".drop").locator("xpath=..").locator("input[type=file]").set_input_files(unheard)
        expect(page.locator("tbody td.strong", has_text=NEW_WORD).first).to_be_visible(timeout=LIMIT_MS)


def test_recordings_of_a_word_are_made_on_the_page(browser: Any, gateway: Gateway) -> None:
    with opened(browser, f"{gateway.url}/#/listen", permissions=["microphone"]) as page:
        page.get_by_role("button", name="Record it 10 times").click()
        expect(page.get_by_text("once, now (1 of 10)")).to_be_visible()
        expect(page.get_by_text("10 recordings")).to_be_visible(timeout=LIMIT_MS)
        page.get_by_role("button", name="Delete the recordings").click()
        expect(page.get_by_text("0 of at least 8").first).to_be_visible()


def test_made_recording_is_corrected_by_one_click(browser: Any, gateway: Gateway) -> None:
    with opened(browser, f"{gateway.url}/#/motion") as page:
        page.get_by_role("button", name="Try a made recording").click()
        first = page.locator(".motion-errors tbody tr").first
        expect(first.locator(".change")).to_have_class(re.compile("better"), timeout=LIMIT_MS)
        raw, corrected = (float(first.locator("td").nth(place).inner_text().split()[0]) for place in range(2))
        assert corrected < raw / 2
        assert page.locator(".plot .series").count() == 5
        page.locator("#motion-length").fill("5")
        expect(first.locator("td").first).not_to_have_text(f"{raw} m", timeout=LIMIT_MS)


def test_recording_of_a_user_is_corrected_without_ground_truth(
    browser: Any, gateway: Gateway, tmp_path: Path
) -> None:
    rest = np.random.default_rng(1).normal(0, 0.02, (1000, 3))
    file = io.BytesIO()
    np.savez(file, acc=rest + np.array([0, 0, 9.81]), gyro=rest / 10, dt=0.005)
    with opened(browser, f"{gateway.url}/#/motion") as page:
        signals = page.locator("input[type=file]").first
        signals.set_input_files({"name": "imu.npz", "mimeType": "", "buffer": file.getvalue()})
        expect(page.locator("main [role=status]", has_text="1,000 frames are corrected")).to_be_visible(
            timeout=LIMIT_MS
        )
        assert page.locator(".plot .series").count() == 4
        signals.set_input_files({"name": "no.csv", "mimeType": "", "buffer": b"a,b\n1,2\n"})
        expect(page.get_by_role("alert")).to_contain_text("recording.csv")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["listen", "motion"])
def test_view_fits_a_phone_and_excludes_nobody(
    browser: Any, gateway: Gateway, view: str, scheme: str
) -> None:
    assert_view_fits_a_phone(browser, f"{gateway.url}/#/{view}", scheme)
