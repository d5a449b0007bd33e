"""The studio before a real Triton that turns pictures into videos section by section."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from framepack_fixtures import small_repository
from gateway_fixtures import Gateway, running_gateway
from playwright.sync_api import expect
from studio_page import CLIPBOARD, PHONE, chromium, opened, paste_picture, violations

from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

# Sheets of the sections as the page shows them: for each, the cells from left to right that are filled.
KEEP_SHEETS = """() => {
  window.sheets = new Map();
  new MutationObserver(() => {
    const image = document.querySelector(".stage-preview");
    if (image) sheets.set(image.src, null);
  }).observe(document.body, {subtree: true, childList: true, attributes: true});
}"""
FILLED_CELLS = """async sections => {
  const found = [];
  for (const source of sheets.keys()) {
    const image = new Image();
    image.src = source;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const cells = Array.from({length: sections}, (_, at) => {
      const middle = Math.floor(((at + 0.5) / sections) * image.width);
      const {data} = context.getImageData(middle - 4, image.height / 2 - 4, 8, 8);
      return !data.every((value, place) => place % 4 === 3 || Math.abs(value - 120) < 6);
    });
    found.push(cells);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository, _ = small_repository(shared)
    with (
        Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as server,
        running_gateway([server.grpc_url], tmp_path_factory.mktemp("studio_sections")) as running,
    ):
        yield running


# Whether the page sees a section depends on the time that a tiny one takes.
@pytest.mark.long
@pytest.mark.parametrize("order", ["forward", "inverted"])
def test_sections_appear_as_they_are_made_in_either_order(browser: Any, gateway: Gateway, order: str) -> None:
    """A pasted picture and a sentence become a video of three sections."""
    with opened(browser, gateway.url, permissions=CLIPBOARD) as page:
        page.get_by_label("Prompt", exact=True).fill(f"a ball, {order}")
        paste_picture(page)
        expect(page.locator("img.drop-preview")).to_have_js_property("naturalWidth", 90)
        values = {"Width": "32", "Height": "32", "Length": "3.6", "Steps": "100", "Seed": "1"}
        for label, value in values.items():
            field = page.get_by_label(label, exact=True)
            is_list = field.evaluate("field => field.tagName") == "SELECT"
            field.select_option(value) if is_list else field.fill(value)
        page.get_by_text("More settings").click()
        page.get_by_label("Order", exact=True).select_option(order)
        page.evaluate(KEEP_SHEETS)
        page.get_by_role("button", name="Make the video").click()
        stage = page.get_by_role("region", name="Chosen video")
        # Before, the stage shows the video of the other order.
        expect(stage).to_contain_text(f"a ball, {order}")
        expect(stage.locator("video")).to_have_js_property("readyState", 4)
        sheets = page.evaluate(FILLED_CELLS, 3)
    begun = [cells for cells in sheets if any(cells) and not all(cells)]
    assert begun, sheets
    assert all(cells == sorted(cells, reverse=order == "forward") for cells in begun), sheets


def test_picture_of_the_camera_becomes_the_first_frame_on_a_phone(browser: Any, gateway: Gateway) -> None:
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "permissions": ["camera"]}
    with opened(browser, gateway.url, **options) as page:
        page.get_by_role("button", name="Use the camera").tap()
        expect(page.locator("video.drop-video")).to_have_js_property("readyState", 4)
        assert violations(page) == []
        page.get_by_role("button", name="Take the picture").tap()
        expect(page.locator("img.drop-preview")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Make the video").tap()
        expect(page.get_by_text("Please fill this in.")).to_be_visible()
