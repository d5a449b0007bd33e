"""The studio's view of the fleet in Debian's Chromium, before a real Triton."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_fixtures import Gateway, gateway_keys, running_gateway
from playwright.sync_api import expect
from studio_page import PHONE, chromium, violations

from slipway_serving.triton.server import Server

NOBODY = "127.0.0.1:9"
LIMIT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a server whose metrics it reads, and the address of one that does not answer."""
    port = str(server.config.metrics_port)
    addresses = [server.grpc_url, NOBODY]
    folder = tmp_path_factory.mktemp("studio_fleet")
    with running_gateway(addresses, folder, "--triton-metrics-port", port) as running:
        yield running


@contextlib.contextmanager
def opened(browser: Any, gateway: Gateway, **options: Any) -> Iterator[Any]:
    """Open the view; at the end, no script has failed and no error of a script is in the console."""
    problems: list[str] = []
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{gateway.url.replace('0.0.0.0', '127.0.0.1')}/#/fleet")
    try:
        yield page
    finally:
        context.close()
    assert problems == []


def row(page: Any, model: str) -> Any:
    """The row of a model, in whichever table it is."""
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=model, exact=True))


def tile(page: Any, title: str) -> Any:
    return page.locator(".fleet-tile").filter(has_text=title).locator("dd")


def test_operator_sees_servers_with_their_load(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway) as page:
        expect(tile(page, "Servers ready")).to_have_text("1 of 2")
        silent = page.locator(".fleet-servers > li").filter(has_text=NOBODY)
        expect(silent.locator(".badge")).to_have_text("unreachable")
        expect(silent.locator(".fleet-reason")).not_to_be_empty()
        working = page.locator(".fleet-servers > li").filter(has_not_text=NOBODY)
        expect(working.locator(".badge")).to_have_text("ready")
        expect(working.get_by_role("meter", name="Memory")).to_have_attribute(
            "aria-valuetext", re.compile(r"of .* GiB")
        )


def test_operator_sees_what_was_exported_how(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway) as page:
        network = row(page, "wan_t2v_denoiser_high")
        expect(network).to_contain_text("onnxruntime")
        expect(network).to_contain_text("fp32")
        expect(network).to_contain_text("% of the bound")
        expect(row(page, "wan_t2v").locator(".badge")).to_have_text("ready")


def test_operator_sees_the_queue_and_the_text_of_a_failure(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway) as page:
        expect(page.get_by_text("Nothing has failed in the last hour.")).to_be_visible()
        job = gateway.create(prompt="too slow", steps=100, timeout_s=0.05)
        failed = gateway.until(job["id"], "failed")
        failures = page.get_by_role("region", name="Failures of the last hour")
        expect(failures).to_contain_text(failed["error"]["message"])
        expect(failures).to_contain_text(job["id"])
        expect(tile(page, "Failures, last hour")).to_have_text("1")
        expect(row(page, "wan_t2v").locator("td").last).to_have_text("1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_view_fits_a_phone_and_excludes_nobody(browser: Any, gateway: Gateway, scheme: str) -> None:
    failed = gateway.create(prompt="too slow too", steps=100, timeout_s=0.05)
    gateway.until(failed["id"], "failed")
    with opened(browser, gateway, color_scheme=scheme) as page:
        expect(row(page, "wan_t2v_denoiser_high")).to_contain_text("% of the bound")
        expect(page.get_by_role("region", name="Failures of the last hour")).to_contain_text("wan_t2v")
        assert violations(page) == []
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert violations(page) == []


def test_view_tells_why_it_is_empty_when_the_key_does_not_administer(
    browser: Any, server: Server, tmp_path: Path
) -> None:
    secrets = {}
    for name, options in (("caller", ()), ("operator", ("--admin",))):
        made = gateway_keys(tmp_path, "create", name, *options)
        (secrets[name],) = (word for word in made.split() if word.startswith("sk-slipway-"))
    with running_gateway([server.grpc_url], tmp_path, "--host", "0.0.0.0", key=secrets["caller"]) as keyed:
        for name, secret in secrets.items():
            with opened(browser, keyed) as page:
                page.get_by_role("textbox", name="Key").fill(secret)
                page.get_by_role("button", name="Use this key").click()
                if name == "caller":
                    expect(page.get_by_text("Only a key that administers the gateway")).to_be_visible()
                    expect(page.locator(".fleet-tiles")).not_to_be_visible()
                else:
                    expect(tile(page, "Servers ready")).to_have_text("1 of 1")
