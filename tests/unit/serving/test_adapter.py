"""The adapter's own work: what becomes of a request, of answers and of errors, in the log and in the counts.

`tests/faults` runs the same adapter within Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_programs import Made, Quiet, Together, Told, adapters, answering, echo, failing, noted_ends
from python_backend import FINAL, Request

from slipway_serving.protocol.errors import Cancelled, DeadlineExceeded, InvalidRequest, Overloaded
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.adapter import Adapter
from slipway_serving.runtime.program import Call, Last, Tensors
from slipway_serving.runtime.shutdown import ShutdownStage, announce
from slipway_serving.system.server_folder import FOLDER_VARIABLE

REQUEST_ID = "slipway-" + "0a" * 16


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the adapter did that ends a process: noted, not done."""
    return noted_ends(monkeypatch)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[str]) -> Iterator[Made]:
    with adapters(tmp_path, monkeypatch) as made:
        yield made


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


def test_turns_that_leave_are_answered_when_the_server_shuts_down(
    make: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answering(monkeypatch, echo)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "server"))
    adapter, _ = make()
    announce(tmp_path / "server", ShutdownStage.ALL_REFUSE)
    start, end = 1, 2
    number = {"snapshot_part": np.array([0]), "x": np.array(["x"])}
    leaving = [Request(number, session=5), Request("x", session=5, flags=end)]
    refused = [
        Request("x", session=5),
        Request("x", session=5, flags=start | end),
        Request(number, session=5, flags=start),
        Request(number),
    ]
    answers = adapter.execute([*leaving, *refused])
    assert answers is not None
    errors = ["" if answer.error is None else answer.error.text for answer in answers]
    assert errors[:2] == ["", ""]
    assert all("is shutting down" in error for error in errors[2:])
