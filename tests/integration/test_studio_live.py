"""The studio's worlds, microphones and motion in Debian's Chromium, before a real Triton.

A tiny world is enough to be steered. The wake word and the inertial correction are the demo checkpoints,
since their tests ask for what a person sees: a word that is heard, and a path that gets better.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import speech
from gateway_fixtures import Gateway, running_gateway
from PIL import Image
from playwright.sync_api import expect
from studio_page import CLIPBOARD, LIMIT_MS, PHONE, chromium, opened, paste_picture, violations
from world_fixtures import MODEL, exported_world

from slipway_demo import folder
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.triton.server import Server, ServerConfig

WORD = "slipway"
NEW_WORD = "jarvis"
TRAINING_MS = 400_000
MICROPHONE_HZ = 48_000


@pytest.fixture(scope="module")
def server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny world that takes one viewer at a time, a wake word, and a correction of inertial signals."""
    repository = tmp_path_factory.mktemp("studio_live") / "repository"
    shutil.copytree(exported_world(shared), repository)
    for family, checkpoint in (("wakeword", "demo"), ("wakeword_head", WORD), ("airimu", "demo")):
        run_export(family_named(family), ExportOptions(checkpoint, repository))
    config = repository / MODEL / "config.pbtxt"
    text = config.read_text()
    config.write_text(re.sub(r'(key: "max_sessions" value \{ string_value: ")8', r"\g<1>1", text))
    assert config.read_text() != text
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


def picture(folder: Path) -> Path:
    pixels = np.random.default_rng(3).integers(0, 256, (70, 90, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "first.png")
    return folder / "first.png"


def begin_world(page: Any, first: Path) -> None:
    page.set_input_files("form input[type=file]", first)
    page.get_by_role("button", name="Begin").last.click()


def wait_for_frames(page: Any, least: int) -> None:
    """Wait until the page has shown some frames; the page's policy forbids Playwright's own way."""
    deadline = time.monotonic() + LIMIT_MS / 1000
    while int(page.locator("[data-meter=frames]").inner_text()) < least:
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


def test_world_is_steered_by_keys_and_by_the_pad(browser: Any, gateway: Gateway, tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []
    started: set[int] = set()

    def received(payload: str | bytes) -> None:
        if isinstance(payload, str):
            started.update(json.loads(payload).get("started_event_ids", ()))

    def follow(socket: Any) -> None:
        socket.on("framesent", lambda payload: sent.append(json.loads(payload)))
        socket.on("framereceived", received)

    with opened(browser, f"{gateway.url}/#/world") as page:
        page.on("websocket", follow)
        begin_world(page, picture(tmp_path))
        wait_for_frames(page, 9)
        forward = page.locator('[data-action="keyboard_cond.forward"]')
        page.keyboard.down("w")
        expect(forward).to_have_attribute("aria-pressed", "true")
        expect(page.locator("[data-meter=reaction]")).to_contain_text("s", timeout=LIMIT_MS)
        page.keyboard.up("w")
        expect(forward).to_have_attribute("aria-pressed", "false")
        look = page.locator('[data-action="mouse_cond.right"]')
        look.hover()
        page.mouse.down()
        expect(look).to_have_attribute("aria-pressed", "true")
        page.mouse.up()
        wait_for_frames(page, 60)
        expect(page.locator(".bar-part").first).to_be_attached()
        assert "ms" in page.locator("[data-meter=block]").inner_text() + " ms"
        page.get_by_role("button", name="End", exact=True).click()
        expect(page.get_by_role("button", name="Begin").last).to_be_visible()
    interactions = [each["interaction"] for each in sent if each["type"] == "session.interaction"]
    events = [each["event"] for each in interactions]
    assert {"keyboard_cond": {"forward": 1}} in events and {"mouse_cond": {"right": 0.1}} in events
    assert events[-1] == {}
    pressed = {each["event_id"] for each in interactions if each["event"]}
    assert pressed <= started


def test_short_tap_steers_a_block(browser: Any, gateway: Gateway, tmp_path: Path) -> None:
    with opened(browser, f"{gateway.url}/#/world") as page:
        begin_world(page, picture(tmp_path))
        wait_for_frames(page, 9)
        page.keyboard.press("d")
        expect(page.locator("[data-meter=reaction]")).to_contain_text("s", timeout=LIMIT_MS)


def test_world_begins_with_a_pasted_picture_and_with_one_of_the_camera(
    browser: Any, gateway: Gateway
) -> None:
    permissions = [*CLIPBOARD, "camera"]
    with opened(browser, f"{gateway.url}/#/world", permissions=permissions) as page:
        form = page.locator("form")
        expect(form.get_by_role("button", name="Begin")).to_be_disabled()
        paste_picture(page)
        expect(form.locator("img.drop-preview")).to_have_js_property("naturalWidth", 90)
        form.get_by_role("button", name="Remove the file").click()
        expect(form.get_by_role("button", name="Begin")).to_be_disabled()
        form.get_by_role("button", name="Use the camera").click()
        expect(form.locator("video")).to_have_js_property("readyState", 4)
        assert violations(page) == []
        form.get_by_role("button", name="Take the picture").click()
        expect(form.locator("img.drop-preview")).to_be_visible()
        expect(form.locator("video")).to_have_count(0)
        expect(form).to_contain_text("camera.png")
        form.get_by_role("button", name="Begin").click()
        wait_for_frames(page, 3)


def test_world_is_steered_by_two_fingers_on_a_phone(browser: Any, gateway: Gateway, tmp_path: Path) -> None:
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    with opened(browser, f"{gateway.url}/#/world", **options) as page:
        begin_world(page, picture(tmp_path))
        wait_for_frames(page, 9)
        forward, look = (
            page.locator(f'[data-action="{name}"]') for name in ("keyboard_cond.forward", "mouse_cond.right")
        )
        forward.scroll_into_view_if_needed()
        fingers = page.context.new_cdp_session(page)

        def touch(kind: str, *buttons: Any) -> None:
            boxes = [button.bounding_box() for button in buttons]
            points = [
                {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "id": number}
                for number, box in enumerate(boxes)
            ]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        touch("touchStart", forward)
        touch("touchStart", forward, look)
        expect(forward).to_have_attribute("aria-pressed", "true")
        expect(look).to_have_attribute("aria-pressed", "true")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        touch("touchEnd")
        expect(forward).to_have_attribute("aria-pressed", "false")
        expect(look).to_have_attribute("aria-pressed", "false")
        expect(page.locator("[data-meter=reaction]")).to_contain_text("s", timeout=LIMIT_MS)


def test_world_is_steered_by_a_gamepad(browser: Any, gateway: Gateway, tmp_path: Path) -> None:
    """Chromium has no gamepad of its own for tests, so a stub stands in the place of the browser's list."""
    with opened(browser, f"{gateway.url}/#/world") as page:
        page.evaluate("navigator.getGamepads = () => [null, window.gamepad ?? null]")
        begin_world(page, picture(tmp_path))
        wait_for_frames(page, 9)
        forward, left, look = (
            page.locator(f'[data-action="{name}"]')
            for name in ("keyboard_cond.forward", "keyboard_cond.left", "mouse_cond.right")
        )
        buttons = "Array.from({length: 17}, (_, at) => ({pressed: at === 14}))"
        page.evaluate(f"window.gamepad = {{axes: [0, -0.9, 0.8, 0.1], buttons: {buttons}}}")
        for button in (forward, left, look):
            expect(button).to_have_attribute("aria-pressed", "true")
        assert violations(page) == []
        page.evaluate("window.gamepad = null")
        for button in (forward, left, look):
            expect(button).to_have_attribute("aria-pressed", "false")
        expect(page.locator("[data-meter=reaction]")).to_contain_text("s", timeout=LIMIT_MS)


def test_world_is_saved_as_a_file_and_goes_on_from_it(browser: Any, gateway: Gateway, tmp_path: Path) -> None:
    saved = tmp_path / "saved.world"
    with opened(browser, f"{gateway.url}/#/world") as page:
        begin_world(page, picture(tmp_path))
        wait_for_frames(page, 21)
        with page.expect_download() as download:
            page.get_by_role("button", name="Save", exact=True).click()
        download.value.save_as(saved)
        page.get_by_role("button", name="End", exact=True).click()
        page.set_input_files("#world-file", saved)
        wait_for_frames(page, 12)
        page.get_by_role("button", name="End", exact=True).click()
        damaged = tmp_path / "damaged.world"
        damaged.write_bytes(saved.read_bytes()[:-1000])
        page.set_input_files("#world-file", damaged)
        expect(page.get_by_role("alert")).to_contain_text("state")


def test_world_goes_on_after_its_connection_was_lost(browser: Any, gateway: Gateway, tmp_path: Path) -> None:
    connections: list[tuple[Any, Any]] = []
    cut: list[Any] = []

    def join(route: Any) -> None:
        server = route.connect_to_server()
        route.on_message(lambda message: server in cut or server.send(message))
        connections.append((route, server))

    with opened(browser, f"{gateway.url}/#/world") as page:
        page.route_web_socket(re.compile("/v1/realtime/video"), join)
        # A page that is left while it loads says that its files did not come.
        expect(page.get_by_role("button", name="Begin").last).to_be_visible()
        page.reload()
        begin_world(page, picture(tmp_path))
        wait_for_frames(page, 9)
        viewer, server = connections[0]
        cut.append(server)
        server.close()
        viewer.close(code=3001)
        deadline = time.monotonic() + LIMIT_MS / 1000
        while len(connections) < 2:
            assert time.monotonic() < deadline
            page.wait_for_timeout(100)
        seen = int(page.locator("[data-meter=frames]").inner_text())
        wait_for_frames(page, seen + 36)
        assert len(connections) == 2 and "resume=" in connections[1][0].url
        expect(page.locator(".world-status")).to_be_hidden()


def test_second_viewer_waits_in_line_until_the_first_has_left(
    browser: Any, gateway: Gateway, tmp_path: Path
) -> None:
    first = picture(tmp_path)
    with opened(browser, f"{gateway.url}/#/world") as one, opened(browser, f"{gateway.url}/#/world") as two:
        begin_world(one, first)
        wait_for_frames(one, 9)
        begin_world(two, first)
        expect(two.locator(".world-status")).to_contain_text("number 1 of 1 in line", timeout=LIMIT_MS)
        one.get_by_role("button", name="End", exact=True).click()
        wait_for_frames(two, 9)


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


@pytest.mark.long
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
@pytest.mark.parametrize("view", ["world", "listen", "motion"])
def test_view_fits_a_phone_and_excludes_nobody(
    browser: Any, gateway: Gateway, view: str, scheme: str
) -> None:
    with opened(browser, f"{gateway.url}/#/{view}", color_scheme=scheme) as page:
        expect(page.locator("main button:visible").first).to_be_visible()
        assert violations(page) == []
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page) == []
