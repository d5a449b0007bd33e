"""Queue limits of models: how many requests may wait for a model, and how long.

A model's `config.pbtxt` sets them; an export may change them. Models with long jobs use Triton's queue
policy. Models of short requests use a parameter of our own instead
(:mod:`slipway_serving.runtime.queue_limits`), which limits the number of requests but not the time. With a
queue policy of any kind, Triton 2.51 does not form a batch ahead, and its batcher often sleeps for its full
500 ms while requests wait. In one run, 16 clients of `wakeword_stream` got 25 to 33 answers a second with a
policy, and 168 to 224 without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_serving.protocol.errors import raise_all
from slipway_serving.runtime.queue_limits import QUEUE_LIMIT_PARAMETER

_MICROSECONDS = 1_000_000
# Triton reads 0 as "no limit", so both limits must be above 0.
_MOST_REQUESTS, _MOST_SECONDS = 2**31 - 1, 24 * 3600


@dataclass(frozen=True)
class QueueLimits:
    """Queue limits that a user asked for the models of an export; None keeps the defaults.

    Args:
        requests: Largest number of requests that may wait for each model, 1 or more.
        seconds: Longest time that each may wait, above 0, at most a day; only for models with long jobs.

    Raises:
        InvalidRequest: A limit is out of its range; the message names each.
    """

    requests: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.requests is not None and not 1 <= self.requests <= _MOST_REQUESTS:
            problems.append(f"queue-limit must be 1 or more requests, got {self.requests}; try 256")
        if self.seconds is not None and not (
            math.isfinite(self.seconds) and 0 < self.seconds <= _MOST_SECONDS
        ):
            problems.append(
                f"queue-timeout-s must be above 0 and at most {_MOST_SECONDS} seconds, got {self.seconds:g};"
                " try 10"
            )
        raise_all("export", problems)

    def write(self, config: Path) -> None:
        """Write the limits into a model's `config.pbtxt` where it limits its queue; change nothing else."""
        if self == QueueLimits():
            return
        text = config.read_text(encoding="utf-8")
        parsed = text_format.Parse(text, pb.ModelConfig())
        before = pb.ModelConfig()
        before.CopyFrom(parsed)
        if self.requests is not None and QUEUE_LIMIT_PARAMETER in parsed.parameters:
            parsed.parameters[QUEUE_LIMIT_PARAMETER].string_value = str(self.requests)
        if parsed.dynamic_batching.HasField("default_queue_policy"):
            policy = parsed.dynamic_batching.default_queue_policy
            if self.requests is not None:
                policy.max_queue_size = self.requests
            if self.seconds is not None:
                policy.default_timeout_microseconds = round(self.seconds * _MICROSECONDS)
        if parsed != before:
            config.write_text(text_format.MessageToString(parsed), encoding="utf-8")
