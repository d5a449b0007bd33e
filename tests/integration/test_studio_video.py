"""The studio's view of videos in Debian's Chromium, before a real Triton: what a person does, and sees."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from gate import Gate
from gateway_fixtures import Gateway, gateway_keys, running_gateway
from PIL import Image
from playwright.sync_api import expect
from server_fixtures import wait_until
from studio_page import PHONE, chromium, opened, violations
from toy_fixtures import PICTURE, installed_toy, toy_repository

from slipway_serving.triton.server import Server, ServerConfig

FIRST_PAINT_MS, MOST_BYTES = 2_000, 300_000
STEPS = 20


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway([server.grpc_url], tmp_path_factory.mktemp("studio_video")) as running:
        yield running


def fill(page: Any, prompt: str, steps: int = 4, seed: int = 1) -> None:
    """Fill in the form for a small video."""
    page.get_by_label("Prompt", exact=True).fill(prompt)
    for side in ("Width", "Height"):
        put(page, side, "32")
    put(page, "Frames", "5")
    put(page, "Steps", str(steps))
    put(page, "Seed", str(seed))


def put(page: Any, label: str, value: str) -> None:
    """Set a field, whether it is a list or a number."""
    field = page.get_by_label(label, exact=True)
    if field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)


def make(page: Any) -> None:
    page.get_by_role("button", name="Make the video").click()


def stage(page: Any) -> Any:
    return page.get_by_role("region", name="Chosen video")


def test_video_appears_when_a_person_types_a_sentence(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway.url) as page:
        fill(page, "a red ball", seed=5)
        make(page)
        expect(stage(page).locator("video")).to_have_js_property("readyState", 4)
        expect(stage(page)).to_contain_text("a red ball")
        expect(stage(page).get_by_role("link", name="Download")).to_have_attribute(
            "href", re.compile("^blob:")
        )
        card = page.locator(".gallery li").first
        expect(card.locator("img")).to_have_js_property("complete", True)
        expect(card).to_contain_text("seed 5")
        page.reload()
        expect(page.locator(".gallery li").first).to_contain_text("a red ball")
    newest = gateway.http.get("/v1/videos", params={"limit": 1}).json()["data"][0]
    assert (newest["seed"], newest["size"], newest["steps"], newest["status"]) == (5, "32x32", 4, "completed")


def test_first_paint_is_quick_and_the_files_are_few_bytes(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway.url) as page:
        page.get_by_label("Prompt", exact=True).wait_for()
        paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        sizes = page.evaluate(
            "performance.getEntriesByType('resource').filter(each => each.name.includes('/studio/'))"
            ".reduce((sum, each) => sum + each.decodedBodySize, 0)"
        )
    print(f"first paint after {paint_ms:.0f} ms, {sizes} bytes")
    assert paint_ms < FIRST_PAINT_MS
    assert 0 < sizes < MOST_BYTES


def test_video_is_made_with_the_keyboard_alone(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway.url) as page:
        fill(page, "a blue ring", seed=6)
        page.get_by_label("Prompt", exact=True).focus()
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent.includes('Make the video')"):
                break
        page.keyboard.press("Enter")
        expect(stage(page).locator("video")).to_have_js_property("readyState", 4)
        expect(stage(page)).to_contain_text("a blue ring")


def test_refusal_is_shown_at_its_field_when_a_value_breaks_its_rule(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway.url) as page:
        fill(page, "a ball")
        put(page, "Steps", "500")
        make(page)
        expect(page.get_by_text("Please give a value of 1 to 100.")).to_be_visible()
        assert page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
        put(page, "Steps", "4")
        page.get_by_text("More settings").click()
        put(page, "Guidance start", "0.9")
        put(page, "Guidance stop", "0.5")
        page.get_by_text("More settings").click()
        # Only the gateway knows this rule; the page opens what is folded and points at the field.
        with page.expect_response(lambda answer: answer.status == 400):
            make(page)
        expect(page.locator(".more .field-error:visible")).to_contain_text("guidance_st")
        page.get_by_label("Prompt", exact=True).fill("")
        make(page)
        expect(page.get_by_text("Please fill this in.")).to_be_visible()


def test_form_is_restored_when_a_finished_file_is_dropped(browser: Any, gateway: Gateway) -> None:
    job = gateway.until(gateway.create(prompt="a green star", seed=77, frames=5, size="32x32", steps=3)["id"])
    file = list(gateway.content(job["id"]))
    with opened(browser, gateway.url) as page:
        fill(page, "another one")
        page.evaluate(
            """bytes => {
              const transfer = new DataTransfer();
              transfer.items.add(new File([new Uint8Array(bytes)], "star.mp4", {type: "video/mp4"}));
              for (const type of ["dragover", "drop"])
                document.body.dispatchEvent(new DragEvent(type, {dataTransfer: transfer, bubbles: true}));
            }""",
            file,
        )
        expect(page.locator(".request .note")).to_have_text("The form has the settings of star.mp4.")
        expect(page.get_by_label("Prompt", exact=True)).to_have_value("a green star")
        expect(page.get_by_label("Seed", exact=True)).to_have_value("77")
        expect(page.get_by_label("Steps", exact=True)).to_have_value("3")


def test_liked_drafts_are_continued_and_the_others_deleted(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway.url) as page:
        fill(page, "a draft of a ball", steps=5, seed=40)
        page.get_by_role("button", name="Try 4 seeds as drafts").click()
        drafts = page.locator(".draft")
        expect(drafts).to_have_count(4)
        expect(page.locator(".draft video")).to_have_count(4)
        # What has stopped is seen among all videos too.
        history = page.locator(".gallery li", has_text="a draft of a ball").locator("video")
        expect(history).to_have_count(4)
        expect(history.first).to_have_js_property("readyState", 4)
        drafts.nth(1).get_by_role("button", name="Continue").click()
        expect(drafts.nth(1).get_by_role("button", name="Show")).to_be_visible()
        page.get_by_role("button", name="Done").click()
        expect(drafts).to_have_count(0)
        expect(page.locator(".gallery li", has_text="a draft of a ball")).to_have_count(1)
    jobs = gateway.http.get("/v1/videos", params={"limit": 20}).json()["data"]
    left = [job for job in jobs if job["request"]["prompt"] == "a draft of a ball"]
    assert [(job["seed"], job["status"]) for job in left] == [(41, "completed")]


def test_two_videos_are_compared_frame_by_frame(browser: Any, gateway: Gateway) -> None:
    jobs = [
        gateway.create(prompt=f"compared {number}", seed=seed, frames=5, size="32x32", steps=2)
        for number, seed in enumerate((1, 1, 2))
    ]
    # The first two differ in their prompts, the last in its seed.
    for job in jobs:
        gateway.until(job["id"])
    with opened(browser, gateway.url) as page:
        card = page.locator(".gallery li")
        card.filter(has_text="compared 0").get_by_role("button").click()
        expect(stage(page)).to_contain_text("compared 0")
        page.get_by_role("button", name="Compare", exact=True).click()
        card.filter(has_text="compared 2").get_by_role("button").click()
        dialog = page.get_by_role("dialog", name="Compare two videos")
        expect(dialog.get_by_text(re.compile(r"PSNR [\d.]+ dB on average"))).to_be_visible()
        dialog.get_by_label("Frame", exact=True).fill("3")
        shown = dialog.get_by_text(re.compile(r"Frame 4 of 5 · PSNR [\d.]+ dB"))
        expect(shown).to_be_visible()
        found_db = float(re.findall(r"PSNR ([\d.]+) dB", shown.inner_text())[0])
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_have_count(0)
    first, second = (fourth_frame(gateway.content(jobs[number]["id"])) for number in (0, 2))
    # A browser converts colours in a way of its own.
    assert found_db == pytest.approx(10 * np.log10(255**2 / np.mean((first - second) ** 2)), abs=1.0)


def fourth_frame(mp4: bytes) -> np.ndarray:
    with av.open(io.BytesIO(mp4)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return frames[3].astype(np.float64)


def test_history_is_searched_and_a_video_deleted(browser: Any, gateway: Gateway) -> None:
    job = gateway.until(gateway.create(prompt="a lonely cube", seed=3, frames=5, size="32x32")["id"])
    with opened(browser, gateway.url) as page:
        page.get_by_label("Search prompts and seeds").fill("lonely")
        cards = page.locator(".gallery li")
        expect(cards).to_have_count(1)
        cards.get_by_role("button").click()
        page.get_by_role("button", name="Again with a new seed").click()
        expect(cards).to_have_count(2)
        expect(stage(page).locator("video")).to_have_js_property("readyState", 4)
        cards.last.get_by_role("button").click()
        stage(page).get_by_role("button", name="Delete").click()
        expect(cards).to_have_count(1)
    assert gateway.http.get(f"/v1/videos/{job['id']}").status_code == 404


class TestUnderWay:
    """Videos that wait at a gate, so that what a person sees of a running one stays so."""

    @pytest.fixture
    def slow(self, gated_server: tuple[Server, Gate], tmp_path: Path) -> Iterator[tuple[Gateway, Gate]]:
        server, gate = gated_server
        gate.let(0)
        with running_gateway([server.grpc_url], tmp_path, "--concurrency", "1") as gateway:
            yield gateway, gate
            for job in gateway.http.get("/v1/videos").json()["data"]:
                gateway.http.delete(f"/v1/videos/{job['id']}")
            gate.open()

    def test_work_stops_when_the_person_cancels(self, browser: Any, slow: tuple[Gateway, Gate]) -> None:
        gateway, gate = slow
        with opened(browser, gateway.url) as page:
            fill(page, "a long one", steps=STEPS)
            make(page)
            gate.let(6)
            expect(stage(page).get_by_text(re.compile(rf"step [1-9]\d* of {STEPS}"))).to_be_visible()
            expect(stage(page).get_by_role("img", name="The video as it is now")).to_be_visible()
            expect(stage(page).get_by_role("progressbar")).to_be_visible()
            stage(page).get_by_role("button", name="Cancel").click()
            expect(page.locator(".gallery li")).to_have_count(0)
        calls = gate.calls
        gate.let(2)
        wait_until(lambda: "running 0" in running(gateway), "no running job")
        gate.open()
        assert gate.calls <= calls + 2

    def test_video_goes_on_when_it_was_paused(self, browser: Any, slow: tuple[Gateway, Gate]) -> None:
        gateway, gate = slow
        with opened(browser, gateway.url) as page:
            fill(page, "a paused one", steps=STEPS)
            make(page)
            gate.let(4)
            expect(stage(page).get_by_text(re.compile(rf"step [1-9]\d* of {STEPS}"))).to_be_visible()
            stage(page).get_by_role("button", name="Pause").click()
            resume = stage(page).get_by_role("button", name="Resume")
            # The video stops at the first step that ends after the server has heard of the pause.
            for _ in range(STEPS - 5):
                if resume.is_visible():
                    break
                gate.let(1)
                page.wait_for_timeout(500)
            expect(resume).to_be_visible()
            page.reload()
            gate.open()
            resume.click()
            expect(stage(page).locator("video")).to_have_js_property("readyState", 4)

    def test_queue_is_reordered_edited_and_duplicated(self, browser: Any, slow: tuple[Gateway, Gate]) -> None:
        gateway, gate = slow
        first = gateway.create(prompt="in the way", frames=5, size="32x32", steps=STEPS)
        gate.let(1)
        wait_until(lambda: gateway.job(first["id"])["status"] == "in_progress", "the first job runs")
        for name in ("one", "two"):
            gateway.create(prompt=f"waiting {name}", frames=5, size="32x32", steps=1)
        with opened(browser, gateway.url) as page:
            rows = page.locator(".queue-row")
            expect(rows).to_have_count(2)
            page.get_by_role("button", name="Move up: waiting two").click()
            expect(rows.first).to_contain_text("waiting two")
            # The job that was moved keeps the focus, and its place can be changed by the keyboard alone.
            down = page.get_by_role("button", name="Move down: waiting two")
            expect(down).to_be_focused()
            page.keyboard.press("Enter")
            expect(rows.first).to_contain_text("waiting one")
            up = page.get_by_role("button", name="Move up: waiting two")
            expect(up).to_be_focused()
            page.keyboard.press("Enter")
            expect(rows.first).to_contain_text("waiting two")
            page.get_by_role("button", name="Change: waiting one").click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label("Prompt", exact=True).fill("waiting three")
            dialog.get_by_role("button", name="Save").click()
            expect(rows.last).to_contain_text("waiting three")
            page.get_by_role("button", name="Duplicate: waiting two").click()
            expect(rows).to_have_count(3)
            page.get_by_role("button", name="Remove: waiting three").click()
            expect(rows).to_have_count(2)
            page.reload()
            expect(rows.first).to_contain_text("waiting two")


def running(gateway: Gateway) -> str:
    """Return how many jobs run, by the gateway's metrics."""
    page = gateway.http.get("/metrics").text
    counts = re.findall(r"^slipway_gateway_jobs_running\{.*\} (\S+)$", page, re.MULTILINE)
    return f"running {sum(int(float(each)) for each in counts)}"


@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_page_is_accessible_and_fits_the_screen(
    browser: Any, gateway: Gateway, look: str, size: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"color_scheme": look, "reduced_motion": "reduce"}
    if size == "phone":
        options |= {"viewport": PHONE, "has_touch": True}
    job = gateway.until(gateway.create(prompt="a seen ball", seed=9, frames=5, size="32x32")["id"])
    with opened(browser, gateway.url, **options) as page:
        expect(stage(page).locator("video")).to_be_visible()
        page.get_by_text("More settings").click()
        # Nobody asked for motion: no video plays by itself, and nothing else moves.
        assert stage(page).locator("video").evaluate("video => video.paused && !video.autoplay")
        assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
        page.wait_for_timeout(100)
        assert page.evaluate("document.getAnimations().filter(each => each.playState === 'running')") == []
        page.screenshot(path=tmp_path / f"{look}-{size}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        assert violations(page) == []
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.get_by_role("link", name="Fleet").click()
        expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
        assert page.evaluate("scrollY") == 0
    assert job["status"] == "completed"


@pytest.mark.long
def test_form_of_another_distributions_model_needs_no_line_of_script(
    browser: Any, shared: Path, tmp_path: Path
) -> None:
    with installed_toy(tmp_path / "toy"):
        config = ServerConfig(toy_repository(shared), http_port=0, grpc_port=0, metrics_port=0)
        with Server(config) as server, running_gateway([server.grpc_url], tmp_path) as gateway:
            file = tmp_path / "first.png"
            Image.fromarray(PICTURE).save(file)
            with opened(browser, f"{gateway.url}/#/toy") as page:
                # The distribution has a view of its own, which it writes like the studio's.
                expect(page.get_by_role("heading", name="Toys")).to_be_visible()
                page.get_by_role("link", name="Video").click()
                page.set_input_files("input[type=file]", file)
                put(page, "Seed", "4")
                page.get_by_text("More settings").click()
                put(page, "Blocks", "2")
                make(page)
                expect(stage(page).locator("video")).to_have_js_property("readyState", 4)
            job = gateway.http.get("/v1/videos").json()["data"][0]
            assert (job["model"], job["status"], job["request"]["blocks"]) == ("toy_video", "completed", 2)


def test_key_is_asked_for_when_the_gateway_needs_one(browser: Any, server: Server, tmp_path: Path) -> None:
    key = re.findall(r"sk-slipway-\S+", gateway_keys(tmp_path, "create", "studio"))[0]
    with running_gateway([server.grpc_url], tmp_path, "--host", "0.0.0.0", key=key) as gateway:
        url = gateway.url.replace("0.0.0.0", "127.0.0.1")
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        dialog = page.get_by_role("dialog", name="A key is needed")
        dialog.get_by_label("Key").fill("sk-slipway-wrong")
        dialog.get_by_role("button", name="Use this key").click()
        expect(page.get_by_text("The gateway does not know this key")).to_be_visible()
        page.get_by_role("textbox", name="Key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        page.get_by_label("Prompt", exact=True).wait_for()
        context.close()


def test_page_is_not_served_when_the_operator_leaves_it_out(tmp_path: Path) -> None:
    with running_gateway(["127.0.0.1:9"], tmp_path, "--no-studio") as gateway:
        assert [httpx.get(gateway.url + path).status_code for path in ("/", "/studio/main.js")] == [404, 404]
        assert gateway.http.get("/v1/models").status_code == 200


def test_page_waits_for_models_when_no_server_is_there(browser: Any, tmp_path: Path) -> None:
    with (
        running_gateway(["127.0.0.1:9"], tmp_path) as gateway,
        opened(browser, f"{gateway.url}/#/video") as page,
    ):
        expect(page.get_by_text(re.compile("No model is served yet|Servers ready"))).to_be_visible()
