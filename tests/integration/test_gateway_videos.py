"""Videos through a gateway before a real Triton: create, follow, download, vary, stop, continue, delete."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from gate import Gate
from gateway_fixtures import Gateway, events_of, mp4_frames, running_gateway
from PIL import Image
from server_fixtures import wait_until

from slipway_client import Client, TextToVideoRequest, Video
from slipway_serving.triton.server import Server

SIZE = {"frames": 5, "size": "32x32"}
STEPS = 20
"""Steps of a video under way; the first ones are those of the denoiser at the gate."""


def direct(server: Server, **fields: Any) -> np.ndarray:
    """Return the frames of the same video, made without a gateway."""
    request = TextToVideoRequest(frames=5, height=32, width=32, **fields)
    with Client(server.grpc_url) as client:
        (video,) = (event for event in client.generate(request) if isinstance(event, Video))
    return mp4_frames(video.data)


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway([server.grpc_url], tmp_path_factory.mktemp("gateway")) as running:
        yield running


def test_video_equals_a_direct_one_when_it_is_made_by_a_job(gateway: Gateway, server: Server) -> None:
    created = gateway.create(prompt="a red ball", seed=7, **SIZE)
    assert (created["object"], created["status"], created["progress"]) == ("video", "queued", 0)
    done = gateway.until(created["id"])
    assert done["status"] == "completed", done
    assert (done["progress"], done["size"], done["seed"], done["seconds"]) == (100, "32x32", 7, "0.3125")
    assert done["inference_time_s"] > 0
    assert set(done["stage_durations"]) >= {"denoising", "decoding", "storing"}
    assert done["request"]["steps"] == 4
    assert done["completed_at"] >= done["started_at"] >= done["created_at"]
    assert done["expires_at"] > done["completed_at"]
    np.testing.assert_array_equal(
        mp4_frames(gateway.content(created["id"])), direct(server, prompt="a red ball", seed=7, steps=4)
    )


def test_renditions_are_pictures_when_a_video_is_finished(gateway: Gateway) -> None:
    job = gateway.until(gateway.create(seed=8, **SIZE)["id"])
    assert Image.open(io.BytesIO(gateway.content(job["id"], "thumbnail"))).format == "WEBP"
    assert Image.open(io.BytesIO(gateway.content(job["id"], "spritesheet"))).format == "JPEG"
    status, error = gateway.error("GET", f"/v1/videos/{job['id']}/content?variant=draft")
    assert (status, error["code"]) == (404, "draft_not_found")


def test_file_tells_how_it_was_made_when_it_is_read_back(gateway: Gateway) -> None:
    job = gateway.until(gateway.create(prompt="a blue ring", seed=9, **SIZE)["id"])
    mp4 = gateway.content(job["id"])
    with av.open(io.BytesIO(mp4)) as container:
        tags = container.metadata
    assert tags["prompt"] == "a blue ring"
    assert "Seed: 9" in tags["parameters"]
    known = json.loads(tags["slipway"])
    assert (known["model"], known["request"]["seed"]) == ("wan_t2v", 9)
    assert len(known["manifest_digest"]) == 64
    answer = gateway.http.post("/v1/videos/settings", files={"file": ("a.mp4", mp4)})
    assert answer.status_code == 200, answer.text
    again = gateway.create(
        **{k: v for k, v in answer.json()["request"].items() if k != "priority"}, model="wan_t2v"
    )
    assert (
        mp4_frames(gateway.content(gateway.until(again["id"])["id"])).tobytes() == mp4_frames(mp4).tobytes()
    )


def test_form_is_a_job_when_its_fields_are_nested(gateway: Gateway) -> None:
    form = {
        "prompt": "a", "seconds": "0.3", "size": "32x32", "extra_body[num_inference_steps]": "3",
        "extra_params": '{"seed": 11}',
    }  # fmt: skip
    answer = gateway.http.post("/v1/videos", data=form)
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["steps"], job["seed"], job["request"]["frames"]) == (3, 11, 5)
    multipart = gateway.http.post("/v1/videos", files={name: (None, value) for name, value in form.items()})
    assert multipart.json()["id"] == job["id"]


def test_request_is_one_job_when_it_is_repeated(gateway: Gateway) -> None:
    fields = {"prompt": "twice", "seed": 12, "steps": 2, **SIZE}
    first, second = gateway.create(**fields), gateway.create(**fields)
    form = gateway.http.post("/v1/videos", data={name: str(value) for name, value in fields.items()})
    assert first["id"] == second["id"] == form.json()["id"]
    keyed = [
        gateway.http.post("/v1/videos", json=fields, headers={"idempotency-key": key}).json()["id"]
        for key in ("a", "a", "b")
    ]
    assert keyed[0] == keyed[1] != keyed[2]
    changed = gateway.http.post("/v1/videos", json={**fields, "steps": 3}, headers={"idempotency-key": "a"})
    assert changed.status_code == 400
    assert "idempotency" in changed.json()["error"]["message"].lower()


def test_jobs_are_paged_when_they_are_listed(gateway: Gateway) -> None:
    ids = [gateway.create(prompt=f"page {number}", steps=1, **SIZE)["id"] for number in range(3)]
    first = gateway.http.get("/v1/videos", params={"limit": 2}).json()
    assert [job["id"] for job in first["data"]] == [ids[2], ids[1]]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[2], ids[1], True)
    rest = gateway.http.get("/v1/videos", params={"limit": 1, "after": first["last_id"]}).json()
    assert rest["data"][0]["id"] == ids[0]
    oldest = gateway.http.get("/v1/videos", params={"order": "asc", "limit": 1}).json()["data"][0]
    assert oldest["created_at"] <= first["data"][0]["created_at"]
    for job_id in ids:
        gateway.until(job_id)


def test_events_tell_each_change_when_a_job_is_followed(gateway: Gateway) -> None:
    job = gateway.create(prompt="followed", steps=6, seed=13, **SIZE)
    events = events_of(gateway, job["id"])
    assert events[-1][0] == "video.completed"
    progress = [content["progress"] for name, content in events if name == "video.progress"]
    assert progress == sorted(progress)
    assert events[-1][1]["progress"] == 100
    previews = [content["preview"] for _, content in events if "preview" in content]
    assert all(preview.startswith("data:image/jpeg;base64,/9j/") for preview in previews)


def test_variation_keeps_the_seed_when_only_the_prompt_changes(gateway: Gateway, server: Server) -> None:
    job = gateway.until(gateway.create(prompt="one", seed=14, **SIZE)["id"])
    remixed = gateway.http.post(f"/v1/videos/{job['id']}/remix", json={"prompt": "two"}).json()
    assert (remixed["seed"], remixed["remixed_from_video_id"]) == (14, job["id"])
    gateway.until(remixed["id"])
    np.testing.assert_array_equal(
        mp4_frames(gateway.content(remixed["id"])), direct(server, prompt="two", seed=14, steps=4)
    )


def test_draft_shows_the_video_when_a_job_stops_after_a_step(gateway: Gateway, server: Server) -> None:
    job = gateway.create(prompt="draft", seed=15, steps=6, stop_after_step=2, **SIZE)
    paused = gateway.until(job["id"], "paused")
    assert (paused["draft_step"], paused["state_step"], paused["step"]) == (2, 2, 2)
    assert mp4_frames(gateway.content(job["id"], "draft")).shape == (5, 32, 32, 3)
    assert gateway.error("GET", f"/v1/videos/{job['id']}/content")[0] == 404
    resumed = gateway.http.post(f"/v1/videos/{job['id']}/resume")
    assert resumed.status_code == 200, resumed.text
    done = gateway.until(job["id"])
    assert (done["status"], done["attempts"]) == ("completed", 1), done
    np.testing.assert_array_equal(
        mp4_frames(gateway.content(job["id"])), direct(server, prompt="draft", seed=15, steps=6)
    )


def test_resumed_job_takes_other_values_when_they_may_change(gateway: Gateway) -> None:
    job = gateway.create(prompt="before", seed=16, steps=4, stop_after_step=1, **SIZE)
    gateway.until(job["id"], "paused")
    status, error = gateway.error("POST", f"/v1/videos/{job['id']}/resume", json={"seed": 3})
    assert (status, error["param"]) == (400, "seed")
    answer = gateway.http.post(f"/v1/videos/{job['id']}/resume", json={"prompt": "after"}).json()
    assert answer["request"]["prompt"] == "after"
    assert gateway.until(job["id"])["status"] == "completed"


def test_video_comes_at_once_when_the_caller_waits(gateway: Gateway) -> None:
    fields = {"prompt": "sync", "seed": 17, "steps": 2, **SIZE}
    answer = gateway.http.post("/v1/videos/sync", json=fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "video/mp4"
    assert float(answer.headers["x-inference-time-s"]) > 0
    assert "denoising" in json.loads(answer.headers["x-stage-durations"])
    assert mp4_frames(answer.content).shape == (5, 32, 32, 3)


def test_part_of_a_file_comes_when_a_range_is_asked(gateway: Gateway) -> None:
    job = gateway.until(gateway.create(prompt="range", seed=18, **SIZE)["id"])
    whole, path = gateway.content(job["id"]), f"/v1/videos/{job['id']}/content"
    part = gateway.http.get(path, headers={"range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, whole[4:8])
    assert part.headers["content-range"] == f"bytes 4-7/{len(whole)}"
    assert gateway.http.get(path, headers={"range": "bytes=-3"}).content == whole[-3:]
    status, error = gateway.error("GET", path, headers={"range": f"bytes={len(whole)}-"})
    assert (status, error["param"]) == (416, "range")
    etag = gateway.http.get(path).headers["etag"]
    assert gateway.http.get(path, headers={"if-none-match": etag}).status_code == 304


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "1280x720"}, "height"),
        ({"steps": "many"}, "steps"),
        ({"seconds": "90"}, "seconds"),
        ({"promt": "a"}, "promt"),
        ({"extra_body": "no"}, "extra_body"),
        ({"webhook_url": "http://127.0.0.1/"}, "webhook_url"),
        ({"webhook_url": "file:///etc/passwd"}, "webhook_url"),
    ],
)
def test_request_is_refused_by_name_when_a_field_breaks_its_rule(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    status, error = gateway.error("POST", "/v1/videos", json={"prompt": "a", **fields})
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert " must " in error["message"]


def test_body_is_refused_when_it_is_none_of_the_forms(gateway: Gateway) -> None:
    def refused(**request: Any) -> tuple[int, str]:
        status, error = gateway.error("POST", "/v1/videos", **request)
        return status, error["code"]

    assert refused(content=b"x", headers={"content-type": "text/plain"}) == (415, "unsupported_media_type")
    assert refused(content=b"{", headers={"content-type": "application/json"}) == (400, "invalid_value")
    assert refused(content=b"[1]", headers={"content-type": "application/json"}) == (400, "invalid_value")
    assert refused(content=b"x" * (65 << 20), headers={"content-type": "application/json"})[0] == 413
    assert refused(json={"prompt": "a", "model": "sora-2"}) == (404, "model_not_found")


def test_unknown_paths_and_methods_answer_in_the_same_form(gateway: Gateway) -> None:
    assert gateway.error("GET", "/v1/nothing")[0] == 404
    assert gateway.error("PUT", "/v1/videos")[0] == 405
    assert gateway.error("GET", "/v1/videos/video_0")[1]["code"] == "video_not_found"
    status, error = gateway.error("GET", "/v1/videos?limit=0")
    assert (status, error["param"]) == (400, "limit")
    assert gateway.error("GET", "/v1/videos?after=video_0")[1]["param"] in ("after", None)


def test_models_are_described_when_they_are_listed(gateway: Gateway) -> None:
    found = {model["id"]: model for model in gateway.http.get("/v1/models").json()["data"]}
    assert found["wan_t2v"]["ready"]
    names = [field["name"] for field in found["wan_t2v"]["video"]["fields"]]
    assert names[:2] == ["prompt", "negative_prompt"]
    assert gateway.http.get("/v1/models/wan_t2v").json()["id"] == "wan_t2v"
    assert gateway.error("GET", "/v1/models/none")[0] == 404


def test_probes_and_metrics_answer_without_a_key(gateway: Gateway) -> None:
    assert gateway.http.get("/healthz").json() == {"status": "ok"}
    assert gateway.http.get("/readyz").status_code == 200
    page = gateway.http.get("/metrics").text
    assert 'slipway_gateway_jobs_total{key="local",model="wan_t2v",outcome="completed"}' in page
    assert 'slipway_gateway_replicas{state="ready"} 1.0' in page


class TestUnderWay:
    """Jobs that are under way, whose steps a gate lets pass."""

    @pytest.fixture
    def slow(
        self, gated_server: tuple[Server, Gate], tmp_path: Path
    ) -> Iterator[tuple[Gateway, Gate, Server]]:
        server, gate = gated_server
        arguments = ("--concurrency", "1", "--checkpoint-every-steps", "2", "--lease-s", "2")
        with running_gateway([server.grpc_url], tmp_path, *arguments) as gateway:
            yield gateway, gate, server
            gate.open()

    def started(self, gateway: Gateway, gate: Gate, steps: int = 2, **fields: Any) -> dict[str, Any]:
        """Return a job that has done some steps."""
        gate.let(0)
        job = gateway.create(seed=20, steps=STEPS, guidance_scale=1, **SIZE, **fields)
        gate.let(steps)
        wait_until(lambda: gateway.job(job["id"])["step"] >= steps, "the first steps")
        return job

    def test_work_stops_when_a_job_is_deleted(self, slow: tuple[Gateway, Gate, Server]) -> None:
        gateway, gate, _ = slow
        job = self.started(gateway, gate)
        deleted = gateway.http.delete(f"/v1/videos/{job['id']}")
        assert deleted.json() == {"id": job["id"], "object": "video.deleted", "deleted": True}
        assert gateway.error("GET", f"/v1/videos/{job['id']}")[0] == 404
        calls = gate.calls
        gate.let(1)
        wait_until(lambda: self.idle(gateway), "no running job")
        gate.open()
        assert gate.calls <= calls + 1

    def moved(self, gateway: Gateway, job_id: str, step: int) -> bool:
        job = gateway.job(job_id)
        return bool(job["status"] != "in_progress" or job["step"] > step)

    def idle(self, gateway: Gateway) -> bool:
        return not any(
            line.startswith("slipway_gateway_jobs_running{") and not line.endswith(" 0.0")
            for line in gateway.http.get("/metrics").text.splitlines()
        )

    def test_job_goes_on_from_its_state_when_it_is_paused_and_resumed(
        self, slow: tuple[Gateway, Gate, Server]
    ) -> None:
        gateway, gate, _ = slow
        job = self.started(gateway, gate)
        assert gateway.http.post(f"/v1/videos/{job['id']}/pause").status_code == 200
        # One step after the other: the video must not end before the server has heard of the pause.
        while (paused := gateway.job(job["id"]))["status"] == "in_progress":
            gate.let(1)
            done = paused["step"]
            wait_until(lambda done=done: self.moved(gateway, job["id"], done), "a step or the pause")
        assert paused["status"] == "paused", paused
        assert 2 <= paused["state_step"] < STEPS
        gate.open()
        gateway.http.post(f"/v1/videos/{job['id']}/resume")
        done = gateway.until(job["id"])
        assert (done["status"], done["attempts"]) == ("completed", 1)

    def test_jobs_have_places_in_the_queue_when_they_wait(self, slow: tuple[Gateway, Gate, Server]) -> None:
        gateway, gate, _ = slow
        self.started(gateway, gate)
        second, third = (gateway.create(prompt=f"waits {n}", steps=1, **SIZE) for n in range(2))
        wait_until(lambda: gateway.job(third["id"])["queue_position"] == 2, "the second place")
        assert gateway.job(second["id"])["queue_position"] == 1
        assert gateway.http.post(f"/v1/videos/{second['id']}/pause").json()["status"] == "paused"
        wait_until(lambda: gateway.job(third["id"])["queue_position"] == 1, "the first place")
        gate.open()
        assert gateway.until(third["id"])["status"] == "completed"

    def test_job_goes_on_from_its_state_when_the_gateway_is_killed(
        self, slow: tuple[Gateway, Gate, Server]
    ) -> None:
        gateway, gate, _ = slow
        job = self.started(gateway, gate, steps=3)
        wait_until(lambda: gateway.job(job["id"])["state_step"] == 2, "the first state")
        gateway.stop(9)
        gate.open()
        gateway.start()
        done = gateway.until(job["id"])
        assert (done["status"], done["attempts"]) == ("completed", 1), done

    def test_job_is_given_back_when_the_gateway_is_told_to_stop(
        self, slow: tuple[Gateway, Gate, Server]
    ) -> None:
        gateway, gate, _ = slow
        job = self.started(gateway, gate, steps=1)
        assert gateway.process is not None
        gateway.process.terminate()
        gate.let(3)
        assert gateway.process.wait(120) == 0, gateway.text()
        gate.open()
        gateway.start()
        assert gateway.job(job["id"])["state_step"] >= 2
        assert gateway.until(job["id"])["status"] == "completed"

    def test_caller_who_leaves_cancels_when_it_waited(self, slow: tuple[Gateway, Gate, Server]) -> None:
        gateway, gate, _ = slow
        gate.let(0)
        with pytest.raises(httpx.ReadTimeout):
            gateway.http.post(
                "/v1/videos/sync", json={"prompt": "left", "seed": 21, "steps": 4, **SIZE}, timeout=3
            )
        gate.open()
        (job,) = gateway.http.get("/v1/videos").json()["data"]
        assert gateway.until(job["id"])["status"] == "cancelled"

    def test_further_jobs_are_refused_when_the_queue_is_full(
        self, gated_server: tuple[Server, Gate], tmp_path: Path
    ) -> None:
        server, gate = gated_server
        with running_gateway(
            [server.grpc_url], tmp_path, "--max-waiting", "2", "--concurrency", "1"
        ) as gateway:
            self.started(gateway, gate)
            for number in range(2):
                gateway.create(prompt=f"fills {number}", steps=1, **SIZE)
            answer = gateway.http.post("/v1/videos", json={"prompt": "too many", "steps": 1, **SIZE})
            assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
            assert int(answer.headers["retry-after"]) > 0
            gate.open()
