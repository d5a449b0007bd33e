"""Queues' limits in configurations: which models have them, and what an export's own ones change."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.repository.queues import QueueLimits
from slipway_serving.protocol.errors import InvalidRequest

LIMITED = (
    'backend: "python" dynamic_batching { max_queue_delay_microseconds: 1500'
    " default_queue_policy { max_queue_size: 256 default_timeout_microseconds: 10000000 } }"
)


def written(folder: Path, text: str, limits: QueueLimits) -> str:
    path = folder / "config.pbtxt"
    path.write_text(text, encoding="utf-8")
    limits.write(path)
    return path.read_text(encoding="utf-8")


def policy(text: str) -> pb.ModelQueuePolicy:
    return text_format.Parse(text, pb.ModelConfig()).dynamic_batching.default_queue_policy


def test_limits_of_an_export_replace_those_that_are_given_and_no_others(tmp_path: Path) -> None:
    fewer = policy(written(tmp_path, LIMITED, QueueLimits(requests=8)))
    assert (fewer.max_queue_size, fewer.default_timeout_microseconds) == (8, 10_000_000)
    shorter = policy(written(tmp_path, LIMITED, QueueLimits(seconds=0.5)))
    assert (shorter.max_queue_size, shorter.default_timeout_microseconds) == (256, 500_000)
    assert written(tmp_path, LIMITED, QueueLimits()) == LIMITED


def test_limit_of_short_requests_is_replaced_and_gets_no_time(tmp_path: Path) -> None:
    text = 'backend: "python" parameters { key: "queue_limit" value { string_value: "64" } }'
    fewer = text_format.Parse(written(tmp_path, text, QueueLimits(8, 0.5)), pb.ModelConfig())
    assert fewer.parameters["queue_limit"].string_value == "8"
    assert not fewer.HasField("dynamic_batching")


@pytest.mark.parametrize("text", ['backend: "python"', 'backend: "python" dynamic_batching { }'])
def test_model_without_limits_gets_none(tmp_path: Path, text: str) -> None:
    assert written(tmp_path, text, QueueLimits(8, 1.0)) == text


@pytest.mark.parametrize(
    ("requests", "seconds", "said"),
    [
        (0, None, "queue-limit must be 1 or more requests, got 0; try 256"),
        (-1, 1.0, "queue-limit must be 1 or more requests, got -1"),
        (1, 0.0, "queue-timeout-s must be above 0 and at most 86400 seconds, got 0; try 10"),
        (1, float("nan"), "queue-timeout-s must be above 0"),
        (0, 1e9, "queue-limit must .* | queue-timeout-s must"),
    ],
)
def test_limits_are_refused_when_out_of_range(requests: int | None, seconds: float | None, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        QueueLimits(requests, seconds)
