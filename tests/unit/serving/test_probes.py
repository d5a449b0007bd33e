"""The endpoint that tells whether a server is ready or lives."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from hostile import answered, http_peer, once

from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.system import process_state
from slipway_serving.system.process_state import check_processes
from slipway_serving.triton.probes import ProbeEndpoint, check_health


class Checked:
    """What the endpoint asks: fails for the states that a test names."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: dict[str, str] = {}

    def __call__(self, state: str) -> None:
        self.asked.append(state)
        if state in self.broken:
            raise NotReady(self.broken[state])


@pytest.fixture
def checked() -> Checked:
    return Checked()


@pytest.fixture
def url(checked: Checked) -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with closing(ProbeEndpoint("127.0.0.1", port, checked)):
        yield f"http://127.0.0.1:{port}"


def asked(url: str) -> tuple[int, str]:
    answer = httpx.get(url, trust_env=False)
    return answer.status_code, answer.text


def test_endpoint_answers_each_state_by_itself_with_the_reason(url: str, checked: Checked) -> None:
    assert asked(f"{url}/ready") == (200, "ready\n")
    checked.broken["ready"] = "ready: tritonserver must be ready, got żółw"
    assert asked(f"{url}/ready") == (503, "ready: tritonserver must be ready, got żółw\n")
    assert asked(f"{url}/live") == (200, "live\n")
    assert checked.asked == ["ready", "ready", "live"]


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/ready/x", "/v2/health/ready"])
def test_other_paths_are_not_found_and_ask_nothing(url: str, checked: Checked, path: str) -> None:
    assert asked(f"{url}{path}") == (404, "path must be /ready or /live\n")
    assert checked.asked == []


def test_endpoint_outlives_what_is_no_http(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    silent = socket.create_connection((host, int(port)))
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"\0" * 70_000)
    assert asked(f"{url}/live") == (200, "live\n")
    silent.close()


def test_answer_does_not_tell_pythons_version(url: str) -> None:
    assert httpx.get(f"{url}/live", trust_env=False).headers["Server"].strip() == "slipway"


@pytest.mark.parametrize("state", ["ready", "live"])
def test_health_is_what_triton_says(state: str) -> None:
    other = "live" if state == "ready" else "ready"
    paths = {
        f"/v2/health/{state}": once(answered(b"", status="400 Bad Request")),
        f"/v2/health/{other}": once(answered(b"")),
    }
    with http_peer(paths) as place:
        check_health(place, other)
        with pytest.raises(NotReady, match=rf"^ready: tritonserver is not {state} \(HTTP status 400\)"):
            check_health(place, state)
    with pytest.raises(NotReady, match=r"does not answer at localhost:1 \(ConnectionRefusedError\)"):
        check_health("localhost:1", state)


def test_port_in_use_is_refused_by_name(checked: Checked) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"probe_port must be free on 127.0.0.1, got {port} "):
            ProbeEndpoint("127.0.0.1", port, checked)


def test_processes_are_checked_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_processes(1, tmp_path)
    monkeypatch.setattr(
        process_state, "dead_instances", lambda folder: ["a_0", "b_0"] if folder == tmp_path else []
    )
    with pytest.raises(NotReady, match="the process of a_0, b_0 has died"):
        check_processes(1, tmp_path)
