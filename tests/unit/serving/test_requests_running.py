"""What `slipway drain` reads of a server's metrics."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from slipway_serving.triton.drain import count_running_requests

OF_TRITON = """\
# HELP nv_pinned_memory_pool_total_bytes Pinned memory pool total memory size, in bytes
# TYPE nv_pinned_memory_pool_total_bytes gauge
"""
TWO_MODELS = f"""\
{OF_TRITON}\
# HELP slipway_requests_running Requests that pipelines work on now.
# TYPE slipway_requests_running gauge
slipway_requests_running{{model="wan_t2v",note="a }} brace"}} 2
slipway_requests_running{{model="other"}} 1
# TYPE slipway_requests_total counter
slipway_requests_total{{model="wan_t2v",code="OK"}} 7
"""


class Metrics(http.server.ThreadingHTTPServer):
    """Answers every request with one text."""

    text = ""
    status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/metrics"


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Metrics

    def do_GET(self) -> None:
        body = self.server.text.encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    with Metrics(("127.0.0.1", 0), _Answer) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        serving.shutdown()


@pytest.mark.parametrize(("text", "count"), [(TWO_MODELS, 3), (OF_TRITON, 0)])
def test_requests_running_adds_up_all_models_when_asked(metrics: Metrics, text: str, count: int) -> None:
    metrics.text = text
    assert count_running_requests(metrics.url) == count


def test_requests_running_goes_past_a_proxy_when_the_environment_names_one(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    metrics.text = TWO_MODELS
    assert count_running_requests(metrics.url) == 3


@pytest.mark.parametrize(("status", "text"), [(404, TWO_MODELS), (200, "slipway_requests_running{ what")])
def test_requests_running_is_unknown_when_the_answer_is_no_metrics(
    metrics: Metrics, status: int, text: str
) -> None:
    metrics.status, metrics.text = status, text
    assert count_running_requests(metrics.url) is None


def test_requests_running_is_unknown_when_the_address_is_none() -> None:
    assert count_running_requests("http://local host:x/metrics") is None
