"""Click at random in the studio of a running gateway: `make chaos-studio URL=http://127.0.0.1:8080`.

A browser presses buttons, follows tabs, types and chooses, one action after another. Each half minute, the
memory of the tab and of the gateway is measured, after the tab has collected its garbage. In the end no
script may have failed, no error may be in the console, and neither memory may have grown.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
from playwright.sync_api import Error, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
MEASURE_S = 30.0
WARM_UP_SHARE = 0.3
"""Share of the time after which memory must stay as it is: until then caches fill."""
MOST_GROWTH = 1.3
WORDS = ("red", "blue", "ball", "ring", "grows", "falls", "on", "sand", "snow")
VISIBLE = ":is(button, summary, select, input, textarea, a.tab):visible:not([disabled])"
# A refused request is an answer that the page shows; the browser writes each to the console.
EXPECTED = "Failed to load resource"


@dataclass
class Measured:
    """Course of a run.

    Attributes:
        problems: Errors of scripts, and errors in the console.
        tab_bytes: Memory of the tab's scripts after each half minute.
        gateway_bytes: Memory of the gateway's process after each half minute.
    """

    problems: list[str] = field(default_factory=list)
    tab_bytes: list[float] = field(default_factory=list)
    gateway_bytes: list[float] = field(default_factory=list)


def main() -> int:
    """Click for the time that the command line asks for; return 1 where anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the gateway")
    parser.add_argument("--pid", type=int, default=0, help="process of the gateway, to measure its memory")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    measured = Measured()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page()
        page.set_default_timeout(2000)
        page.on("pageerror", lambda error: measured.problems.append(str(error)))
        page.on("console", lambda line: _note(line, measured))
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.goto(asked.url)
        clicks = _click(page, measured, asked.minutes * 60, random.Random(asked.seed), asked.pid)
        browser.close()
    growths = {"tab": _growth(measured.tab_bytes), "gateway": _growth(measured.gateway_bytes)}
    print(f"{clicks} actions, {len(measured.problems)} errors, growth {growths}")
    for problem in measured.problems[:20]:
        print(f"  {problem}")
    return int(bool(measured.problems) or any(growth > MOST_GROWTH for growth in growths.values()))


def _note(line: Any, measured: Measured) -> None:
    if line.type == "error" and EXPECTED not in line.text:
        measured.problems.append(line.text)


def _click(page: Page, measured: Measured, limit_s: float, chance: random.Random, process: int) -> int:
    """Act until the time is over, and return the number of actions."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    end_s, next_s, count = time.monotonic() + limit_s, 0.0, 0
    while time.monotonic() < end_s:
        count += _act(page, chance)
        if time.monotonic() < next_s:
            continue
        next_s = time.monotonic() + MEASURE_S
        session.send("HeapProfiler.collectGarbage")
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        measured.tab_bytes.append(metrics["JSHeapUsedSize"])
        if process:
            measured.gateway_bytes.append(psutil.Process(process).memory_info().rss)
        tab = f"{metrics['Nodes']:.0f} nodes, tab {metrics['JSHeapUsedSize'] / 1e6:.1f} MB"
        gateway = f", gateway {measured.gateway_bytes[-1] / 1e6:.0f} MB" if process else ""
        print(f"{count} actions, {tab}{gateway}")
    return count


def _act(page: Page, chance: random.Random) -> int:
    """Use one control at random; return 1 if it could be used."""
    try:
        if page.url == "about:blank":
            page.go_back()
        controls = page.locator(VISIBLE)
        control = controls.nth(chance.randrange(max(1, controls.count())))
        tag, kind = control.evaluate("each => [each.tagName, each.type]")
        if tag == "SELECT":
            # The list may be gone meanwhile, and has no option then.
            control.select_option(index=chance.randrange(max(1, control.locator("option").count())))
        elif tag == "TEXTAREA" or kind in ("text", "search"):
            control.fill(" ".join(chance.sample(WORDS, 4)))
        elif kind == "number":
            control.fill(str(chance.choice((1, 2, 4, 5, 16, 32, 64))))
        elif kind != "file":
            control.click()
    except Error:
        # What was there a moment ago may be gone, or lie below a dialog.
        page.keyboard.press("Escape")
        return 0
    return 1


def _growth(values: list[float]) -> float:
    """Return the mean of the last third of the measurements, as a share of that after the warm-up."""
    if len(values) < 4:
        return 1.0
    begin = int(len(values) * WARM_UP_SHARE)
    third = max(1, (len(values) - begin) // 3)
    early, late = values[begin : begin + third], values[-third:]
    return round((sum(late) / len(late)) / (sum(early) / len(early)), 3)


if __name__ == "__main__":
    raise SystemExit(main())
