"""The adapter's process: what it does not load, which requests it refuses, when it ends, what others see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_programs import Made, Quiet, Told, adapters, answering, echo, failing, noted_ends
from python_backend import Backend, BackendError, Request

from slipway_serving.runtime.adapter import Adapter, instances_of, model_class
from slipway_serving.runtime.limits import LIMITS_VARIABLE
from slipway_serving.runtime.program import Call, Tensors
from slipway_serving.runtime.queue_limits import QueueLimit
from slipway_serving.runtime.shutdown import ShutdownStage, announce
from slipway_serving.system.process_state import running_work


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the adapter did that ends a process: noted, not done."""
    return noted_ends(monkeypatch)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[str]) -> Iterator[Made]:
    with adapters(tmp_path, monkeypatch) as made:
        yield made


class Queue(QueueLimit):
    """A queue in which as many requests are too many as a test says."""

    too_many = 0

    def count_excess(self) -> int:
        return self.too_many


def test_requests_that_are_too_many_are_refused_in_their_places(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, echo)
    adapter, backend = make(Quiet)
    ended_s: list[float] = []
    queue = Queue("net", 4, lambda: 0, clock=lambda: ended_s.append(0.0) or 0.0)
    queue.too_many = 2
    adapter._queue_limit = queue
    given = [
        Request("ends", session=1, flags=2),
        Request("wrong", parameters={"steps": 1}),
        Request("begins", session=2, flags=1),
        Request("goes on", session=3),
    ]
    answers = adapter.execute(given) or []
    refused = [answer.error.text if answer.error else None for answer in answers]
    text = (
        "[RESOURCE_EXHAUSTED] net: the queue is full (at most 4 requests may wait);"
        " try again in a few seconds, or send fewer"
    )
    # The one that begins a session goes first, then the oldest that does not end one.
    assert [found is not None and found.startswith(text) for found in refused] == [False, True, True, False]
    assert [answers[place].tensors["y"] for place in (0, 3)] == [["ends"], ["goes on"]]
    assert answers[1].error.code == "unavailable"
    assert len(Quiet.calls) == 2
    assert backend.lines == []
    assert ended_s == [0.0]
    adapter.finalize()
    counts = {series.labels["code"]: series.value for series in backend.series if "code" in series.labels}
    assert {name: value for name, value in counts.items() if value} == {"OK": 2.0, "RESOURCE_EXHAUSTED": 2.0}


def test_requests_are_refused_when_the_server_is_going(
    make: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answering(monkeypatch, echo)
    pipeline, backend = make()
    other, _ = make(Quiet)
    announce(tmp_path / "server", ShutdownStage.PIPELINES_REFUSE)
    (refused,) = pipeline.execute([Request()]) or []
    assert refused.error.text.startswith(
        "[UNAVAILABLE] net: server is shutting down and takes no new requests"
    )
    assert [line["event"] for line in backend.lines] == ["started", "refused"]
    (answer,) = other.execute([Request()]) or []
    assert answer.error is None
    pipeline.finalize()
    counts = {series.labels["code"]: series.value for series in backend.series if "code" in series.labels}
    assert {name: value for name, value in counts.items() if value} == {"REFUSED": 1.0}


@pytest.mark.parametrize(
    ("program", "stage"),
    [(Told, ShutdownStage.PIPELINES_REFUSE), (Quiet, ShutdownStage.ALL_REFUSE)],
)
def test_model_is_ready_until_it_refuses_requests_or_is_closed(
    make: Made, tmp_path: Path, program: type, stage: ShutdownStage
) -> None:
    """Triton 2.51 does not ask this, so that no real server tests it here."""
    first, _ = make(program)
    second, _ = make(program)
    assert first.is_ready() and second.is_ready()
    first.finalize()
    assert [first.is_ready(), second.is_ready()] == [False, True]
    announce(tmp_path / "server", stage)
    assert not second.is_ready()


def test_model_that_others_call_stays_ready_while_pipelines_finish(make: Made, tmp_path: Path) -> None:
    called, _ = make(Quiet)
    announce(tmp_path / "server", ShutdownStage.PIPELINES_REFUSE)
    assert called.is_ready()


def test_model_is_as_ready_as_its_program_says(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, _ = make()
    monkeypatch.setattr(Told, "is_ready", lambda self: False, raising=False)
    assert not adapter.is_ready()
    monkeypatch.setattr(Told, "is_ready", lambda self: True, raising=False)
    assert adapter.is_ready()


def test_process_ends_once_when_its_device_is_lost(
    make: Made, monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    answering(monkeypatch, failing(RuntimeError("CUDA error: an illegal memory access was encountered")))
    adapter, _ = make()
    assert adapter.is_ready()
    first, second = adapter.execute([Request(), Request()]) or []
    assert first.error.code == "internal"
    assert second.error.text.startswith("[UNAVAILABLE] net: the model's process can no longer use its GPU")
    assert not adapter.is_ready()
    assert ended == ["closed sockets", "ends soon"]


def test_limits_of_the_operator_hold_for_what_opens_a_session_and_what_is_in_none(
    make: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "limits.yaml").write_text("net: {x: 3, steps: 5}\n")
    monkeypatch.setenv(LIMITS_VARIABLE, str(tmp_path / "limits.yaml"))
    answering(monkeypatch, echo)
    number = {"data_type": "TYPE_INT64", "dims": [1], "optional": True}
    adapter, _ = make(input=[{"name": name, **number} for name in ("x", "steps")])

    def said(given: dict[str, int], **more: Any) -> str | None:
        tensors = {name: np.array([value]) for name, value in given.items()}
        (answer,) = adapter.execute([Request(tensors, **more)]) or []
        return answer.error.text if answer.error else None

    assert said({"x": 3, "steps": 5}) is None
    assert "x must be at most 3" in (said({"x": 4, "steps": 5}) or "")
    assert "steps must be given" in (said({"x": 3}) or "")
    assert "steps must be given" in (said({"x": 3}, session=7, flags=1) or "")
    assert said({"x": 3}, session=7) is None


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"program": "nowhere:Net"}, "[INVALID_ARGUMENT] net: parameter program must be an importable"),
        ({"queue_limit": "none"}, "[INVALID_ARGUMENT] net: parameter queue_limit of config.pbtxt must be a"),
    ],
)
def test_model_is_not_loaded_when_its_config_is_wrong(
    make: Made, parameters: dict[str, str], said: str
) -> None:
    with pytest.raises(BackendError) as failure:
        make(parameters=parameters)
    assert str(failure.value).startswith(said)


def test_model_is_not_loaded_when_the_file_of_limits_is_wrong(
    make: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(LIMITS_VARIABLE, str(tmp_path / "absent.yaml"))
    with pytest.raises(BackendError, match=r"^\[INVALID_ARGUMENT\] "):
        make()


def test_model_is_freed_when_it_was_never_built() -> None:
    kind = model_class(Backend())
    assert (kind.__name__, issubclass(kind, Adapter)) == ("TritonPythonModel", True)
    adapter = kind()
    assert not adapter.is_ready()
    adapter.finalize()


def test_requests_are_known_as_worked_on_until_they_are_answered(
    make: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[int, bool]] = []

    def answer(call: Call) -> Iterator[Tensors]:
        (work,) = running_work(tmp_path / "server")
        seen.append((work.requests, work.is_pipeline))
        yield {"y": call.tensors["x"]}

    answering(monkeypatch, answer)
    adapter, _ = make(instance_group=[{"count": 3}])
    adapter.execute([Request(), Request()])
    assert seen == [(2, True)] * 2
    (work,) = running_work(tmp_path / "server")
    assert work.requests == 0
    instances = [
        change.amounts for change in adapter._recorder.updates() if change.metric.name == "slipway_instances"
    ]
    assert instances == [(3.0,)]


def test_requests_of_a_dead_process_leave_the_gauge_when_another_takes_its_place(
    make: Made, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir(mode=0o700)
    place = tmp_path / "server" / "footprints" / "net" / "1-1-net_0"
    place.mkdir(parents=True)
    (place / "work").write_bytes(bytes([1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]))
    _, backend = make()
    assert backend.value("slipway_requests_running") == [-4.0]


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, 0),
        ({"instance_group": [{"kind": "KIND_CPU"}]}, 1),
        ({"instance_group": [{"count": 2}, {"count": "3", "gpus": [0, 1]}]}, 8),
        ({"instance_group": [{"count": 2, "gpus": []}, {"gpus": [0, 1, 2]}]}, 5),
    ],
)
def test_instances_are_counted_for_each_device(config: dict[str, Any], count: int) -> None:
    assert instances_of(config) == count
