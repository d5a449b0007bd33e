"""Routes of the queue: edit, move and duplicate videos, with the real API and no server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from api_without_servers import MODELS, Api, api_without_servers, picture
from gateway_jobs import LEASE_S, run_of

from slipway_gateway.database.models import write_model


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """The API of a gateway without servers."""
    async with api_without_servers(tmp_path / "data") as opened:
        yield opened


def asked(answer: dict[str, Any]) -> tuple[str, str | None]:
    error = answer["error"]
    return error["code"], error["param"]


async def test_edit_changes_the_given_fields_and_keeps_the_others(api: Api) -> None:
    job = await api.create(seed=5, size="32x64", negative_prompt="blur")
    path = f"/v1/videos/{job['id']}"
    edited = await api.call("PATCH", path, json={"prompt": "a blue ring", "num_inference_steps": 6})
    changed = {"prompt": "a blue ring", "steps": 6}
    assert edited["request"] == job["request"] | changed
    assert (edited["id"], edited["steps"], edited["seed"], edited["size"]) == (job["id"], 6, 5, "32x64")
    resized = await api.call("PATCH", path, data={"size": "64x32", "extra_params": '{"seconds": 1}'})
    assert (resized["size"], resized["seconds"], resized["request"]["frames"]) == ("64x32", "1.062", 17)
    assert (await api.call("GET", path)) == resized
    stored = await api.services.store.get(job["id"], None)
    assert stored is not None
    assert stored.parameters == {
        "prompt": "a blue ring",
        "num_inference_steps": 6,
        "seed": 5,
        "size": "64x32",
        "seconds": 1,
        "negative_prompt": "blur",
    }


async def test_edit_without_a_change_returns_the_job(api: Api) -> None:
    job = await api.create()
    assert await api.call("PATCH", f"/v1/videos/{job['id']}", json={}) == job


async def test_seed_is_chosen_anew_when_an_edit_empties_it(api: Api) -> None:
    job = await api.create(seed=5)
    edited = await api.call("PATCH", f"/v1/videos/{job['id']}", json={"seed": None})
    assert edited["seed"] != 5 and edited["request"]["seed"] == edited["seed"]


async def test_stop_is_removed_with_its_draft(api: Api) -> None:
    job = await api.create(stop_after_step=2)
    assert job["request"]["draft"] == "video"
    edited = await api.call("PATCH", f"/v1/videos/{job['id']}", json={"stop_after_step": None})
    assert (edited["request"]["stop_after_step"], edited["request"]["draft"]) == (None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"steps": 0}, "steps"),
        ({"colour": "red"}, "colour"),
        ({"size": "64"}, "size"),
        ({"model": "framepack_i2v"}, "model"),
        ({"before": 3}, "before"),
        ({"before": "video_x"}, "before"),
        ({"webhook_url": 3}, "webhook_url"),
        ({"frames": 2}, "frames"),
    ],
)
async def test_edit_is_refused_when_a_field_breaks_its_rule(
    api: Api, fields: dict[str, Any], param: str
) -> None:
    job = await api.create()
    path = f"/v1/videos/{job['id']}"
    refused = await api.call("PATCH", path, 400, json=fields)
    assert asked(refused) == ("invalid_value", param)
    assert await api.call("GET", path) == job


async def test_edit_conflicts_when_the_video_is_being_made(api: Api) -> None:
    job = await api.create()
    claimed = await api.services.store.claim("w", {"wan_t2v": 1}, LEASE_S)
    assert claimed is not None
    for fields in ({"steps": 6}, {"before": None}):
        refused = await api.call("PATCH", f"/v1/videos/{job['id']}", 409, json=fields)
        assert asked(refused) == ("video_in_progress", None)
    await api.call("PATCH", f"/v1/videos/{job['id'][:-4]}0000", 404, json={"steps": 6})


async def test_only_what_may_change_is_edited_when_the_job_has_a_state(api: Api) -> None:
    job = await api.create(stop_after_step=3)
    path = f"/v1/videos/{job['id']}"
    claimed = await api.services.store.claim("w", {"wan_t2v": 1}, LEASE_S)
    assert claimed is not None
    await api.services.store.state_saved(job["id"], run_of(claimed), 2)
    await api.services.store.requeue(job["id"], run_of(claimed), counted=False)
    refused = await api.call("PATCH", path, 400, json={"steps": 9})
    assert "steps must be one of the fields that may change" in refused["error"]["message"]
    edited = await api.call("PATCH", path, json={"prompt": "a blue ring", "priority": "low"})
    assert edited["request"] == job["request"] | {"prompt": "a blue ring", "priority": "low"}
    assert (edited["priority"], edited["state_step"], edited["seed"]) == ("low", 2, job["seed"])


async def test_picture_stays_or_is_replaced_when_a_video_is_edited(api: Api) -> None:
    red, blue = picture(), picture("blue")
    job = await api.call(
        "POST", "/v1/videos", data={"prompt": "it moves"}, files={"input_reference": ("a.png", red)}
    )
    path, contents = f"/v1/videos/{job['id']}", api.services.contents

    async def stored(job_id: str) -> bytes:
        content = await contents.get(job_id, "input")
        assert content is not None
        return content.data

    edited = await api.call("PATCH", path, json={"prompt": "it turns"})
    assert (edited["request"]["prompt"], edited["size"]) == ("it turns", job["size"])
    assert await stored(job["id"]) == red
    await api.call("PATCH", path, data={"seed": "3"}, files={"input_reference": ("b.png", blue)})
    assert await stored(job["id"]) == blue
    copy = await api.call("POST", f"{path}/duplicate")
    assert await stored(copy["id"]) == blue and copy["seed"] == 3


async def test_each_picture_is_stored_downloaded_and_replaced_by_itself(api: Api) -> None:
    parameters = {**MODELS["wan_t2v"], "range_image": "1:1", "range_last_image": "0:1"}
    await write_model(api.services.database, "wan_t2v", parameters, time.time())
    await api.services.catalog.refresh()
    red, blue, green = picture(), picture("blue"), picture("green")
    files = {"input_reference": ("a.png", red), "last_image": ("b.png", blue)}
    fields = {"model": "wan_t2v", "prompt": "it moves"}
    job = await api.call("POST", "/v1/videos", data=fields, files=files)

    async def inputs(job_id: str) -> list[bytes]:
        path = f"/v1/videos/{job_id}/content"
        answers = [
            await api.http.get(path, params={"variant": job["request"][name]["content"]})
            for name in ("image", "last_image")
        ]
        return [answer.content for answer in answers]

    assert await inputs(job["id"]) == [red, blue]
    path = f"/v1/videos/{job['id']}"
    await api.call("PATCH", path, files={"last_image": ("c.png", green)})
    assert await inputs(job["id"]) == [red, green]
    copy = await api.call("POST", f"{path}/duplicate", files={"input_reference": ("d.png", blue)})
    assert await inputs(copy["id"]) == [blue, green]
    text = "data:image/png;base64,?"
    refused = await api.call("POST", "/v1/videos", 400, json={**fields, "last_image": text})
    assert asked(refused) == ("invalid_value", "last_image")


async def test_queue_has_the_order_that_its_owner_gives_it(api: Api) -> None:
    ids = [(await api.create(seed=seed))["id"] for seed in range(3)]
    moved = await api.call("PATCH", f"/v1/videos/{ids[2]}", json={"before": ids[0]})
    assert (moved["id"], moved["queue_position"]) == (ids[2], 1)
    assert await api.waiting() == [ids[2], ids[0], ids[1]]
    await api.call("PATCH", f"/v1/videos/{ids[2]}", json={"before": None, "prompt": "a blue ring"})
    assert await api.waiting() == ids
    urgent = await api.call("PATCH", f"/v1/videos/{ids[1]}", json={"priority": "urgent"})
    assert (urgent["priority"], urgent["queue_position"]) == ("urgent", 1)


async def test_duplicate_is_another_job_with_the_same_fields_at_each_call(api: Api) -> None:
    job = await api.create(seed=5, stop_after_step=2, priority="low")
    path = f"/v1/videos/{job['id']}/duplicate"
    first, second = await api.call("POST", path), await api.call("POST", path)
    other = await api.call("POST", path, json={"seed": 6})
    assert len({job["id"], first["id"], second["id"], other["id"]}) == 4
    for copy in (first, second):
        assert (copy["request"], copy["status"], copy["priority"]) == (job["request"], "queued", "low")
        assert copy["remixed_from_video_id"] == job["id"]
    assert other["request"] == job["request"] | {"seed": 6}
    headers = {"idempotency-key": "once"}
    once = [await api.call("POST", path, headers=headers) for _ in range(2)]
    assert once[0]["id"] == once[1]["id"]
    assert await api.waiting() == [job["id"], first["id"], second["id"], other["id"], once[0]["id"]]


async def test_request_makes_a_new_job_when_its_earlier_one_was_edited(api: Api) -> None:
    job = await api.create(seed=5)
    assert (await api.create(seed=5))["id"] == job["id"]
    await api.call("PATCH", f"/v1/videos/{job['id']}", json={"prompt": "a blue ring"})
    assert (await api.create(seed=5))["id"] != job["id"]


async def test_description_names_the_bodies_of_edits_and_duplicates(api: Api) -> None:
    paths = (await api.call("GET", "/openapi.json"))["paths"]
    edit = paths["/v1/videos/{video_id}"]["patch"]
    properties = edit["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"before", "prompt", "size", "seconds", "priority"} <= properties.keys()
    assert "model" not in properties
    assert {"200", "400", "404", "409", "415"} <= edit["responses"].keys()
    assert not paths["/v1/videos/{video_id}/duplicate"]["post"]["requestBody"]["required"]
