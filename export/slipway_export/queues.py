"""How many requests may wait for a model, and how long, as its `config.pbtxt` says; an export may say others.

Models whose jobs take long have Triton's queue policy. Models of short requests have a parameter of ours
instead (:mod:`slipway_serving.waiting`), a number and no time: with a policy of any kind Triton 2.51 does not
form a batch ahead, and its batcher often sleeps for its full 500 ms while requests wait. 16 clients of
`wakeword_stream` got 25 to 33 answers a second so, and 168 to 224 without, in one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_serving.errors import raise_all
from slipway_serving.waiting import PARAMETER

_MICROSECONDS = 1_000_000
# Triton takes 0 for no limit.
_MOST_REQUESTS, _MOST_SECONDS = 2**31 - 1, 24 * 3600


@dataclass(frozen=True)
class QueueLimits:
    """What a user asked of the queues of an export's models; None leaves the defaults.

    Args:
        requests: that may wait for each model, 1 or more.
        seconds: that each may wait, above 0, at most a day; for models of long jobs.

    Raises:
        InvalidRequest: naming what is out of its range.
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
        """Put them into a model's `config.pbtxt` where that limits its queue; change nothing else."""
        if self == QueueLimits():
            return
        text = config.read_text(encoding="utf-8")
        parsed = text_format.Parse(text, pb.ModelConfig())
        before = pb.ModelConfig()
        before.CopyFrom(parsed)
        if self.requests is not None and PARAMETER in parsed.parameters:
            parsed.parameters[PARAMETER].string_value = str(self.requests)
        if parsed.dynamic_batching.HasField("default_queue_policy"):
            policy = parsed.dynamic_batching.default_queue_policy
            if self.requests is not None:
                policy.max_queue_size = self.requests
            if self.seconds is not None:
                policy.default_timeout_microseconds = round(self.seconds * _MICROSECONDS)
        if parsed != before:
            config.write_text(text_format.MessageToString(parsed), encoding="utf-8")
