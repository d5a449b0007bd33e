"""What programs record, without a Triton: numbers add up, labels stay in their closed sets."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway_serving.protocol.errors import CODES, Unrecoverable
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.metrics import (
    CONTINUATIONS,
    DENOISE_STEP,
    FRAMES,
    METRICS,
    OK,
    REFUSED,
    REQUESTS,
    REQUESTS_STOPPED,
    SESSIONS_OPEN,
    STEPS_REPEATED,
    Recorder,
)
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.sessions import Sessions
from slipway_serving.runtime.triton_metrics import Publisher


def changes(recorder: Recorder) -> dict[tuple[str, str], tuple[float, ...]]:
    return {(change.metric.name, change.value): change.amounts for change in recorder.updates()}


def test_counter_adds_up_and_starts_anew_when_its_changes_are_taken() -> None:
    recorder = Recorder()
    recorder.count(FRAMES, 4)
    recorder.count(FRAMES, 5)
    assert changes(recorder) == {(FRAMES.name, ""): (9,)}
    assert changes(recorder) == {(FRAMES.name, ""): (0,)}


def test_histogram_keeps_each_observation() -> None:
    recorder = Recorder()
    recorder.observe(DENOISE_STEP, 0.25)
    recorder.observe(DENOISE_STEP, 0.5)
    assert changes(recorder) == {(DENOISE_STEP.name, ""): (0.25, 0.5)}
    assert changes(recorder) == {(DENOISE_STEP.name, ""): ()}


def test_gauge_is_read_when_changes_are_taken() -> None:
    recorder = Recorder()
    held = [1]
    recorder.register_gauge(SESSIONS_OPEN, lambda: held[0])
    assert changes(recorder) == {(SESSIONS_OPEN.name, ""): (1,)}
    held[0] = 3
    assert changes(recorder) == {(SESSIONS_OPEN.name, ""): (3,)}


def test_declared_counter_has_all_its_series_at_0() -> None:
    recorder = Recorder()
    recorder.declare(REQUESTS)
    assert changes(recorder) == {(REQUESTS.name, code): (0,) for code in (OK, *CODES, REFUSED)}


def test_stopped_videos_are_counted_by_reason_when_declared() -> None:
    recorder = Recorder()
    recorder.declare(*CONTINUATIONS)
    recorder.count(REQUESTS_STOPPED, value="shutdown")
    recorder.count(STEPS_REPEATED, 3)
    found = changes(recorder)
    stopped = {reason: found[(REQUESTS_STOPPED.name, reason)] for reason in REQUESTS_STOPPED.values}
    assert stopped == {"step": (0,), "shutdown": (1,), "caller": (0,)}
    assert found[(STEPS_REPEATED.name, "")] == (3,)
    assert len(found) == len(CONTINUATIONS) - 1 + 3


def test_reason_of_a_stop_is_refused_when_it_is_a_callers_text() -> None:
    with pytest.raises(Unrecoverable, match="slipway_requests_stopped_total: reason must be one of step, "):
        Recorder().count(REQUESTS_STOPPED, value="because")


@pytest.mark.parametrize("value", ["", "a caller's text", "ok"])
def test_label_outside_its_closed_set_is_refused(value: str) -> None:
    with pytest.raises(Unrecoverable, match=f"slipway_requests_total: code must be one of OK, .*{value!r}"):
        Recorder().count(REQUESTS, value=value)
    with pytest.raises(Unrecoverable, match="slipway_frames_total: a further label must be one of"):
        Recorder().count(FRAMES, value="text")


def test_nothing_is_lost_when_threads_record_and_one_takes() -> None:
    recorder, taken = Recorder(), []
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            taken.append(sum(sum(amounts) for amounts in changes(recorder).values()))

    taker = threading.Thread(target=take)
    writers = [
        threading.Thread(target=lambda: [recorder.count(FRAMES) for _ in range(5000)]) for _ in range(4)
    ]
    for thread in (taker, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    taker.join()
    assert sum(taken) + sum(sum(amounts) for amounts in changes(recorder).values()) == 20_000


def test_metrics_are_named_as_prometheus_wants_them() -> None:
    for metric in METRICS:
        assert metric.name.startswith("slipway_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert list(metric.buckets) == sorted(metric.buckets)
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert len(metric.values) <= 10


def settings(**parameters: str) -> Settings:
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return Settings("held", Path("nowhere/1"), {"parameters": values})


def test_sessions_count_as_open_while_they_wait_and_while_they_are_worked_on() -> None:
    made = settings(max_sessions="7", session_idle_s="60")
    sessions: Sessions[str] = Sessions.from_settings(made)
    try:
        assert changes(made.recorder) == {
            ("slipway_sessions_open", ""): (0,),
            ("slipway_sessions_limit", ""): (7,),
        }
        sessions.store(Turn("waits"), "state")
        assert sessions.acquire(Turn("waits"), str) == "state"
        with sessions.turn(Turn("begins", start=True), str), sessions.turn(Turn(0), str):
            assert sessions.count_open() == 2
            assert changes(made.recorder)["slipway_sessions_open", ""] == (2,)
        sessions.drop(Turn("waits"))
        sessions.drop(Turn("begins"))
        assert sessions.count_open() == 0
        with pytest.raises(ZeroDivisionError), sessions.turn(Turn("fails", start=True), str):
            raise ZeroDivisionError
        assert sessions.count_open() == 0
    finally:
        sessions.close()


class Series:
    """Stands for what the Python backend's stub gives: remembers what it was told."""

    def __init__(self, labels: dict[str, str], buckets: list[float] | None = None) -> None:
        self.labels, self.value, self.observed = labels, 0.0, list[float]()

    def increment(self, amount: float) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value

    def observe(self, amount: float) -> None:
        self.observed.append(amount)


def stub() -> tuple[Any, list[tuple[str, Series]]]:
    made: list[tuple[str, Series]] = []

    class Family:
        COUNTER, GAUGE, HISTOGRAM = range(3)

        def __init__(self, name: str, description: str, kind: int) -> None:
            self.name = name

        def Metric(self, **given: Any) -> Series:  # noqa: N802 - the stub's name
            made.append((self.name, Series(**given)))
            return made[-1][1]

    return SimpleNamespace(MetricFamily=Family), made


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("not within 10 s")


def test_publisher_makes_series_at_0_and_brings_changes_without_being_asked() -> None:
    recorder = Recorder()
    recorder.declare(FRAMES)
    pb_utils, made = stub()
    publisher = Publisher(pb_utils, "net", recorder, interval_s=0.01)
    (name, series), *_ = made  # the thread may have added its heartbeat
    assert (name, series.labels, series.value) == ("slipway_frames_total", {"model": "net"}, 0.0)
    recorder.count(FRAMES, 3)
    until(lambda: series.value == 3)
    publisher.close()


def test_publisher_brings_the_rest_when_it_is_closed() -> None:
    recorder = Recorder()
    pb_utils, made = stub()
    publisher = Publisher(pb_utils, "net", recorder, interval_s=3600)
    recorder.count(REQUESTS, value=OK)
    recorder.observe(DENOISE_STEP, 0.5)
    recorder.register_gauge(SESSIONS_OPEN, lambda: 2)
    publisher.close()
    found = dict(made)
    assert found[REQUESTS.name].labels == {"model": "net", "code": "OK"}
    assert found[REQUESTS.name].value == 1
    assert found[DENOISE_STEP.name].observed == [0.5]
    assert found[SESSIONS_OPEN.name].value == 2


def test_series_outlive_their_publisher_so_that_other_instances_can_go_on() -> None:
    recorder = Recorder()
    recorder.declare(REQUESTS)
    pb_utils, made = stub()
    publisher = Publisher(pb_utils, "net", recorder, interval_s=3600)
    publisher.close()
    kept = [weakref.ref(series) for _, series in made]
    made.clear()
    del publisher
    gc.collect()
    assert len(kept) == len(REQUESTS.values)
    assert all(series() is not None for series in kept)
