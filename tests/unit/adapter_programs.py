"""Programs that answer as a test says, and adapters that run them.

The Python backend's module is handed to the adapter; here it is records that keep what they are given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_backend import Backend

from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.runtime.adapter import Adapter, model_class
from slipway_serving.runtime.limits import LIMITS_VARIABLE
from slipway_serving.runtime.program import Call, Responses, Settings, Tensors
from slipway_serving.system.server_folder import FOLDER_VARIABLE


class Told:
    """A program that answers as its test says; keeps the calls that it was given."""

    reports_requests = True
    answer: Callable[[Call], Iterator[Tensors]]
    calls: list[Call]
    closed = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        type(self).calls = []
        type(self).closed = False

    def run(self, call: Call) -> Responses:
        type(self).calls.append(call)
        yield from type(self).answer(call)

    def close(self) -> None:
        type(self).closed = True


class Quiet(Told):
    """One that does not report its requests."""

    reports_requests = False


class Together(Quiet):
    """One that answers the calls of a batch together, whole numbers only."""

    batches: list[int]

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        type(self).batches = []

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        type(self).batches.append(len(calls))
        if any(call.tensors["x"][0] == 0 for call in calls):
            raise ZeroDivisionError("a zero")
        return [
            InvalidRequest("net: x must be above 0") if call.tensors["x"][0] < 0 else {"y": call.tensors["x"]}
            for call in calls
        ]


Made = Callable[..., tuple[Adapter, Backend]]


def noted_ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of what adapters do from now on that ends a process: noted, not done."""
    done: list[str] = []
    # In a stub these close the server's sockets and kill the process.
    monkeypatch.setattr(
        "slipway_serving.runtime.adapter.close_sockets", lambda: done.append("closed sockets")
    )
    monkeypatch.setattr("slipway_serving.runtime.adapter.exit_soon", lambda: done.append("ends soon"))
    return done


@contextmanager
def adapters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Yield what makes adapters of programs, initialized as Triton does it; free them at last."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "server"))
    monkeypatch.delenv(LIMITS_VARIABLE, raising=False)
    made: list[Adapter] = []

    def make(program: type = Told, **config: Any) -> tuple[Adapter, Backend]:
        backend = Backend()
        adapter = model_class(backend)()
        parameters = {"program": f"{__name__}:{program.__name__}", **config.pop("parameters", {})}
        values = {name: {"string_value": text} for name, text in parameters.items()}
        adapter.initialize(
            {
                "model_name": "net",
                "model_config": json.dumps({"parameters": values, **config}),
                "model_repository": str(folder),
                "model_version": "1",
                "model_instance_kind": "CPU",
                "model_instance_device_id": "0",
                "model_instance_name": f"net_{len(made)}",
            }
        )
        made.append(adapter)
        return adapter, backend

    yield make
    for adapter in made:
        adapter.finalize()


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Call], Any]) -> None:
    for program in (Told, Quiet):
        monkeypatch.setattr(program, "answer", staticmethod(answer), raising=False)


def echo(call: Call) -> Iterator[Tensors]:
    yield {"y": call.tensors["x"], "step": np.array([7])}


def failing(error: BaseException) -> Callable[[Call], Iterator[Tensors]]:
    def answer(call: Call) -> Iterator[Tensors]:
        if call.tensors["x"][0] == "after":
            yield {"y": call.tensors["x"]}
        raise error

    return answer
