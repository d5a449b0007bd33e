"""When a server is asked to stop a request, without a server."""

from __future__ import annotations

import asyncio
import threading

import pytest

from slipway_client import stop_requests
from slipway_client.cancellation import cancel_message
from slipway_client.grpc import messages

pytestmark = pytest.mark.timeout(60)


class Server:
    """A server that does not find a request at first.

    Args:
        unknown: How often it does not, or cannot be asked.
    """

    def __init__(self, *unknown: bool | None) -> None:
        self._answers = [*unknown, True]
        self.found = threading.Event()

    def ask(self) -> bool | None:
        answer = self._answers.pop(0)
        if answer:
            self.found.set()
        return answer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_requests, "POLL_S", 0.001)
    monkeypatch.setattr(stop_requests, "_FIRST_WAIT_S", 0.001)


def test_server_is_asked_again_until_it_finds_the_request() -> None:
    stop, server = threading.Event(), Server(False, None, False)
    with stop_requests.stop_when_set(stop, server.ask):
        assert not server.found.is_set()
        stop.set()
        assert server.found.wait(50)
    assert server._answers == []


async def test_server_is_asked_again_until_it_finds_the_request_in_an_event_loop() -> None:
    stop, server, found = asyncio.Event(), Server(False, None, False), asyncio.Event()

    async def ask() -> bool | None:
        answer = server.ask()
        if answer:
            found.set()
        return answer

    with stop_requests.async_stop_when_set(stop, ask):
        stop.set()
        await asyncio.wait_for(found.wait(), 50)
    assert server._answers == []


def test_server_is_not_asked_when_the_request_ended_before_the_stop() -> None:
    stop, server, before = threading.Event(), Server(), {*threading.enumerate()}
    with stop_requests.stop_when_set(stop, server.ask):
        (watch,) = {*threading.enumerate()} - before
    watch.join(50)
    stop.set()
    assert not watch.is_alive() and not server.found.is_set()


async def test_server_is_not_asked_in_an_event_loop_when_the_request_ended_before_the_stop() -> None:
    stop, before = asyncio.Event(), asyncio.all_tasks()

    async def ask() -> bool | None:
        raise AssertionError

    with stop_requests.async_stop_when_set(stop, ask):
        (watch,) = asyncio.all_tasks() - before
    stop.set()
    await asyncio.wait([watch], timeout=50)
    assert watch.cancelled()


def test_nothing_waits_when_the_caller_cannot_stop() -> None:
    before = threading.active_count()
    with stop_requests.stop_when_set(None, Server().ask):
        assert threading.active_count() == before


def test_wait_between_two_questions_grows_to_a_second() -> None:
    waits = stop_requests._waits_s()
    assert [next(waits) for _ in range(12)][-3:] == [0.512, 1.0, 1.0]


def test_cancel_message_says_stop_only_when_it_is_one() -> None:
    # An earlier server has no such input and still cancels.
    model, tensors = cancel_message("slipway-1")
    assert (model, [*tensors]) == ("slipway_cancel", ["ended_id"])
    _, tensors = cancel_message("slipway-1", stop=True)
    assert tensors["stop"].tolist() == [True]


def test_grpc_message_has_a_priority_only_when_there_is_one() -> None:
    assert "priority" not in messages.request("m", {}).parameters
    assert messages.request("m", {}, priority=1).parameters["priority"].uint64_param == 1
