"""Who looks at a server from outside: a collector of traces, a real Prometheus, one look at the metrics."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as triton
import yaml
from prometheus_client.parser import text_string_to_metric_families
from server_fixtures import logged, wait_until

from slipway_serving.triton.server import Server

FOLDER = Path(__file__).resolve().parents[2] / "observability"
Labels = tuple[tuple[str, str], ...]


class Collector(http.server.ThreadingHTTPServer):
    """An OTLP endpoint over HTTP that keeps the spans it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.spans: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Receiver(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.server.spans += scope["spans"]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


class Prometheus:
    """A real one that watches a server, and perhaps a gateway, faster than the files say."""

    def __init__(self, folder: Path, target: str, gateway: str | None = None) -> None:
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        servers, gateways = config["scrape_configs"]
        servers["static_configs"][0]["targets"] = [target]
        gateways["static_configs"][0]["targets"] = [gateway]
        del gateways["dns_sd_configs"]
        if gateway is None:  # one that is not there would be down
            config["scrape_configs"] = [servers]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(FOLDER / "rules.yml", folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"127.0.0.1:{free.getsockname()[1]}"
        self.log = folder / "log"
        flags = (f"--web.listen-address={self.url}", f"--storage.tsdb.path={folder}/data")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", *flags], stdout=log, stderr=log
            )

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an expression now, labels and value each."""
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(
                f"http://{self.url}/api/v1/query", params={"query": expression}, trust_env=False, timeout=10
            )
            if answer.status_code != 503:  # while it starts
                found = answer.json()
                assert found["status"] == "success", found
                return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]
        return []


def series(server: Server) -> dict[tuple[str, Labels], float]:
    """Return every series that the server's metrics endpoint has now."""
    text = httpx.get(server.metrics_url, trust_env=False).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(server: Server, name: str, **labels: str) -> float:
    return series(server).get((name, tuple(sorted(labels.items()))), float("nan"))


@contextlib.contextmanager
def stream(server: Server) -> Iterator[tuple[triton.InferenceServerClient, list[tuple[Any, Any]]]]:
    """Open a stream of requests; yield its client and the list that answers go to."""
    answers: list[tuple[Any, Any]] = []
    with triton.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        yield client, answers
        client.stop_stream()


def trace_of(collector: Collector, request_id: str) -> list[dict[str, Any]]:
    """Return all spans of the trace of a request."""
    ids = {
        span["traceId"]
        for span in list(collector.spans)
        if {"key": "triton.request_id", "value": {"stringValue": request_id}} in span.get("attributes", [])
    }
    return [span for span in list(collector.spans) if span["traceId"] in ids]


def log_lines(server: Server) -> list[dict[str, Any]]:
    """Return what the log says of requests, line by line."""
    return logged(server, "adapter")


def recorded() -> list[str]:
    rules = yaml.safe_load((FOLDER / "rules.yml").read_text())
    return [rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule]


def queries() -> list[str]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def assert_data(
    prometheus: Prometheus, expression: str, check: Callable[[float], bool] = np.isfinite
) -> None:
    """Wait until an expression has a series whose value is a number."""
    wait_until(
        lambda: any(check(number) for _, number in prometheus.query(expression)), f"data of {expression}"
    )
