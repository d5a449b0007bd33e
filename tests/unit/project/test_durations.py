"""Durations that callers give: refused by name where timers cannot wait them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_cli import root
from slipway_client import AsyncClient, Client, RetryPolicy, TextToVideoRequest
from slipway_client.address import address_of
from slipway_serving.protocol.durations import LONGEST_S, check
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.triton.config import ServerConfig
from slipway_serving.triton.control import ModelControl

BAD = [1e10, math.inf, -math.inf, math.nan, -1.0, math.nextafter(LONGEST_S, math.inf), True, "60"]
X = {"x": np.ones(1, np.float32)}
REQUEST = TextToVideoRequest(prompt="x")

USES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "client": ("connect_timeout_s", lambda s: Client("localhost:1", connect_timeout_s=s)),
    "async client": ("connect_timeout_s", lambda s: AsyncClient("localhost:1", connect_timeout_s=s)),
    "infer": ("timeout_s", lambda s: Client("localhost:1").infer("m", X, timeout_s=s)),
    "generate": ("timeout_s", lambda s: Client("localhost:1").generate(REQUEST, timeout_s=s)),
    "request": ("timeout_s", lambda s: TextToVideoRequest(prompt="x", timeout_s=s)),
    "address": ("timeout_s", lambda s: address_of("localhost:1", timeout_s=s)),
    "wait": ("max_s", lambda s: RetryPolicy(max_s=s)),
    "budget": ("budget_s", lambda s: RetryPolicy(budget_s=s)),
    "orders": ("load_timeout_s", lambda s: ModelControl("localhost:1", load_timeout_s=s)),
    "start": ("ready_timeout_s", lambda s: ServerConfig(Path("models"), ready_timeout_s=s)),
    "stop": ("exit_timeout_s", lambda s: ServerConfig(Path("models"), exit_timeout_s=s)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("seconds", BAD, ids=repr)
def test_duration_is_refused_by_name_when_timers_cannot_wait_it(use: str, seconds: Any) -> None:
    name, call = USES[use]
    with pytest.raises(InvalidRequest, match=f"{name} must be "):
        call(seconds)


@pytest.mark.parametrize("seconds", [1e-3, 1, LONGEST_S, np.float32(2)])
def test_duration_passes_when_timers_can_wait_it(seconds: float) -> None:
    check("here", "timeout_s", seconds)
    check("here", "timeout_s", None)


def test_zero_is_refused_unless_it_has_a_meaning() -> None:
    check("here", "budget_s", 0, zero=True)
    with pytest.raises(InvalidRequest, match="here: timeout_s must be above 0 and at most 2592000 seconds"):
        check("here", "timeout_s", 0)


OPTIONS = [
    ("ready", "--timeout-s"),
    ("drain", "--timeout-s"),
    ("serve --repository models", "--ready-timeout-s"),
    ("serve --repository models", "--exit-timeout-s"),
    ("manage --repository models", "--export-timeout-s"),
    ("imu-recording out", "--seconds"),
    ("imu-recording out", "--rate"),
    ("imu-recording out", "--rest-s"),
    ("load --family wan_t2v", "--timeout-s"),
    ("load --family wan_t2v", "--seconds"),
    ("load --family wan_t2v", "--think-s"),
    ("load --family wan_t2v", "--session-s"),
    ("load --family wan_t2v", "--wait-s"),
    ("load --family wan_t2v", "--per-s"),
    ("saturate --family wan_t2v", "--seconds"),
    ("saturate --family wan_t2v", "--timeout-s"),
    ("soak --url localhost:1", "--minutes"),
    ("soak --url localhost:1", "--limit-s"),
    ("capacity --each-s 1 --p95-s 1 --users 1", "--service-s"),
    ("capacity --service-s 1 --p95-s 1 --users 1", "--each-s"),
    ("capacity --service-s 1 --each-s 1 --users 1", "--p95-s"),
    ("bench wakeword", "--seconds"),
    ("generate wan_t2v x --output OUT", "--timeout"),
    ("export wan_t2v --checkpoint tiny --repository OUT", "--queue-timeout-s"),
]


@pytest.mark.parametrize(
    ("command", "option", "seconds"),
    [
        *((command, option, seconds) for command, option in OPTIONS for seconds in ("nan", "-1")),
        *(("ready", "--timeout-s", seconds) for seconds in ("inf", "-inf", "1e10")),
    ],
)
def test_option_is_refused_by_name_when_timers_cannot_wait_it(
    command: str, option: str, seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = command.replace("OUT", str(tmp_path / "out.mp4")).split()
    assert root.run([*line, option, seconds]) == 2
    err = capsys.readouterr().err
    assert option.lstrip("-").replace("-", "_") in err.replace("-", "_")
