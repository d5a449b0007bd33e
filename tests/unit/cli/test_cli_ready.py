"""`slipway ready` and `slipway drain`: each reason for a no has its own line, and an exit code."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from hostile import answered, grpc_peer, http_peer, once
from tritonclient.grpc import service_pb2

from slipway_cli import root


@contextmanager
def tls_peer(folder: Path) -> Iterator[str]:
    """Yield "HOST:PORT" of a web server with TLS; the folder gets the certificate of its authority."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    authority.cert_pem.write_to_path(folder / "ca.crt")

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Page) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return the one line that a command fails with."""
    assert root.run(["ready", *command]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("scheme", ["", "grpc://", "http://"])
@pytest.mark.parametrize("more", [[], ["--live"], ["--model", "m"]])
def test_ready_says_that_nothing_listens(
    scheme: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(capsys, "--url", f"{scheme}localhost:1", *more)
    assert "connection refused, nothing listens at this address; try `slipway serve` there" in line


@pytest.mark.parametrize("scheme", ["", "grpc://", "http://", "https://", "grpcs://"])
def test_ready_says_that_a_host_is_unknown(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, "--url", f"{scheme}no-such-host.invalid:8001")
    assert "no-such-host.invalid:8001: unavailable over " in line and "unknown host" in line


def test_ready_asks_for_readiness_and_for_processes_only_when_it_is_told_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with http_peer({}) as place:
        url = f"http://{place}"
        assert root.run(["ready", "--url", url]) == 0
        assert capsys.readouterr().out == "ready\n"
        assert root.run(["ready", "--url", url, "--live"]) == 0
        assert capsys.readouterr().out == "live\n"
        assert root.run(["ready", "--url", url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == {"url": url, "protocol": "http", "model": None, "state": "ready"}
        assert (
            f"--processes must be used on the server's own machine, got no tritonserver here for {url}"
            in said(capsys, "--url", url, "--processes")
        )


@pytest.mark.parametrize("scheme", ["", "http://", "grpc://"])
def test_ready_waits_for_a_server_that_starts(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    def starts() -> bytes:
        ready = next(answers, True)
        return service_pb2.ServerReadyResponse(ready=ready).SerializeToString()

    def over_http(connection: socket.socket) -> None:
        status = "200 OK" if next(answers, True) else "400 Bad Request"
        connection.sendall(answered(b"", status=status))

    answers = iter([False, False])
    peer = (
        grpc_peer({"ServerReady": lambda _: iter([starts()])})
        if scheme == "grpc://"
        else http_peer({"/v2/health/ready": over_http})
    )
    with peer as place:
        assert root.run(["ready", "--url", f"{scheme}{place}", "--wait-s", "300"]) == 0
    assert capsys.readouterr().out == "ready\n"
    assert next(answers, None) is None


@pytest.mark.parametrize("scheme", ["", "http://", "grpc://"])
def test_ready_says_the_last_reason_when_its_wait_is_over(
    scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(capsys, "--url", f"{scheme}localhost:1", "--wait-s", "0.6")
    assert "connection refused, nothing listens at this address" in line


def test_ready_does_not_wait_for_what_is_not_triton(capsys: pytest.CaptureFixture[str]) -> None:
    with http_peer({"/v2": once(answered(b"{}"))}) as place:
        line = said(capsys, "--url", f"http://{place}", "--wait-s", "1000000")
    assert "this address answers HTTP, but it is not Triton" in line


def test_ready_says_that_a_server_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    no = service_pb2.ServerReadyResponse(ready=False).SerializeToString()
    with (
        http_peer({"/v2/health/ready": once(answered(b"", status="400 Bad Request"))}) as over_http,
        grpc_peer({"ServerReady": lambda _: iter([no])}) as over_grpc,
    ):
        for place in (over_http, over_grpc):
            line = said(capsys, "--url", place)
            assert f"error: {place}: the server is live but not ready" in line
            assert root.run(["ready", "--url", f"http://{over_http}", "--live"]) == 0
            capsys.readouterr()


def test_ready_says_that_a_model_is_unknown_or_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "nope": "Request for unknown model: 'nope' is not found",
        "slow": "Request for unknown model: 'slow' has no available versions",
    }
    paths = {
        f"/v2/models/{name}": once(answered(json.dumps({"error": text}).encode(), status="404 Not Found"))
        for name, text in texts.items()
    }
    with http_peer(paths) as place:
        for name, text in texts.items():
            assert text in said(capsys, "--url", place, "--model", name)


def test_ready_tells_what_does_not_fit_of_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tls_peer(tmp_path) as place:
        for scheme in ("https", "grpcs"):
            line = said(capsys, "--url", f"{scheme}://{place}")
            assert "certificate is not trusted" in line and "ca.crt" in line
        for scheme in ("http", "grpc"):
            line = said(capsys, "--url", f"{scheme}://{place}")
            assert "the server closed the connection" in line and "grpcs:// or https://" in line
        line = said(capsys, "--url", f"https://{place}", "--tls", str(tmp_path))
        assert "this address answers HTTP, but it is not Triton" in line
    with http_peer({}) as plain_http, grpc_peer({}) as plain_grpc:
        for url in (f"https://{plain_http}", f"grpcs://{plain_grpc}"):
            assert "this port does not use TLS" in said(capsys, "--url", url)


def test_ready_tells_the_ports_of_both_protocols_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with http_peer({}) as over_http, grpc_peer({}) as over_grpc:
        assert "this port does not speak gRPC" in said(capsys, "--url", f"grpc://{over_http}")
        assert "this port does not speak HTTP" in said(capsys, "--url", f"http://{over_grpc}")


def test_drain_fails_with_one_line_when_no_server_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["drain", "--metrics", "localhost:1"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: drain: metrics cannot be read at localhost:1") and err.count("\n") == 1


@pytest.mark.parametrize(
    "page", [b"", b"<html>welcome</html>", b"up 1\n", b"nv_x 1\nslipway_requests_running NaN\n"]
)
def test_drain_does_not_take_the_page_of_another_server_for_idle(
    page: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_peer({"/metrics": once(answered(page))}) as place:
        assert root.run(["drain", "--metrics", place, "--timeout-s", "0"]) == 1
    assert "drain: metrics cannot be read at" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--refuse", "--checkpoint"])
def test_drain_names_the_flag_that_cannot_work_when_the_server_is_elsewhere(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_peer({"/metrics": once(answered(b"nv_x 1\n"))}) as place:
        assert root.run(["drain", "--metrics", place, "--timeout-s", "0", flag]) == 1
    err = capsys.readouterr().err
    assert f"drain: {flag} needs a server on this machine, and none has its metrics at {place}" in err
    assert f"or without {flag}" in err and err.count("\n") == 1
