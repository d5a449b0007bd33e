"""A model's limit of waiting requests: when it asks how many wait, and which of them it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.queue_limits import (
    METRICS_VARIABLE,
    QueueLimit,
    pending_from_metrics,
    select_refused,
)

PAGE = b"""# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="other",version="1"} 40
nv_inference_pending_request_count{model="m",version="1"} 6
nv_inference_pending_request_count{model="m",version="2"} 1
nv_inference_count{model="m",version="1"} 9
"""


class Queue:
    """A queue of a model, with a clock that is told how late it is.

    Args:
        limit: requests that may wait.
    """

    def __init__(self, limit: int | None) -> None:
        self.now_s, self.length, self.asked = 0.0, 0, 0
        self.queue_limit = QueueLimit("m", limit, self._pending, lambda: self.now_s)

    def _pending(self) -> int:
        self.asked += 1
        return self.length

    def batch(self, requests: int, *, after_s: float = 0.0) -> int:
        """Give the model a batch some time after its last; return how many are refused."""
        self.now_s += after_s
        refused = self.refuse(requests)
        self.now_s += 0.1
        self.queue_limit.record_batch_end()
        return refused

    def refuse(self, requests: int) -> int:
        """Refuse those of a batch that are too many; return how many these are."""
        refused = min(self.queue_limit.count_excess(), requests)
        for _ in range(refused):
            self.queue_limit.refuse()
        return refused


def test_those_beyond_the_limit_are_refused_over_as_many_batches_as_it_takes() -> None:
    queue = Queue(limit=4)
    queue.length = 14
    assert queue.batch(4) == 0  # the first after a pause
    assert queue.batch(4) == 4
    queue.length = 6
    assert queue.batch(4) == 2
    queue.length = 4
    assert queue.batch(4) == 0


def test_queue_is_not_asked_about_more_often_than_it_changes() -> None:
    queue = Queue(limit=4)
    queue.length = 14
    queue.batch(4)
    assert [queue.refuse(2) for _ in range(6)] == [2, 2, 2, 2, 2, 0]  # ten were beyond
    assert queue.asked == 1


def test_queue_that_grows_is_foreseen_to_grow_until_it_is_seen_again() -> None:
    queue = Queue(limit=4)
    queue.batch(4)
    queue.length = 14
    assert queue.batch(4) == 4  # it has grown by ten in 0.1 s, the model's own time of a batch
    queue.length = 20
    assert queue.batch(4) == 4  # again by ten, for four were refused
    queue.now_s -= 0.06
    assert queue.queue_limit.count_excess() == 16 - 4 + 4  # 4 of each ten in 0.04 s
    assert queue.asked == 2


def test_queue_that_has_room_is_not_foreseen_to_be_full() -> None:
    queue = Queue(limit=8)
    queue.batch(4)
    queue.length = 7
    queue.batch(4)
    queue.now_s -= 0.06
    assert (queue.queue_limit.count_excess(), queue.asked) == (0, 1)


def test_model_that_pauses_asks_nobody_and_refuses_nobody() -> None:
    queue = Queue(limit=1)
    queue.length = 9
    assert [queue.batch(1, after_s=0.5) for _ in range(4)] == [0] * 4
    assert queue.asked == 0


def test_model_without_a_limit_refuses_nobody() -> None:
    queue = Queue(limit=None)
    queue.length = 1000
    assert [queue.batch(4) for _ in range(4)] == [0] * 4


@pytest.mark.parametrize(
    ("count", "places"),
    [(0, set()), (1, {1}), (2, {1, 4}), (3, {0, 1, 4}), (4, {0, 1, 3, 4}), (9, {0, 1, 3, 4})],
)
def test_those_that_begin_sessions_go_first_and_those_that_end_them_never(
    count: int, places: set[int]
) -> None:
    turns = [Turn(1), Turn(2, start=True), Turn(3, end=True), NO_SESSION, Turn(4, start=True, end=True)]
    assert select_refused(turns, count) == places


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Metrics)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(METRICS_VARIABLE, f"127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()


def test_metrics_tell_how_many_wait_for_the_model(metrics: HTTPServer) -> None:
    warnings: list[str] = []
    pending = pending_from_metrics(["m"], warnings.append)
    assert [pending(), pending()] == [7, 7]
    assert pending_from_metrics(["m", "other"], warnings.append)() == 47
    assert warnings == []


def test_metrics_that_are_not_there_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_VARIABLE, "127.0.0.1:1")
    warnings: list[str] = []
    pending = pending_from_metrics(["m"], warnings.append)
    assert [pending(), pending()] == [0, 0]
    (warning,) = warnings
    assert warning.startswith(
        "m: queue_limit is not enforced, since Triton's metrics cannot be read at 127.0.0.1:1 ("
    )
