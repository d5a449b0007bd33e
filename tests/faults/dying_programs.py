"""Programs of served models whose processes die of what a request says; copied beside their model.py."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.runtime.program import Call, Models, Responses, Settings, Tensors
from slipway_serving.runtime.sessions import Sessions


class Sum:
    """Adds up x over the turns of a session; a negative x is the signal that its process dies of."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._sessions: Sessions[float] = Sessions.from_settings(settings)

    def run(self, call: Call) -> Responses:
        """Answer with the sum so far."""
        x = float(call.tensors["x"][0])
        _die_of(x)
        with self._sessions.turn(call.turn, lambda: 0.0) as session:
            session.state += x
        yield _y(session.state)

    def close(self) -> None:
        """End all sessions."""
        self._sessions.close()


class Failing:
    """Fails with 0; answers anything else with how many of its failed requests are in memory still."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        gc.disable()  # What only a collection would free is there when the process ends, too.
        self._failed: weakref.WeakSet[Models] = weakref.WeakSet()

    def run(self, call: Call) -> Responses:
        """Fail or answer."""
        if not call.tensors["x"][0]:
            self._failed.add(call.models)
            raise InvalidRequest("failing: x must not be 0, got 0")
        yield _y(len(self._failed))

    def close(self) -> None:
        """Hold nothing."""


class FailingTogether(Failing):
    """The same for batches, whose errors are kept until all calls have their answers."""

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Fail or answer each call."""
        answers: list[Tensors | SlipwayError] = []
        for call in calls:
            try:
                answers += self.run(call)
            except SlipwayError as error:
                answers.append(error)
        return answers


class Pipeline:
    """Answers 0, then what the model `sum` makes of x; of -109 it dies itself, by signal 9."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        """Take nothing of the settings."""

    def run(self, call: Call) -> Responses:
        """Answer twice."""
        yield _y(0.0)
        x = float(call.tensors["x"][0])
        if x < -100:
            _die_of(x + 100)
        yield call.models.call("sum", dict(call.tensors), ["y"])

    def close(self) -> None:
        """Hold nothing."""


class Gated:
    """Answers the number of its process, and x once the file of its parameter `gate` is there."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        self._gate = Path(settings.parameters["gate"])

    def run(self, call: Call) -> Responses:
        """Answer twice."""
        yield _y(os.getpid())
        while not self._gate.exists():
            time.sleep(0.05)
        yield {"y": call.tensors["x"]}

    def close(self) -> None:
        """Hold nothing."""


def _die_of(number: float) -> None:
    if number < 0:
        os.kill(os.getpid(), signal.Signals(int(-number)))


def _y(value: float) -> Tensors:
    return {"y": np.array([value], np.float32)}
