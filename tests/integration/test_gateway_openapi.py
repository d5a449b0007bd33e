"""The gateway's description of itself: every answer is a described one; no key sees what another has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from gateway_fixtures import Gateway, gateway_keys, running_gateway
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from slipway_serving.triton.server import Server

SIZE = {"frames": 5, "size": "32x32"}
OPEN = ("/healthz", "/readyz", "/metrics")
# What goes on for as long as a job runs, or waits for one.
SLOW = ("/v1/videos/{video_id}/events", "/v1/videos/sync")


def create_key(folder: Path, name: str, *limits: str) -> str:
    """Create a key and return its secret."""
    made = gateway_keys(folder, "create", name, *limits)
    (secret,) = (word for word in made.split() if word.startswith("sk-slipway-"))
    return secret


@pytest.fixture(scope="module")
def keyed(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, dict[str, httpx.Client]]]:
    """A gateway that needs keys, and a client of each of two keys."""
    folder = tmp_path_factory.mktemp("keyed")
    secrets = {name: create_key(folder, name) for name in ("first", "second")}
    arguments = ("--host", "0.0.0.0", "--max-waiting", "100000")
    with running_gateway([server.grpc_url], folder, *arguments, key=secrets["first"]) as gateway:
        port = gateway.url.rpartition(":")[2]
        clients = {
            name: httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                headers={"authorization": f"Bearer {secret}"},
                timeout=60,
                trust_env=False,
            )
            for name, secret in secrets.items()
        }
        yield gateway, clients
        for client in clients.values():
            client.close()


@pytest.fixture(scope="module")
def document(keyed: tuple[Gateway, dict[str, httpx.Client]]) -> dict[str, Any]:
    _, clients = keyed
    return dict(clients["first"].get("/openapi.json").json())


def operations(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, item in document["paths"].items() for method in item]


def test_every_route_needs_a_key_when_it_is_no_probe(
    keyed: tuple[Gateway, dict[str, httpx.Client]], document: dict[str, Any]
) -> None:
    _, clients = keyed
    base = str(clients["first"].base_url)
    job = clients["first"].post("/v1/videos", json={"prompt": "mine", "steps": 1, **SIZE}).json()
    for method, path in operations(document):
        url = path.replace("{video_id}", job["id"]).replace("{model}", "wan_t2v")
        for headers in ({}, {"authorization": "Bearer sk-slipway-wrong"}, {"authorization": "Basic eDp5"}):
            answer = httpx.request(
                method, base.rstrip("/") + url, headers=headers, trust_env=False, timeout=60
            )
            if path in OPEN:
                assert answer.status_code == 200, (method, path, answer.text)
            else:
                assert answer.status_code == 401, (method, path, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["type"] == "authentication_error"
            assert "mine" not in answer.text


def test_job_does_not_exist_when_it_is_another_keys(
    keyed: tuple[Gateway, dict[str, httpx.Client]], document: dict[str, Any]
) -> None:
    _, clients = keyed
    job = clients["first"].post("/v1/videos", json={"prompt": "secret words", "steps": 1, **SIZE}).json()
    unknown = job["id"][:-4] + "0000"
    routes = [(method, path) for method, path in operations(document) if "{video_id}" in path]
    assert len(routes) >= 7
    for method, path in routes:
        answers = [
            clients["second"].request(
                method,
                path.replace("{video_id}", name),
                json={"prompt": "x"} if method == "POST" else None,
            )
            for name in (job["id"], unknown)
        ]
        assert [answer.status_code for answer in answers] == [404, 404], (method, path)
        texts = [answer.text.replace(job["id"], "ID").replace(unknown, "ID") for answer in answers]
        assert texts[0] == texts[1], "another key's job is told apart from one that does not exist"
        assert "secret words" not in texts[0]
    listed = clients["second"].get("/v1/videos").json()["data"]
    assert job["id"] not in [each["id"] for each in listed]
    assert clients["second"].get("/v1/videos", params={"after": job["id"]}).status_code == 400
    assert clients["first"].get(f"/v1/videos/{job['id']}").status_code == 200


def test_key_stops_working_when_it_is_revoked(server: Server, tmp_path: Path) -> None:
    secret = create_key(tmp_path, "short")
    with running_gateway([server.grpc_url], tmp_path, "--host", "0.0.0.0", key=secret) as gateway:
        assert gateway.http.get("/v1/videos").status_code == 200
        listed = gateway_keys(tmp_path, "list")
        (key_id,) = {word for word in listed.split() if word.startswith("key_")}
        assert secret not in listed
        gateway_keys(tmp_path, "revoke", key_id)
        gateway.stop()
        gateway.start()
        assert gateway.http.get("/v1/videos").status_code == 401


def test_limits_of_a_key_are_kept_when_jobs_are_created(server: Server, tmp_path: Path) -> None:
    limits = ("--waiting", "1000", "--jobs-per-day", "2", "--pixels", str(32 * 32 * 5 * 2))
    secret = create_key(tmp_path, "limited", *limits)
    with running_gateway([server.grpc_url], tmp_path, "--host", "0.0.0.0", key=secret) as gateway:
        answer = gateway.http.post("/v1/videos", json={"prompt": "a", "steps": 3, **SIZE})
        assert (answer.status_code, "pixels" in answer.text) in ((400, True), (429, True))
        answer = gateway.http.post(
            "/v1/videos", json={"prompt": "a", "steps": 1, "priority": "urgent", **SIZE}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")
        for number in range(2):
            gateway.create(prompt=f"of today {number}", **{**SIZE, "steps": 1})
        answer = gateway.http.post("/v1/videos", json={"prompt": "one more", "steps": 1, **SIZE})
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")


@pytest.mark.parametrize("examples", [30, pytest.param(400, marks=pytest.mark.long)])
def test_every_answer_is_described_when_any_request_comes(
    keyed: tuple[Gateway, dict[str, httpx.Client]], document: dict[str, Any], examples: int
) -> None:
    gateway, clients = keyed
    base = str(clients["first"].base_url)
    headers = {"authorization": clients["first"].headers["authorization"]}
    jobs = [
        clients["first"].post("/v1/videos", json={"prompt": f"any {number}", "steps": 1, **SIZE}).json()["id"]
        for number in range(2)
    ]
    schema = schemathesis.openapi.from_dict(document)
    statuses: dict[tuple[str, str], set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in SLOW:
            continue

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(), st.sampled_from([None, *jobs]))
        def answers_as_described(case: Any, job: str | None) -> None:
            if job is not None and "video_id" in (case.path_parameters or {}):
                case.path_parameters["video_id"] = job
            answer = case.call(base_url=base, headers=headers)
            statuses.setdefault((case.method, case.path), set()).add(answer.status_code)
            assert answer.status_code < 500, (case.method, case.path, answer.text[:500])
            # The rules of fields depend on the served model, which the description does not know.
            case.validate_response(answer, excluded_checks=[positive_data_acceptance])

        answers_as_described()
    assert 200 in statuses["POST", "/v1/videos"] | statuses["GET", "/v1/videos/{video_id}"]
    assert {400, 404} <= set.union(*statuses.values())
    assert gateway.http.get("/healthz").status_code == 200
    assert "Traceback" not in gateway.text()
