"""TLS and mutual TLS with generated certificates: Triton's gRPC itself, its HTTP behind a proxy."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trustme
from load_environment import assert_all_answered, load_environment
from onnx import ModelProto, TensorProto, helper
from server_fixtures import affine, any_port, graph, tensor, write_model

from slipway_cli.root import run
from slipway_client import AsyncClient, Client, InvalidRequest, NotReady, RetryPolicy
from slipway_serving.triton.server import Server

ONES = np.ones((1, 4), np.float32)
AT_ONCE = RetryPolicy(budget_s=0.0)


def uncorrected() -> ModelProto:
    """What `airimu` answers, by a network that corrects nothing."""
    shape: list[int | str] = ["batch", "frames", 3]
    signals = ("acc", "gyro")
    nodes = [helper.make_node("Identity", [name], [f"corrected_{name}"]) for name in signals]
    nodes += [helper.make_node("Sub", [name, name], [f"correction_{name}"]) for name in signals]
    outputs = [f"{kind}_{name}" for kind in ("corrected", "correction") for name in signals]
    given, answered = (dict.fromkeys(names, (TensorProto.FLOAT, shape)) for names in (signals, outputs))
    return graph(nodes, given, answered)


def write(folder: Path, authority: trustme.CA | None, own: trustme.LeafCert | None) -> Path:
    """Write certificates as a Kubernetes secret has them."""
    folder.mkdir()
    if authority is not None:
        authority.cert_pem.write_to_path(folder / "ca.crt")
    if own is not None:
        own.private_key_pem.write_to_path(folder / "tls.key")
        for blob in own.cert_chain_pems:
            blob.write_to_path(folder / "tls.crt", append=True)
    return folder


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a server, of a caller whom it knows, of one without a certificate, and of strangers."""
    folder, ours, theirs = tmp_path_factory.mktemp("tls"), trustme.CA(), trustme.CA()
    caller = ours.issue_cert("caller@example.org")
    return {
        "server": write(folder / "server", ours, ours.issue_cert("127.0.0.1", "localhost")),
        "caller": write(folder / "caller", ours, caller),
        "nameless": write(folder / "nameless", ours, None),
        "stranger": write(folder / "stranger", ours, theirs.issue_cert("caller@example.org")),
        "misled": write(folder / "misled", theirs, caller),
    }


@pytest.fixture(scope="module")
def urls(certificates: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server that asks callers for certificates: by gRPC itself, by HTTP through a proxy."""
    repository = tmp_path_factory.mktemp("secured") / "models"
    config = (
        "max_batch_size: 8\n" + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
    )
    write_model(repository, "affine", affine(), config)
    model = uncorrected()
    sides = {"input": model.graph.input, "output": model.graph.output}
    tensors = (tensor(side, each.name, "FP32", "[-1, 3]") for side in sides for each in sides[side])
    write_model(repository, "airimu", model, "max_batch_size: 8\n" + "".join(tensors))
    own = certificates["server"]
    flags = (
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={own / 'tls.crt'}",
        f"--grpc-server-key={own / 'tls.key'}",
        f"--grpc-root-cert={own / 'ca.crt'}",
    )
    with Server(any_port(repository, arguments=flags)) as server, proxy(own, server.config.http_port) as port:
        yield {"grpc": f"grpcs://{server.grpc_url}", "http": f"https://127.0.0.1:{port}"}


class proxy:  # noqa: N801  # a context manager, read like a function
    """Ends TLS before an HTTP port, as an ingress does, and asks callers for a certificate."""

    def __init__(self, certificates: Path, port: int) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.crt")
        self._context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._behind = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        listening = asyncio.start_server(self._connect, "127.0.0.1", 0, ssl=self._context)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(60)
        return int(server.sockets[0].getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(1 << 16):
        sink.write(chunk)
        await sink.drain()
    sink.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_caller_with_a_certificate_is_served(
    urls: dict[str, str], certificates: dict[str, Path], protocol: str
) -> None:
    with Client(urls[protocol], protocol, tls=certificates["caller"]) as client:
        np.testing.assert_array_equal(client.infer("affine", {"x": ONES})["y"], 2 * ONES + 1)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_async_caller_with_a_certificate_is_served(
    urls: dict[str, str], certificates: dict[str, Path], protocol: str
) -> None:
    async with AsyncClient(urls[protocol], protocol, tls=certificates["caller"]) as client:
        answer = await client.infer("affine", {"x": ONES})
    np.testing.assert_array_equal(answer["y"], 2 * ONES + 1)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("who", ["nameless", "stranger", "misled", None])
def test_caller_is_not_served_when_either_does_not_trust_the_other(
    urls: dict[str, str], certificates: dict[str, Path], protocol: str, who: str | None
) -> None:
    """No certificate, another authority's, a server of an unknown authority, the system's authorities."""
    tls = certificates[who] if who is not None else None
    with (
        Client(urls[protocol], protocol, tls=tls, retry=AT_ONCE, connect_timeout_s=60) as client,
        pytest.raises(NotReady),
    ):
        client.infer("affine", {"x": ONES}, timeout_s=60)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_caller_without_tls_is_not_served(urls: dict[str, str], protocol: str) -> None:
    plain = urls[protocol].partition("://")[2]
    with Client(plain, protocol, retry=AT_ONCE) as client, pytest.raises(NotReady):
        client.infer("affine", {"x": ONES}, timeout_s=60)


def test_command_takes_certificates_from_a_folder(
    urls: dict[str, str], certificates: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ready = ["ready", "--url", urls["http"], "--timeout-s", "60"]
    assert run([*ready, "--tls", str(certificates["caller"])]) == 0
    assert run([*ready, "--tls", str(certificates["stranger"])]) == 1
    assert run(["ready", "--tls", str(certificates["caller"])]) == 2
    assert "try the scheme grpcs:// or https://" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_locust_is_served_with_a_certificate_and_told_without_one(
    urls: dict[str, str], certificates: dict[str, Path], shared: Path, tmp_path: Path, protocol: str
) -> None:
    environment, line = load_environment(shared), "--family airimu --users 2 --seconds 3"
    done = environment.load(tmp_path, urls[protocol], f"{line} --tls {certificates['caller']}")
    assert_all_answered(done, "airimu")
    refused = environment.load(tmp_path, urls[protocol], f"{line} --tls {certificates['nameless']}")
    assert refused.code == 1 and "error: load: server must be ready at" in refused.output, refused.output


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "must contain ca.crt, or tls.crt with tls.key, or all three, got none of them"),
        ({"tls.crt": "caller/tls.crt"}, "got tls.crt"),
        ({"tls.crt": "caller/tls.crt", "tls.key": "stranger/tls.key"}, "must contain PEM certificates"),
        ({"ca.crt": "caller/tls.key"}, "must contain PEM certificates"),
    ],
)
def test_folder_that_holds_no_certificates_is_refused(
    certificates: dict[str, Path], tmp_path: Path, files: dict[str, str], text: str, protocol: str
) -> None:
    for name, source in files.items():
        (tmp_path / name).write_bytes((certificates["caller"].parent / source).read_bytes())
    url = "grpcs://localhost:1" if protocol == "grpc" else "https://localhost:1"
    with pytest.raises(InvalidRequest, match=text):
        Client(url, protocol, tls=tmp_path)
