"""Webhooks of ended jobs, signed with the secret of the key, at a receiver on this machine."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import standardwebhooks
from gateway_fixtures import Gateway, gateway_keys, running_gateway
from server_fixtures import wait_until

from slipway_serving.triton.server import Server

SMALL = {"frames": 5, "size": "32x32", "steps": 1}


class Receiver(http.server.ThreadingHTTPServer):
    """A receiver of webhooks that answers with given statuses, then with 204."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.came: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/ended"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.came.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def keyed_gateway(server: Server, folder: Path) -> tuple[Any, str]:
    """Return a gateway that may call this machine, not yet entered, and the key's webhook secret."""
    made = gateway_keys(folder, "create", "app").split()
    secret, webhook_secret = (
        next(word for word in made if word.startswith(prefix)) for prefix in ("sk-slipway-", "whsec_")
    )
    arguments = ("--host", "0.0.0.0", "--allow-private-addresses")
    return running_gateway([server.grpc_url], folder, *arguments, key=secret), webhook_secret


def test_notice_is_signed_when_a_job_has_ended(server: Server, receiver: Receiver, tmp_path: Path) -> None:
    running, secret = keyed_gateway(server, tmp_path)
    with running as gateway:
        job = gateway.create(webhook_url=receiver.url, **SMALL)
        gateway.until(job["id"])
        wait_until(lambda: bool(receiver.came), "the webhook")
    headers, body = receiver.came[0]
    told = standardwebhooks.Webhook(secret).verify(body, headers)
    assert told == json.loads(body)
    assert (told["type"], told["data"]["id"]) == ("video.completed", job["id"])
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(secret).verify(body + b" ", headers)


def test_notice_of_a_cancelled_job_comes_too(server: Server, receiver: Receiver, tmp_path: Path) -> None:
    running, _ = keyed_gateway(server, tmp_path)
    with running as gateway:
        job = cancelled(gateway, receiver)
        wait_until(lambda: bool(receiver.came), "the webhook")
    assert json.loads(receiver.came[0][1])["type"] == "video.cancelled"
    assert json.loads(receiver.came[0][1])["data"]["id"] == job


def cancelled(gateway: Gateway, receiver: Receiver) -> str:
    """Cancel a job by leaving while it is made, and return its id."""
    fields = {"prompt": "left", "webhook_url": receiver.url, **SMALL, "steps": 100}
    headers = {"authorization": gateway.http.headers["authorization"], "content-type": "application/json"}
    caller = http.client.HTTPConnection(urlsplit(gateway.url).netloc)
    caller.request("POST", "/v1/videos/sync", json.dumps(fields), headers)

    def jobs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = gateway.http.get("/v1/videos").json()["data"]
        return found

    wait_until(lambda: [job["status"] for job in jobs()] == ["in_progress"], "the job's start")
    caller.close()
    (job,) = jobs()
    return str(gateway.until(job["id"], "cancelled")["id"])
