"""The adapter's own work: what becomes of a request, of answers and of errors, in the log and in the counts.

The Python backend's module is handed to the adapter; here it is records that keep what they are given.
`tests/faults` runs the same adapter within Triton.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_backend import FINAL, Backend, BackendError, Request

from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    SlipwayError,
)
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.adapter import Adapter, instances_of, model_class
from slipway_serving.runtime.limits import LIMITS_VARIABLE
from slipway_serving.runtime.program import Call, Last, Responses, Settings, Tensors
from slipway_serving.runtime.queue_limits import QueueLimit
from slipway_serving.runtime.shutdown import ShutdownStage, announce
from slipway_serving.system.process_state import running_work
from slipway_serving.system.server_folder import FOLDER_VARIABLE

REQUEST_ID = "slipway-" + "0a" * 16


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


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the adapter did that ends a process: noted, not done."""
    done: list[str] = []
    # In a stub these close the server's sockets and kill the process.
    monkeypatch.setattr(
        "slipway_serving.runtime.adapter.close_sockets", lambda: done.append("closed sockets")
    )
    monkeypatch.setattr("slipway_serving.runtime.adapter.exit_soon", lambda: done.append("ends soon"))
    return done


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[str]) -> Iterator[Made]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "server"))
    monkeypatch.delenv(LIMITS_VARIABLE, raising=False)
    adapters: list[Adapter] = []

    def made(program: type = Told, **config: Any) -> tuple[Adapter, Backend]:
        backend = Backend()
        adapter = model_class(backend)()
        parameters = {"program": f"{__name__}:{program.__name__}", **config.pop("parameters", {})}
        values = {name: {"string_value": text} for name, text in parameters.items()}
        adapter.initialize(
            {
                "model_name": "net",
                "model_config": json.dumps({"parameters": values, **config}),
                "model_repository": str(tmp_path),
                "model_version": "1",
                "model_instance_kind": "CPU",
                "model_instance_device_id": "0",
                "model_instance_name": f"net_{len(adapters)}",
            }
        )
        adapters.append(adapter)
        return adapter, backend

    yield made
    for adapter in adapters:
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


def test_request_is_answered_told_and_counted_when_it_is_good(
    make: Made, monkeypatch: pytest.MonkeyPatch, ended: list[str], tmp_path: Path
) -> None:
    answering(monkeypatch, echo)
    adapter, backend = make(instance_group=[{"count": 2}])
    assert ended == ["closed sockets"]
    answers = adapter.execute([Request("a"), Request("b", id="", trace='{"traceparent": "00-abc-def-01"}')])
    assert answers is not None
    assert [answer.tensors for answer in answers] == [{"y": ["a"], "step": [7]}, {"y": ["b"], "step": [7]}]
    assert [(line["event"], line["model"]) for line in backend.lines] == [
        ("started", "net"),
        ("finished", "net"),
    ] * 2
    first, second = backend.lines[1], backend.lines[3]
    assert (first["request_id"], first["responses"], first["steps_done"]) == ("mine", 1, 7)
    assert (first["code"], "trace_id" in first) == ("OK", False)
    assert 0 <= first["elapsed_s"] < 600
    assert second["trace_id"] == "abc"
    assert len(second["request_id"]) == 16
    assert backend.value("slipway_requests_running") == [0.0]
    call = Told.calls[0]
    assert (call.turn, call.limit_s, call.is_cancelled()) == (Turn(), None, False)
    assert not adapter.finalize() and Told.closed
    counts = {series.labels["code"]: series.value for series in backend.series if "code" in series.labels}
    assert (counts["OK"], sum(counts.values())) == (2.0, 2.0)
    assert backend.value("slipway_instances") == [0.0]
    assert backend.value("slipway_model_restarts") == backend.value("slipway_server_restarts") == [0.0]


def test_model_of_short_requests_writes_no_line_when_all_is_well(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, echo)
    adapter, backend = make(Quiet)
    adapter.execute([Request()])
    assert backend.lines == []
    assert backend.value("slipway_requests_running") == []
    answering(monkeypatch, failing(InvalidRequest("net: x must be y")))
    adapter.execute([Request()])
    assert [(line["event"], line["code"]) for line in backend.lines] == [("failed", "INVALID_ARGUMENT")]


BROKEN = (
    "net: the model failed with ZeroDivisionError; see the traceback in the server's log under the request's"
    " id"
)


@pytest.mark.parametrize(
    ("error", "event", "code", "triton", "text"),
    [
        (InvalidRequest("net: bad"), "failed", "INVALID_ARGUMENT", "invalid", "net: bad"),
        (Overloaded("net: full"), "failed", "RESOURCE_EXHAUSTED", "unavailable", "net: full"),
        (Cancelled("net: gone"), "cancelled", "CANCELLED", "cancelled", "net: gone"),
        (DeadlineExceeded("net: late"), "expired", "DEADLINE_EXCEEDED", "cancelled", "net: late"),
        (ZeroDivisionError("secret"), "failed", "INTERNAL", "internal", BROKEN),
    ],
)  # fmt: skip
def test_error_is_the_requests_own_when_a_program_raises_it(
    make: Made,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    event: str,
    code: str,
    triton: str,
    text: str,
) -> None:
    text = f"[{code}] {text}"
    answering(monkeypatch, failing(error))
    adapter, backend = make()
    answers = adapter.execute([Request(), Request()])
    assert answers is not None and len(answers) == 2
    assert [(answer.error.text, answer.error.code) for answer in answers] == [(text, triton)] * 2
    assert answers[0].output_tensors == []
    ends = [line for line in backend.lines if line["event"] == event]
    assert [line["code"] for line in ends] == [code] * 2
    assert all("secret" in line["error"] if triton == "internal" else line["error"] == text for line in ends)
    traces = [line["traceback"] for line in backend.lines if line.get("is_error")]
    # What the caller did is no reason for a traceback; a defect has one each, with its text.
    assert len(traces) == (2 if triton == "internal" else 0)
    assert all("secret" in trace and "in answer" in trace for trace in traces)
    assert error.__traceback__ is None
    assert backend.value("slipway_requests_running") == [0.0]
    adapter.finalize()
    counts = {series.labels["code"]: series.value for series in backend.series if "code" in series.labels}
    assert {name: value for name, value in counts.items() if value} == {code: 2.0}


def test_answer_is_refused_when_a_model_that_answers_once_answers_twice(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, lambda call: iter([{"y": call.tensors["x"]}] * 2))
    adapter, _ = make()
    (answer,) = adapter.execute([Request()]) or []
    assert answer.error.text.startswith("[INTERNAL] net: the model failed with ValueError")


def streamed(adapter: Adapter, request: Request) -> list[tuple[Any, int]]:
    assert adapter.execute([request]) is None
    return [
        (None if sent is None else sent.error.text if sent.error else sent.tensors, flags)
        for sent, flags in request.sent
    ]


DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


def test_stream_ends_with_the_final_flag_once_however_it_ends(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, backend = make(**DECOUPLED)
    first, last = {"y": np.array([1])}, Last({"y": np.array([2])})
    answering(monkeypatch, lambda _: iter([first, last]))
    assert streamed(adapter, Request()) == [({"y": [1]}, 0), ({"y": [2]}, FINAL)]
    answering(monkeypatch, lambda _: iter([first]))
    assert streamed(adapter, Request()) == [({"y": [1]}, 0), (None, FINAL)]
    answering(monkeypatch, lambda _: iter([]))
    assert streamed(adapter, Request()) == [(None, FINAL)]
    answering(monkeypatch, failing(InvalidRequest("net: bad")))
    assert streamed(adapter, Request("after")) == [
        ({"y": ["after"]}, 0),
        ("[INVALID_ARGUMENT] net: bad", FINAL),
    ]

    def fails_late(_: Call) -> Iterator[Tensors]:
        yield last
        raise InvalidRequest("net: too late")

    answering(monkeypatch, fails_late)
    assert streamed(adapter, Request()) == [({"y": [2]}, FINAL)]
    assert backend.lines[-1]["code"] == "INVALID_ARGUMENT"
    finished = [line.get("responses") for line in backend.lines if line["event"] == "finished"]
    assert finished == [2, 1, None]


def test_program_is_told_that_its_request_was_ended_when_another_process_says_so(
    make: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[bool] = []

    def answer(call: Call) -> Iterator[Tensors]:
        seen.append(call.is_cancelled())
        (tmp_path / "server" / f"{REQUEST_ID}.ended").touch()
        seen.append(call.is_cancelled())
        yield {"y": np.array([1])}

    answering(monkeypatch, answer)
    adapter, _ = make(**DECOUPLED)
    streamed(adapter, Request(id=REQUEST_ID))
    assert seen == [False, True]
    assert not list((tmp_path / "server").glob("slipway-*"))
    answering(monkeypatch, lambda call: iter([{"y": np.array([call.is_cancelled()])}]))
    assert streamed(adapter, Request(cancelled=True))[0] == ({"y": [True]}, 0)


@pytest.mark.parametrize(
    ("more", "turn"),
    [
        ({"session": 7, "flags": 1}, Turn(7, start=True)),
        ({"session": "a", "flags": 2}, Turn("a", end=True)),
        ({"session": 7, "flags": 3}, Turn(7, start=True, end=True)),
        ({"parameters": {"sequence_id": 5, "sequence_start": True}}, Turn(5, start=True)),
        ({"parameters": {"sequence_id": 5, "sequence_end": True}}, Turn(5, end=True)),
        ({"session": 7, "parameters": {"sequence_id": 5}}, Turn(7)),
        ({}, Turn()),
    ],
)
def test_turn_is_read_from_the_request_or_its_parameters(
    make: Made, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], turn: Turn
) -> None:
    answering(monkeypatch, echo)
    adapter, _ = make()
    adapter.execute([Request(**more)])
    assert Told.calls[0].turn == turn


@pytest.mark.parametrize(
    ("more", "limit_s"),
    [({"timeout": 2_500_000}, 2.5), ({"parameters": {"timeout": 1_500_000}}, 1.5), ({"timeout": 0}, None)],
)
def test_time_limit_is_in_seconds_when_it_came_in_microseconds(
    make: Made, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], limit_s: float | None
) -> None:
    answering(monkeypatch, echo)
    adapter, _ = make()
    adapter.execute([Request(**more)])
    assert Told.calls[0].limit_s == (None if limit_s is None else pytest.approx(limit_s))


def test_tensor_has_the_shape_that_a_parameter_tells(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, echo)
    adapter, _ = make()
    adapter.execute([Request({"x": np.arange(6)}, parameters={"shape_x": "2,3", "id": "mine"})])
    assert Told.calls[0].tensors["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"parameters": {"steps": 3}}, "net: fields must be inputs of the model, got unknown steps; try"),
        ({"parameters": {"timeout": -1}}, "net: timeout must be a number of microseconds, got -1"),
        ({"parameters": {"shape_x": "2,x"}}, "net: shape_x must be the shape of an input"),
        ({"id": "x" * 129}, "net: request id must be at most 128 bytes"),
        ({"parameters": {"sequence_id": -1}}, "net: session id must be a text of 1 to 128 bytes"),
    ],
)
def test_request_is_refused_by_field_when_what_comes_beside_its_tensors_is_wrong(
    make: Made, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], said: str
) -> None:
    answering(monkeypatch, echo)
    adapter, _ = make()
    (answer,) = adapter.execute([Request(**more)]) or []
    assert answer.error.text.startswith(f"[INVALID_ARGUMENT] {said}")
    assert Told.calls == []


def test_batch_is_answered_together_when_its_program_can(make: Made) -> None:
    adapter, backend = make(Together)
    requests = [Request(2), Request(3, parameters={"steps": 1}), Request(-1), Request(5)]
    answers = adapter.execute(requests) or []
    assert Together.batches == [3]
    assert [answer.tensors for answer in (answers[0], answers[3])] == [{"y": [2]}, {"y": [5]}]
    assert answers[1].error.text.startswith("[INVALID_ARGUMENT] net: fields must be inputs of the model")
    assert answers[2].error.text == "[INVALID_ARGUMENT] net: x must be above 0"
    assert [line["code"] for line in backend.lines] == ["INVALID_ARGUMENT"] * 2
    broken = adapter.execute([Request(0), Request(1)]) or []
    assert [answer.error.code for answer in broken] == ["internal"] * 2
    assert adapter.execute([]) == []
    assert Together.batches == [3, 2]


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
    adapter.finalize()
    assert adapter.is_ready()


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
