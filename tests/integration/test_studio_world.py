"""The studio's worlds in Debian's Chromium, before a real Triton; a tiny world is enough to be steered."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_fixtures import Gateway, running_gateway
from PIL import Image
from playwright.sync_api import expect
from studio_page import (
    CLIPBOARD,
    LIMIT_MS,
    PHONE,
    assert_view_fits_a_phone,
    chromium,
    opened,
    paste_picture,
    violations,
)
from world_fixtures import MODEL, exported_world

from slipway_serving.triton.server import Server, ServerConfig


@pytest.fixture(scope="module")
def server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny world that takes one viewer at a time."""
    repository = tmp_path_factory.mktemp("studio_world") / "repository"
    shutil.copytree(exported_world(shared), repository)
    config = repository / MODEL / "config.pbtxt"
    text = config.read_text()
    config.write_text(re.sub(r'(key: "max_sessions" value \{ string_value: ")8', r"\g<1>1", text))
    assert config.read_text() != text
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway([server.grpc_url], tmp_path_factory.mktemp("studio_world_gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium with a camera."""
    with chromium("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream") as running:
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_world_fits_a_phone_and_excludes_nobody(browser: Any, gateway: Gateway, scheme: str) -> None:
    assert_view_fits_a_phone(browser, f"{gateway.url}/#/world", scheme)
