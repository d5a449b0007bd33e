"""The fleet as an operator sees it, with servers whose last poll a test states."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from api_without_servers import Api, api_without_servers
from gateway_jobs import LEASE_S, run_of

from slipway_client import AsyncClient
from slipway_gateway.access.keys import KeyStore
from slipway_gateway.replicas.metrics import MetricsPage, parse_metrics
from slipway_gateway.replicas.replica import Replica, ReplicaState
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, SessionLost

PARAMETERS = {
    "wan_t2v_denoiser": {
        "export_engine": "tensorrt",
        "export_precision": "int8",
        "export_parity": "points=4 left_out=1 max_abs=0.01 relative_l2=0.002 cosine=0.9999 of_bound=0.4",
    }
}
PAGE = """
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.25
# TYPE nv_cpu_memory_total_bytes gauge
nv_cpu_memory_total_bytes 8000000000
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes 2000000000
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-a"} NaN
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 1000
# TYPE nv_gpu_power_usage gauge
nv_gpu_power_usage{gpu_uuid="GPU-b"} 300.5
# TYPE slipway_requests_running gauge
slipway_requests_running{model="wan_t2v"} 2
# TYPE slipway_sessions_open gauge
slipway_sessions_open{model="world"} 1
# TYPE slipway_sessions_limit gauge
slipway_sessions_limit{model="world"} 2
"""


def replica(url: str, page: MetricsPage | None, state: ReplicaState, reason: str = "") -> Replica:
    models = frozenset({"wan_t2v", "wan_t2v_denoiser", "world"})
    made = Replica(url, AsyncClient(url), state=state, models=models, metrics=page, reason=reason)
    made.parameters = {model: PARAMETERS.get(model, {}) for model in models}
    return made


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """The API of a gateway with a ready server, a draining one and one that does not answer."""
    async with api_without_servers(tmp_path / "data") as opened:
        page = parse_metrics(PAGE)
        states = [
            ("a:1", page, ReplicaState.READY, ""),
            ("b:1", page, ReplicaState.DRAINING, "it shuts down"),
            ("c:1", None, ReplicaState.UNREACHABLE, "no answer"),
        ]
        opened.services.replicas._replicas = {each[0]: replica(*each) for each in states}
        yield opened


async def test_fleet_tells_servers_with_their_state_and_load(api: Api) -> None:
    first, second, third = (await api.call("GET", "/v1/fleet"))["servers"]
    assert first == {
        "url": "a:1",
        "state": "ready",
        "reason": "",
        "models": 3,
        "processor_share": 0.25,
        "memory_used_bytes": 2_000_000_000,
        "memory_bytes": 8_000_000_000,
        "gpus": [
            {
                "id": "GPU-b",
                "share": 0.5,
                "memory_used_bytes": 1000,
                "memory_bytes": None,
                "power_w": 300.5,
            }
        ],
    }
    assert (second["state"], second["reason"]) == ("draining", "it shuts down")
    assert (third["models"], third["processor_share"], third["gpus"]) == (0, None, [])


async def test_fleet_tells_models_with_their_export_and_their_work(api: Api) -> None:
    await api.create()
    await api.create(seed=1)
    paused = await api.create(seed=2)
    await api.call("POST", f"/v1/videos/{paused['id']}/pause")
    assert await api.services.store.claim("w", {"wan_t2v": 1}, LEASE_S) is not None
    models = {model["id"]: model for model in (await api.call("GET", "/v1/fleet"))["models"]}
    assert list(models) == ["framepack_i2v", "wan_t2v", "wan_t2v_denoiser", "world"]
    denoiser = models["wan_t2v_denoiser"]
    assert (denoiser["engine"], denoiser["precision"], denoiser["queue"]) == ("tensorrt", "int8", None)
    assert denoiser["parity"] == {
        "points": 4,
        "left_out": 1,
        "max_abs": 0.01,
        "relative_l2": 0.002,
        "cosine": 0.9999,
        "of_bound": 0.4,
    }
    video = models["wan_t2v"]
    assert (video["state"], video["ready"], video["servers"]) == ("ready", 1, 2)
    assert (video["engine"], video["parity"], video["requests_running"]) == (None, None, 4)
    oldest_s = video["queue"].pop("oldest_s")
    assert 0 <= oldest_s < 60
    assert video["queue"] == {"waiting": 1, "running": 1, "paused": 1}
    assert models["world"]["sessions"] == {"open": 2, "limit": 2, "waiting": 0}
    assert (models["framepack_i2v"]["state"], models["framepack_i2v"]["servers"]) == ("unreachable", 0)


async def test_fleet_tells_the_failures_of_the_last_hour(api: Api) -> None:
    job = await api.create()
    claimed = await api.services.store.claim("w", {"wan_t2v": 1}, LEASE_S)
    assert claimed is not None
    await api.services.store.fail(job["id"], run_of(claimed), "deadline_exceeded", "it took 600 s")
    sessions = api.services.session_failures
    sessions.record("world_1", "world", SessionLost("world: the model's process ended"))
    sessions.record("world_2", "world", ZeroDivisionError("a secret"))
    for error in (InvalidRequest("image must be a picture"), Cancelled("world: the world was ended")):
        sessions.record("world_3", "world", error)
    fleet = await api.call("GET", "/v1/fleet")
    assert all(time.time() - failure.pop("at") < 60 for failure in fleet["failures"])
    internal, lost, failed = fleet["failures"]
    assert failed == {
        "video_id": job["id"],
        "session_id": None,
        "model": "wan_t2v",
        "code": "deadline_exceeded",
        "message": "it took 600 s",
    }
    assert lost == {
        "video_id": None,
        "session_id": "world_1",
        "model": "world",
        "code": "session_lost",
        "message": "world: the model's process ended",
    }
    assert (internal["code"], "secret" in internal["message"]) == ("internal", False)
    counts = {model["id"]: model["failures"] for model in fleet["models"]}
    assert (counts["wan_t2v"], counts["world"]) == (1, 2)


async def test_fleet_is_refused_when_the_key_does_not_administer(tmp_path: Path) -> None:
    async with api_without_servers(tmp_path / "data", require_keys=True) as api:
        await api.call("GET", "/v1/fleet", 401)
        for is_admin, status in ((False, 403), (True, 200)):
            _, secret = await KeyStore(api.services.database).create("name", is_admin=is_admin)
            headers = {"authorization": f"Bearer {secret}"}
            answer = await api.call("GET", "/v1/fleet", status, headers=headers)
            assert is_admin or answer["error"]["code"] == "admin_required"
