"""`slipway bench wakeword` for a moment, from flags to files. Nothing here asserts a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_benchmarks.servers.closed_loop import Load, Target, closed_loop
from slipway_benchmarks.servers.wakeword import BATCHED, LITSERVE_KINDS, PLAIN, compare, triton_target
from slipway_cli import root
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    flags = "--clients 3 --rounds 1 --seconds 0.5 --no-int8 --quiet"
    assert root.run(["bench", "wakeword", *flags.split(), "--output", str(folder)]) == 0
    return folder


def test_all_servers_answer_every_request(output: Path) -> None:
    report: dict[str, Any] = json.loads((output / "wakeword.json").read_text())
    assert list(report["served"]) == ["audio", "stream", "features"]
    for kind, servers in report["served"].items():
        assert list(servers) == [BATCHED, PLAIN, *LITSERVE_KINDS[kind]]
        for served in servers.values():
            assert served["per_s"]["median"] > 0
            assert 0 < served["p50_ms"] <= served["p99_ms"]
        assert servers[BATCHED]["ratio"]["values"] == [1.0]
    assert report["quantized"] == {}


def test_chart_is_a_png(output: Path) -> None:
    assert (output / "wakeword.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_ratio_is_that_of_the_same_round() -> None:
    loads = {
        BATCHED: [Load(300.0, (1.0, 2.0)), Load(100.0, (3.0,))],
        PLAIN: [Load(100.0, (5.0,)), Load(100.0, (7.0,))],
    }
    found = compare(loads)
    assert found[PLAIN].ratio.values == (3.0, 1.0)
    assert (found[BATCHED].p50_ms, found[PLAIN].p50_ms) == (2.0, 6.0)


def test_refused_request_stops_the_load_and_is_told(server: Server) -> None:
    # The Wan server knows no such model.
    unknown = triton_target(server.config.http_port, "features", np.zeros((1, 2, 2), np.float32))
    with pytest.raises(Unrecoverable, match=r"must answer every request, got 4\d\d"):
        closed_loop(unknown, clients=2, seconds=5)


def test_unreachable_server_stops_the_load_and_is_told() -> None:
    with pytest.raises(Unrecoverable, match="must answer every request"):
        closed_loop(Target(9, "/", b"", {}), clients=2, seconds=5)
