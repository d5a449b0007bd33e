"""What a running server tells: metrics that a real Prometheus scrapes, traces, and lines of its log.

One server works off some videos, a bad request, a cancelled one and hostile texts, while Prometheus watches
with the files of observability/; the tests look at what was seen.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from gateway_fixtures import running_gateway
from observability_fixtures import (
    Collector,
    Labels,
    Prometheus,
    assert_data,
    log_lines,
    queries,
    recorded,
    series,
    stream,
    trace_of,
    value,
)
from server_fixtures import infer_input, wait_until

from slipway_client import Client, Progress, TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.metrics import METRICS, WORLDS
from slipway_serving.triton.control import CONTROL_HEADER
from slipway_serving.triton.server import Server, ServerConfig

TOKEN = "0123456789abcdef"
VIDEO = TextToVideoRequest(prompt="a lake", frames=9, height=64, width=64, steps=4, seed=1)
LONG = TextToVideoRequest(prompt="a lake", frames=33, height=128, width=128, steps=50, seed=1)
USERS = 9
HOSTILE = 'x",code="y"}\n# HELP z\nslipway_frames_total{model="\u202eevil\U0001f47e"} 1'


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def server(repository: Path, collector: Collector) -> Iterator[Server]:
    """A server that traces every request, and whose administrative APIs are closed."""
    config = ServerConfig(
        repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        control_token=TOKEN,
        trace_otlp=collector.url,
        # Sooner than after 5 s.
        arguments=("--trace-config=opentelemetry,bsp_schedule_delay=200",),
    )
    with Server(config) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus | None]:
    """A Prometheus that has seen the server before anything happens; None where none is installed."""
    if shutil.which("prometheus") is None:
        assert not os.environ.get("CI"), "prometheus must be installed in CI; try apt-get install prometheus"
        yield None
        return
    target = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), target)
    try:
        # Two looks before anything happens, so that what happens is seen to grow.
        wait_until(lambda: running.query("count_over_time(up[1m]) >= 2") != [], "two scrapes")
        yield running
    finally:
        running.process.terminate()
        running.process.wait(30)


@dataclass(frozen=True)
class Traffic:
    """What happened.

    Attributes:
        before: the series before it.
        videos: how many videos were made.
    """

    before: dict[tuple[str, Labels], float]
    videos: int


def waiting(server: Server) -> float:
    """Return how many videos Triton says to wait."""
    return value(server, "nv_inference_pending_request_count", model="wan_t2v", version="1")


@pytest.fixture(scope="module")
def traffic(server: Server, prometheus: Prometheus | None) -> Traffic:
    """More videos at once than the model has instances, one refused, one cancelled; Prometheus watches."""
    before = series(server)

    seen = threading.Event()

    def make() -> int:
        """Make one video after another until one was seen waiting; return how many."""
        made = 0
        with Client(server.grpc_url) as client:
            while not seen.is_set():
                assert list(client.generate(VIDEO))
                made += 1
        return made

    with ThreadPoolExecutor(USERS) as pool:
        users = [pool.submit(make) for _ in range(USERS)]
        try:
            wait_until(lambda: waiting(server) > 0, "a video that waits, in Triton's own metric")
        finally:
            seen.set()
        videos = sum(user.result() for user in users)
    with Client(server.grpc_url) as client:
        with pytest.raises(InvalidRequest):
            list(client.generate(TextToVideoRequest(prompt="a lake", width=48_000)))
        for event in client.generate(LONG):
            assert isinstance(event, Progress)
            break
    return Traffic(before, videos)


def grown(server: Server, traffic: Traffic, name: str, **labels: str) -> float:
    """Return by how much a series has grown since before the traffic."""
    key = (name, tuple(sorted(labels.items())))
    return series(server).get(key, float("nan")) - traffic.before[key]


def test_requests_are_counted_by_how_they_ended(server: Server, traffic: Traffic) -> None:
    expected = {
        "OK": traffic.videos,
        "INVALID_ARGUMENT": 1,
        "CANCELLED": 1,
        "INTERNAL": 0,
        "DEADLINE_EXCEEDED": 0,
    }
    for code, count in expected.items():
        wait_until(
            lambda code=code, count=count: (
                grown(server, traffic, "slipway_requests_total", model="wan_t2v", code=code) == count
            ),
            f"{count} requests that ended {code}",
        )


def test_frames_and_steps_are_counted(server: Server, traffic: Traffic) -> None:
    wait_until(
        lambda: (
            grown(server, traffic, "slipway_frames_total", model="wan_t2v") == traffic.videos * VIDEO.frames
        ),
        "the frames of all finished videos",
    )
    steps = "slipway_denoise_step_seconds_count"
    # Of the cancelled request there was at least one, and not all.
    finished = traffic.videos * VIDEO.steps
    wait_until(lambda: grown(server, traffic, steps, model="wan_t2v") > finished, "the steps of all videos")
    assert grown(server, traffic, steps, model="wan_t2v") < finished + LONG.steps
    assert grown(server, traffic, "slipway_denoise_step_seconds_sum", model="wan_t2v") > 0


def test_open_sequences_are_seen_and_gone_when_they_end(server: Server) -> None:
    labels = {"model": "wan_t2v_vae_decoder"}
    assert value(server, "slipway_sessions_limit", **labels) == 4
    latents = infer_input("latents", np.zeros((1, 16, 1, 4, 4), np.float32))
    wait_until(lambda: value(server, "slipway_sessions_open", **labels) == 0, "no session of other tests")
    with stream(server) as (client, answers):
        client.async_stream_infer("wan_t2v_vae_decoder", [latents], sequence_id=7, sequence_start=True)
        wait_until(lambda: value(server, "slipway_sessions_open", **labels) == 1, "the session")
        client.async_stream_infer("wan_t2v_vae_decoder", [], sequence_id=7, sequence_end=True)
        wait_until(lambda: value(server, "slipway_sessions_open", **labels) == 0, "its end")
        assert not [error for _, error in answers if error]


def test_hostile_texts_make_no_new_series(server: Server, traffic: Traffic) -> None:
    before = series(server)
    one = lambda text: infer_input("prompt", np.array([text.encode()], np.object_))  # noqa: E731
    output = triton.InferInput("output", [1], "BYTES")
    output.set_data_from_numpy(np.array([HOSTILE.encode()], np.object_))
    with stream(server) as (client, answers):
        client.async_stream_infer("wan_t2v", [one(HOSTILE), output], request_id=HOSTILE)
        client.async_stream_infer("wan_t2v", [one("a lake")], request_id="r", parameters={"evil": HOSTILE})
        client.async_stream_infer("wan_t2v_vae_decoder", [], sequence_id=HOSTILE, request_id=HOSTILE)
        wait_until(lambda: len(answers) == 3, "three refusals")
        assert all(error for _, error in answers)
        with pytest.raises(triton.InferenceServerException):
            client.infer(HOSTILE, [one("a lake")])
    body = {"prompt": HOSTILE, "negative_prompt": HOSTILE, "steps": 1, HOSTILE: HOSTILE}
    url = f"http://{server.http_url}/v2/models/wan_t2v/generate_stream"
    assert "INVALID_ARGUMENT" in httpx.post(url, json=body, trust_env=False).text
    refused = 3  # of wan_t2v: twice above, once here
    wait_until(
        lambda: (
            value(server, "slipway_requests_total", model="wan_t2v", code="INVALID_ARGUMENT")
            == before[("slipway_requests_total", (("code", "INVALID_ARGUMENT"), ("model", "wan_t2v")))]
            + refused
        ),
        "the refusals in the metrics",
    )
    assert set(series(server)) == set(before)


def test_labels_have_closed_sets_of_values(server: Server, traffic: Traffic) -> None:
    models = {folder.name for folder in server.config.repository.iterdir()}
    by_name = {metric.name: metric for metric in METRICS}
    found = set()
    for name, labels in series(server):
        metric = by_name.get(re.sub(r"_(bucket|sum|count)$", "", name))
        if metric is None:
            continue
        found.add(metric.name)
        given = dict(labels)
        assert given.pop("model") in models
        given.pop("le", None)
        assert set(given) == ({metric.label} if metric.label else set())
        assert set(given.values()) <= set(metric.values)
    # No world is served here.
    assert found == set(by_name) - {metric.name for metric in WORLDS}


def test_one_request_is_one_trace_with_the_models_that_it_called(
    server: Server, collector: Collector
) -> None:
    # Of its own: what was asked before is answered without tokenizer and text encoder.
    fields = {"prompt": "a lake that is traced", "negative_prompt": "", "output": "video"}
    numbers = {"frames": 5, "height": 32, "width": 32, "steps": 2}
    inputs = [infer_input(name, np.array([text.encode()], np.object_)) for name, text in fields.items()]
    inputs += [infer_input(name, np.array([number])) for name, number in numbers.items()]
    with stream(server) as (client, answers):
        client.async_stream_infer("wan_t2v", inputs, request_id="traced", enable_empty_final_response=True)

        def ended() -> bool:
            return (
                bool(answers) and answers[-1][0].get_response().parameters["triton_final_response"].bool_param
            )

        wait_until(ended, "the video")
        assert not [error for _, error in answers if error]
    inner = {
        "wan_t2v",
        "wan_t2v_prompt",
        "wan_t2v_tokenizer",
        "wan_t2v_text_encoder",
        "wan_t2v_denoiser_high",
        "wan_t2v_vae_decoder",
    }
    wait_until(lambda: inner <= {span["name"] for span in trace_of(collector, "traced")}, "all spans")
    spans = trace_of(collector, "traced")
    assert len({span["traceId"] for span in spans}) == 1
    by_id = {span["spanId"]: span for span in spans}

    def ancestors(span: dict[str, Any]) -> Iterator[str]:
        while span := by_id.get(span.get("parentSpanId", ""), {}):
            yield span["name"]

    for span in spans:
        if span["name"] in inner - {"wan_t2v"}:
            assert "wan_t2v" in ancestors(span), span["name"]
    # The log leads to the trace.
    lines = [line for line in log_lines(server) if line["request_id"] == "traced"]
    assert [line["event"] for line in lines] == ["started", "finished"]
    assert {line["trace_id"] for line in lines} == {spans[0]["traceId"]}


@pytest.mark.parametrize("way", ["client", "gateway"])
def test_servers_trace_continues_the_callers_when_it_names_one(
    server: Server, collector: Collector, tmp_path: Path, way: str
) -> None:
    trace_id = os.urandom(16).hex()
    traceparent = f"00-{trace_id}-{os.urandom(8).hex()}-01"
    fields: dict[str, Any] = {
        "prompt": f"traced by {way}",
        "frames": 5,
        "height": 32,
        "width": 32,
        "steps": 2,
    }
    if way == "client":
        with Client(server.grpc_url) as client:
            assert list(client.generate(TextToVideoRequest(**fields), traceparent=traceparent))
    else:
        with running_gateway([server.grpc_url], tmp_path) as gateway:
            headers = {"traceparent": traceparent}
            job = gateway.http.post("/v1/videos", json=fields, headers=headers).json()
            assert gateway.until(job["id"])["status"] == "completed"

    def names() -> set[str]:
        return {span["name"] for span in list(collector.spans) if span["traceId"] == trace_id}

    wait_until(lambda: {"wan_t2v", "wan_t2v_denoiser_high"} <= names(), "the spans of the caller's trace")


def test_log_has_the_id_the_progress_and_the_end_of_a_request(server: Server, traffic: Traffic) -> None:
    ends = list(
        {line["request_id"]: line for line in log_lines(server) if line["model"] == "wan_t2v"}.values()
    )
    begun = [line["request_id"] for line in log_lines(server) if line["event"] == "started"]
    assert len(set(begun)) == len(begun) == len(ends)
    finished = [
        line for line in ends if line["event"] == "finished" and line.get("steps_done") == VIDEO.steps
    ]
    assert len(finished) >= traffic.videos  # each with an id of ours, since the client gave none
    for line in finished:
        assert line["model"] == "wan_t2v"
        assert line["code"] == "OK"
        assert line["elapsed_s"] > 0
        assert line["responses"] > VIDEO.steps
    (cancelled,) = [line for line in ends if line["event"] == "cancelled"]
    assert cancelled["code"] == "CANCELLED"
    assert 1 <= cancelled["steps_done"] < LONG.steps
    assert all(line["trace_id"] for line in ends)
    refused = [line for line in ends if line["event"] == "failed"]
    assert "width must be" in "".join(line["error"] for line in refused)
    assert {line["code"] for line in refused} == {"INVALID_ARGUMENT"}


@pytest.fixture(scope="module")
def watched(prometheus: Prometheus | None, traffic: Traffic) -> Prometheus:
    """A Prometheus that has seen the traffic."""
    if prometheus is None:
        pytest.skip("prometheus is not installed; Debian's package of this name has it")
    end = 'slipway_requests_total{model="wan_t2v", code="CANCELLED"} > 0'
    wait_until(lambda: prometheus.query(end) != [], "a scrape of the end of the traffic")
    return prometheus


def has_data_here(expression: str) -> bool:
    """Whether an expression is of what runs here: worlds and gateways have tests of their own."""
    of_others = ("slipway:blocks_late_ratio", *(metric.name for metric in WORLDS))
    of_others += ("slipway_gateway_", "slipway:gateway_", 'job="slipway-gateway"')
    return not any(name in expression for name in of_others)


@pytest.mark.parametrize("rule", filter(has_data_here, recorded()))
def test_recording_rule_returns_data(watched: Prometheus, rule: str) -> None:
    assert_data(watched, rule)


@pytest.mark.parametrize("query", filter(has_data_here, queries()))
def test_dashboard_query_returns_data(watched: Prometheus, query: str) -> None:
    assert_data(watched, query.replace("$__rate_interval", "1m").replace("$model", ".*"))


@pytest.mark.parametrize(
    "expression",
    [
        'slipway:denoise_step_seconds:p95{model="wan_t2v"}',
        'slipway:frames:rate{model="wan_t2v"}',
        "slipway:pod_denoising",
        'slipway:queue_compute_ratio{model="wan_t2v"}',
        'max_over_time(slipway_denoise_step_seconds_sum{model="wan_t2v"}[1m])',
    ],
)
def test_traffic_shows_as_more_than_0(watched: Prometheus, expression: str) -> None:
    assert_data(watched, expression, lambda number: number > 0)


def test_no_alert_fires_on_a_sound_server(watched: Prometheus) -> None:
    assert watched.query('ALERTS{alertstate="firing"}') == []


CLOSED = {
    "shared-memory": ("GET", "/v2/systemsharedmemory/status"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}
OPEN = {
    "health": "/v2/health/ready",
    "metadata": "/v2/models/wan_t2v",
    "model-config": "/v2/models/wan_t2v/config",
    "statistics": "/v2/models/wan_t2v/stats",
}


@pytest.mark.parametrize("group", CLOSED)
def test_closed_api_needs_the_token_over_http(server: Server, group: str) -> None:
    method, path = CLOSED[group]

    def ask(headers: dict[str, str]) -> int:
        url = f"http://{server.http_url}{path}"
        return httpx.request(method, url, headers=headers, trust_env=False).status_code

    assert ask({}) == 403
    assert ask({CONTROL_HEADER: "another-token-of-16"}) == 403
    assert ask({CONTROL_HEADER: TOKEN}) == 200


@pytest.mark.parametrize("group", CLOSED)
def test_closed_api_needs_the_token_over_grpc(server: Server, group: str) -> None:
    with triton.InferenceServerClient(server.grpc_url) as client:
        ask: Callable[..., Any] = {
            "shared-memory": client.get_system_shared_memory_status,
            "trace": client.get_trace_settings,
            "logging": client.get_log_settings,
        }[group]
        for headers in ({}, {f"triton-grpc-protocol-{CONTROL_HEADER}": "another-token-of-16"}):
            with pytest.raises(triton.InferenceServerException, match="restricted"):
                ask(headers=headers)
        assert ask(headers={f"triton-grpc-protocol-{CONTROL_HEADER}": TOKEN}) is not None


@pytest.mark.parametrize("group", OPEN)
def test_other_api_stays_open(server: Server, group: str) -> None:
    assert httpx.get(f"http://{server.http_url}{OPEN[group]}", trust_env=False).status_code == 200


def test_token_does_not_allow_what_the_mode_forbids(server: Server) -> None:
    answer = httpx.post(
        f"http://{server.http_url}/v2/repository/models/wan_t2v/unload",
        headers={CONTROL_HEADER: TOKEN},
        json={},
        trust_env=False,
    )
    assert answer.status_code != 200
    assert "wan_t2v" in server.models()
