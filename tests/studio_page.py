"""A browser for the tests of the studio: Debian's Chromium by Playwright, and what a page must never do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
LIMIT_MS = 120_000
"""Most time that a page may take; far more than it takes while four files of tests run at a time."""
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
CLIPBOARD = ["clipboard-read", "clipboard-write"]
AXE = Path(__file__).parents[1] / ".studio-tools/node_modules/axe-core/axe.min.js"
"""Checker of accessibility, which `make studio-check` installs."""


@contextlib.contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Run a browser until the block ends; skip the test where there is none, except in CI."""
    if not CHROMIUM.exists():
        assert not os.environ.get("CI"), "Chromium must be installed in CI; try apt-get install chromium"
        pytest.skip("Chromium is not installed")
    from playwright import sync_api

    sync_api.expect.set_options(timeout=LIMIT_MS)
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", *arguments])
        yield running
        running.close()


@contextlib.contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """Open a page until the block ends; then no script has failed, and nothing came from another server."""
    problems: list[str] = []
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: line.type == "error" and _note(line.text, problems))
    page.on("request", lambda asked: asked.url.startswith("http") and _check(asked.url, url, problems))
    page.on("response", lambda answer: _check_file(answer, problems))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    assert not problems, problems


def _check(asked: str, url: str, problems: list[str]) -> None:
    if not asked.startswith(url.partition("#")[0].rstrip("/")):
        problems.append(f"the page asks {asked}")


def _note(text: str, problems: list[str]) -> None:
    # The browser writes every refused request to the console; the page shows it to the person.
    if "Failed to load resource" not in text:
        problems.append(text)


def _check_file(answer: Any, problems: list[str]) -> None:
    if "/studio/" in answer.url and answer.status >= 400:
        problems.append(f"{answer.status} {answer.url}")


def paste_picture(page: Any) -> None:
    """Paste an opaque RGBA picture from the clipboard; the page needs the permissions :data:`CLIPBOARD`."""
    page.evaluate(
        """async () => {
          const canvas = new OffscreenCanvas(90, 70);
          const context = canvas.getContext("2d");
          context.fillStyle = "white";
          context.fillRect(0, 0, 90, 70);
          context.fillStyle = "teal";
          context.fillRect(20, 10, 40, 40);
          const blob = await canvas.convertToBlob({type: "image/png"});
          await navigator.clipboard.write([new ClipboardItem({"image/png": blob})]);
        }"""
    )
    page.keyboard.press("Control+V")


def violations(page: Any) -> list[str]:
    """Return what axe-core finds wrong with a page, by rule and element; skip the test without axe-core."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; try make studio-check")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def assert_view_fits_a_phone(browser: Any, url: str, scheme: str) -> None:
    """Assert that a view's contrast, labels and width are right on a desktop and on a phone."""
    from playwright.sync_api import expect

    with opened(browser, url, color_scheme=scheme) as page:
        expect(page.locator("main button:visible").first).to_be_visible()
        assert violations(page) == []
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page) == []
