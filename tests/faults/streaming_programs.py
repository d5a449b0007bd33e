"""Served models some of which stream from others; copied beside their model.py."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from slipway_serving.runtime.program import Call, Last, Responses, Settings

PARTS = np.array([30], np.float32)


class _Stateless:
    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        del settings

    def close(self) -> None:
        """Hold nothing."""


class Parts(_Stateless):
    """Streams as many parts as it is asked for."""

    def run(self, call: Call) -> Responses:
        """Yield an array and its number for each part."""
        for number in range(int(call.tensors["x"][0])):
            yield {"y": np.array([number], np.float32), "unwanted": np.full(4, number, np.float32)}


class Whole(_Stateless):
    """Streams the parts together as often as it is asked to."""

    def run(self, call: Call) -> Responses:
        """Count all parts that came."""
        count = 0
        for _ in range(int(call.tensors["x"][0])):
            for number, _ in enumerate(call.models.stream("parts", {"x": PARTS}, ["y"]), 1):
                if number == PARTS[0]:
                    # Triton is told of a stream's end after this, so a while after Python is done with it.
                    pb_utils.Logger.log_verbose("0" * 500_000)
            count += number
            # Meanwhile Python's own objects come and go, of the size of an array's head.
            for _ in range(10):
                [bytes(55) for _ in range(2000)]
        yield {"y": np.array([count], np.float32), "unwanted": np.zeros(4, np.float32)}


class Killing(_Stateless):
    """Kills the process of its caller, if it is told which, and answers then."""

    def run(self, call: Call) -> Responses:
        """Answer once."""
        if pid := int(call.tensors["x"][0]):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
        yield Last(y=np.ones(1, np.float32), unwanted=np.zeros(4, np.float32))


class Killed(_Stateless):
    """Asks the model that kills it."""

    def run(self, call: Call) -> Responses:
        """Never answer."""
        yield from call.models.stream("killing", {"x": np.array([os.getpid()], np.float32)}, ["y"])
