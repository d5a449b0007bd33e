"""Videos that stop, and that a client continues on another server: over both protocols, blocking and not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from scripted_peer import (
    SHEET,
    SHORT,
    WHOLE,
    Fleet,
    Script,
    continued,
    part,
    request,
    sent_fields,
    sent_state,
    service,
    state_bytes,
    steps,
    stopped,
)

from slipway_client import Checkpoint, Moved, Progress, RetryPolicy, Stopped, Video, server_list
from slipway_client.moving import MOST_FAILURES
from slipway_client.states import split_state
from slipway_serving.protocol.errors import (
    Cancelled,
    InvalidRequest,
    Malformed,
    NotReady,
    Overloaded,
    SessionLost,
    SlipwayError,
    Unrecoverable,
)
from slipway_serving.protocol.events import WAITING

pytestmark = pytest.mark.timeout(120)
SHUTTING_DOWN = [*steps(1, 2), *stopped(2, "shutdown")]
REST = [continued(2), *steps(3, 4), *WHOLE]
GONE = NotReady("wan_t2v: gone")
SAFE = request(checkpoint_every_steps=1)
STOPPED = Stopped("shutdown", 2, 4, state_bytes(2))


@pytest.fixture(params=[("grpc", False), ("grpc", True), ("http", False), ("http", True)], ids=str)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    protocol, asynchronous = request.param
    with ExitStack() as stack:
        yield Fleet(protocol, asynchronous, stack)


ONE_CLIENT = pytest.mark.parametrize("fleet", [("grpc", False), ("grpc", True)], indirect=True, ids=str)


def test_video_continues_at_the_next_address_when_its_server_shuts_down(fleet: Fleet) -> None:
    fleet.start(Script(SHUTTING_DOWN), Script(REST))
    events = fleet.ask("generate", request())
    moved = Moved(*fleet.urls, 2, "shutdown")
    assert events == [*steps(1, 2), moved, continued(2), *steps(3, 4), Video(b"abcd", 1.5, moves=1)]
    (first,), (second,) = (peer.asked for peer in fleet.peers)
    sent = sent_fields(second)
    assert (sent.pop("continue_from"), sent.pop("steps_seen")) == (state_bytes(2), 2)
    assert sent == sent_fields(first)
    assert fleet.ask.client.url == fleet.urls[1]


def test_video_continues_over_a_new_connection_when_its_address_is_a_service_name(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_list, "is_service_name", lambda _: True)
    ports: list[int] = []
    fleet.add(Script([*SHUTTING_DOWN, lambda: ports.pop(0)]))
    fleet.add(Script(REST))
    ports += [int(url.rpartition(":")[2]) for url in fleet.urls]
    url = f"{fleet.protocol}://127.0.0.1:{fleet.stack.enter_context(service(ports))}"
    fleet.connect(url)
    events = fleet.ask("generate", request())
    assert Moved(url, url, 2, "shutdown") in events
    assert events[-1] == Video(b"abcd", 1.5, moves=1)
    assert [len(peer.asked) for peer in fleet.peers] == [1, 1]


def test_state_is_given_to_the_caller_when_there_is_no_other_server(fleet: Fleet) -> None:
    fleet.start(Script(SHUTTING_DOWN))
    assert fleet.ask("generate", request()) == [*steps(1, 2), STOPPED]
    assert len(fleet.peers[0].asked) == 1


@pytest.mark.parametrize("reason", ["step", "caller"])
@ONE_CLIENT
def test_video_does_not_move_when_it_was_to_stop(fleet: Fleet, reason: str) -> None:
    fleet.start(Script([*steps(1), *stopped(1, reason)]), Script(REST))
    assert fleet.ask("generate", request()) == [*steps(1), Stopped(reason, 1, 4, state_bytes(1))]
    assert fleet.peers[1].asked == []


@ONE_CLIENT
def test_stream_gives_the_parts_of_a_state_and_does_not_move(fleet: Fleet) -> None:
    fleet.start(Script(SHUTTING_DOWN), Script(REST))
    assert fleet.ask("stream", request()) == SHUTTING_DOWN
    assert fleet.peers[1].asked == []


def test_third_server_takes_over_when_the_second_refuses(fleet: Fleet) -> None:
    fleet.start(Script(SHUTTING_DOWN), Script([Overloaded("wan_t2v: full")]), Script(REST))
    events = fleet.ask("generate", request())
    assert [event for event in events if isinstance(event, Moved)] == [
        Moved(fleet.urls[0], fleet.urls[2], 2, "shutdown")
    ]
    assert events[-1].moves == 1


@ONE_CLIENT
def test_move_is_told_when_the_server_begins_to_work_and_not_while_the_request_waits(fleet: Fleet) -> None:
    waiting = Progress(0, 4, 0.5, phase=WAITING)
    fleet.start(Script(SHUTTING_DOWN), Script([waiting, GONE]), Script([waiting, *REST]))
    events = fleet.ask("generate", request())
    assert events[2:5] == [waiting, waiting, Moved(fleet.urls[0], fleet.urls[2], 2, "shutdown")]


@ONE_CLIENT
def test_result_tells_when_another_engine_continued_it(fleet: Fleet) -> None:
    fleet.start(Script(SHUTTING_DOWN), Script([continued(2, False), *steps(3, 4), *WHOLE]))
    assert fleet.ask("generate", request())[-1] == Video(b"abcd", 1.5, moves=1, same_engine=False)


def test_state_is_given_to_the_caller_when_no_server_takes_over_within_the_budget(fleet: Fleet) -> None:
    fleet.start(Script(SHUTTING_DOWN, [GONE]), Script([Overloaded("wan_t2v: full")]), retry=SHORT)
    assert fleet.until_error(request()) == ([*steps(1, 2), STOPPED], None)


@ONE_CLIENT
def test_state_is_given_before_the_error_when_the_next_server_does_not_take_it(fleet: Fleet) -> None:
    other = InvalidRequest("wan_t2v: continue_from must be of this server's checkpoint")
    fleet.start(Script(SHUTTING_DOWN), Script([other]))
    events, error = fleet.until_error(request())
    assert events == [*steps(1, 2), STOPPED]
    assert isinstance(error, InvalidRequest)


@ONE_CLIENT
def test_state_is_given_before_the_error_when_the_next_server_fails_later(fleet: Fleet) -> None:
    fleet.start(Script(SHUTTING_DOWN), Script([continued(2), GONE]))
    events, error = fleet.until_error(request())
    assert events == [*steps(1, 2), Moved(*fleet.urls, 2, "shutdown"), continued(2), STOPPED]
    assert isinstance(error, NotReady)


@ONE_CLIENT
def test_stop_is_whole_when_the_connection_breaks_after_it(fleet: Fleet) -> None:
    fleet.start(Script([*SHUTTING_DOWN, GONE]))
    assert fleet.ask("generate", request()) == [*steps(1, 2), STOPPED]


def test_video_continues_from_its_last_state_when_its_server_fails(fleet: Fleet) -> None:
    failing = [*steps(1), *sent_state(1), *steps(2, 3), GONE]
    fleet.start(Script(failing, [Overloaded("wan_t2v: full")], [continued(1), *steps(2, 3, 4), *WHOLE]))
    (url,) = fleet.urls
    assert fleet.ask("generate", SAFE) == [
        *steps(1), Checkpoint(state_bytes(1), 1), *steps(2, 3), Moved(url, url, 1, "unavailable"),
        continued(1), *steps(2, 3, 4), Video(b"abcd", 1.5, steps_repeated=2, moves=1),
    ]  # fmt: skip
    for asked in fleet.peers[0].asked[1:]:
        sent = sent_fields(asked)
        assert (sent["continue_from"], sent["steps_seen"]) == (state_bytes(1), 3)


def test_video_begins_again_when_its_server_fails_before_a_state_came(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1, 2), sent_state(2)[0], GONE]), Script([*steps(1, 2, 3, 4), *WHOLE]))
    events = fleet.ask("generate", SAFE)
    assert events[2] == Moved(*fleet.urls, 0, "unavailable")
    assert events[-1] == Video(b"abcd", 1.5, steps_repeated=2, moves=1)
    assert "continue_from" not in sent_fields(fleet.peers[1].asked[0])


@ONE_CLIENT
def test_checkpoint_is_given_when_the_server_fails_right_after_it(fleet: Fleet) -> None:
    fleet.start(Script([*steps(2), *sent_state(2), GONE], REST))
    assert fleet.ask("generate", SAFE)[:3] == [
        *steps(2), Checkpoint(state_bytes(2), 2), Moved(fleet.urls[0], fleet.urls[0], 2, "unavailable")
    ]  # fmt: skip


@ONE_CLIENT
def test_steps_are_counted_anew_when_a_server_fails_twice(fleet: Fleet) -> None:
    again = [continued(1), *steps(2), GONE]
    fleet.start(Script([*sent_state(1), *steps(2, 3), GONE], again, [continued(1), *steps(2, 3, 4), *WHOLE]))
    result = fleet.ask("generate", SAFE)[-1]
    assert (result.steps_repeated, result.moves) == (3, 2)
    assert [sent_fields(asked)["steps_seen"] for asked in fleet.peers[0].asked[1:]] == [3, 2]


@ONE_CLIENT
def test_own_state_is_sent_again_when_a_continued_request_fails_before_the_next_one(fleet: Fleet) -> None:
    fleet.start(Script([continued(1), *steps(2), GONE], [continued(1), *steps(2, 3, 4), *WHOLE]))
    events = fleet.ask("generate", request(checkpoint_every_steps=2, continue_from=state_bytes(1)))
    assert events[2] == Moved(fleet.urls[0], fleet.urls[0], 1, "unavailable")
    assert events[-1].steps_repeated == 1
    assert sent_fields(fleet.peers[0].asked[1])["continue_from"] == state_bytes(1)


@ONE_CLIENT
def test_video_continues_before_its_stop_when_the_server_fails_at_the_stop(fleet: Fleet) -> None:
    first = [*steps(1), *sent_state(1), *steps(2), *sent_state(2), GONE]
    fleet.start(Script(first, [continued(1), *steps(2), *stopped(2, "step")]))
    events = fleet.ask("generate", request(checkpoint_every_steps=1, stop_after_step=2))
    assert events[-1] == Stopped("step", 2, 4, state_bytes(2))
    assert sent_fields(fleet.peers[0].asked[1])["continue_from"] == state_bytes(1)


def test_failure_is_raised_when_the_request_asked_for_no_checkpoints(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1), GONE]), Script(REST))
    events, error = fleet.until_error(request())
    assert (events, str(error)) == (steps(1), "wan_t2v: gone")
    assert fleet.peers[1].asked == []


@pytest.mark.parametrize("kind", [InvalidRequest, Cancelled, Overloaded, SessionLost, Unrecoverable])
@ONE_CLIENT
def test_other_error_is_raised_when_it_comes_amid_the_work(fleet: Fleet, kind: type[SlipwayError]) -> None:
    fleet.start(Script([*steps(1), kind("wan_t2v: no")]), Script(REST))
    events, error = fleet.until_error(SAFE)
    assert (events, type(error)) == (steps(1), kind)
    assert fleet.peers[1].asked == []


@ONE_CLIENT
def test_failure_is_raised_when_no_server_takes_over_within_the_budget(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1), *sent_state(1), GONE], [NotReady("wan_t2v: still gone")]), retry=SHORT)
    events, error = fleet.until_error(SAFE)
    assert events == [*steps(1), Checkpoint(state_bytes(1), 1)]
    assert str(error) == "wan_t2v: still gone"


@ONE_CLIENT
def test_failure_is_raised_when_the_policy_has_no_budget(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1), GONE]), retry=RetryPolicy(budget_s=0))
    assert isinstance(fleet.until_error(SAFE)[1], NotReady)
    assert len(fleet.peers[0].asked) == 1


@ONE_CLIENT
def test_failure_is_raised_when_servers_fail_again_and_again_without_a_new_step(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1, 2), GONE]))
    assert isinstance(fleet.until_error(SAFE)[1], NotReady)
    assert len(fleet.peers[0].asked) == 1 + MOST_FAILURES


def test_request_is_sent_again_when_it_is_refused_while_it_waits(fleet: Fleet) -> None:
    waiting = Progress(0, 4, 0.5, phase=WAITING)
    fleet.start(Script([waiting, GONE]), Script([*steps(1, 2, 3, 4), *WHOLE]))
    assert fleet.ask("generate", request()) == [waiting, *steps(1, 2, 3, 4), Video(b"abcd", 1.5)]


def test_part_is_kept_when_it_came_before_the_state_and_else_dropped(fleet: Fleet) -> None:
    first = [*steps(1), part(b"ab", 0), *sent_state(1), *steps(2), part(b"xx", 2), GONE]
    fleet.start(Script(first, [continued(1), *steps(2), part(b"cd", 2)]))
    assert fleet.ask("generate", SAFE)[-1] == Video(b"abcd", 1.5, steps_repeated=1, moves=1)


def test_draft_is_joined_apart_from_parts_of_the_result(fleet: Fleet) -> None:
    draft = [part(b"yz", 2, draft_step=2), part(b"wx", 0, draft_step=2)]
    fleet.start(Script([*steps(1), part(b"ab", 0), *steps(2), *draft, *stopped(2, "step")]))
    *events, stop = fleet.ask("generate", request(stop_after_step=2, draft="video"))
    assert events == [*steps(1, 2), Video(b"wxyz", 1.5, draft_step=2)]
    assert split_state(stop.state, "here") == (state_bytes(2), (part(b"ab", 0),))


def test_contact_sheet_is_passed_on(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1, 2), SHEET, *stopped(2, "step")]))
    events = fleet.ask("generate", request(stop_after_step=2, draft="sheet"))
    assert events == [*steps(1, 2), SHEET, Stopped("step", 2, 4, state_bytes(2))]


@ONE_CLIENT
def test_state_is_given_before_the_error_when_the_draft_is_incomplete(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1, 2), part(b"wx", 0, draft_step=2), *stopped(2, "step")]))
    events, error = fleet.until_error(request(stop_after_step=2, draft="video"))
    assert events == [*steps(1, 2), Stopped("step", 2, 4, state_bytes(2))]
    assert isinstance(error, Malformed)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([Stopped("step", 2, 4)], "a stop must follow the state after step 2, got none"),
        ([*sent_state(1), Stopped("step", 2, 4)], "the state after step 2, got that after step 1"),
        ([sent_state(1)[1]], "a state must have part 0 of 2 after step 1 next, got part 1 of 2 after step 1"),
        ([sent_state(1)[0], sent_state(2)[1]], "part 1 of 2 after step 1 next, got part 1 of 2 after step 2"),
        ([continued(1)], "stream must contain a result, got none"),
        (
            [part(b"a", 0, draft_step=1), part(b"b", 2, draft_step=2)],
            "draft_step must be 1 in each part, got 2",
        ),
    ],
    ids=["no state", "another state", "no beginning", "another step", "no result", "two drafts"],
)
@ONE_CLIENT
def test_answer_is_refused_when_it_contradicts_itself(fleet: Fleet, answer: list[Any], said: str) -> None:
    fleet.start(Script(answer))
    with pytest.raises(Malformed, match=said):
        fleet.ask("generate", SAFE)


def stop_event(fleet: Fleet) -> threading.Event | asyncio.Event:
    return asyncio.Event() if fleet.asynchronous else threading.Event()


@pytest.mark.parametrize("method", ["generate", "stream"])
def test_server_is_asked_to_stop_and_read_to_the_end_when_the_caller_stops(fleet: Fleet, method: str) -> None:
    waits: list[Any] = []
    fleet.start(
        Script([*steps(1), lambda: waits.append(fleet.peers[0].ended.wait(60)), *stopped(1, "caller")])
    )
    stop = stop_event(fleet)
    events = getattr(fleet.ask.client, method)(request(), stop=stop)
    assert [fleet.ask.next(events)] == steps(1)
    stop.set()
    rest = fleet.ask("__iter__", of=events) if not fleet.asynchronous else fleet.ask("__aiter__", of=events)
    given = [Stopped("caller", 1, 4, state_bytes(1))]
    assert rest == (given if method == "generate" else stopped(1, "caller"))
    assert waits == [True]
    work, *ends = fleet.peers[0].asked
    assert [end.model for end in ends] == ["slipway_cancel"]
    ended_id = ends[0].values["ended_id"][0]
    assert (ended_id.decode(), ends[0].values["stop"]) == (work.id, [True])


@ONE_CLIENT
def test_refused_request_is_not_sent_again_when_the_caller_stops(fleet: Fleet) -> None:
    stop = stop_event(fleet)
    fleet.start(Script([stop.set, Overloaded("wan_t2v: full")]))
    assert isinstance(fleet.until_error(request(), stop=stop)[1], Overloaded)
    assert sum(asked.model == "wan_t2v" for asked in fleet.peers[0].asked) == 1


@ONE_CLIENT
def test_video_does_not_move_when_the_caller_stops(fleet: Fleet) -> None:
    stop = stop_event(fleet)
    fleet.start(Script([*steps(1, 2), stop.set, *stopped(2, "shutdown")]), Script(REST))
    assert fleet.ask("generate", request(), stop=stop) == [*steps(1, 2), STOPPED]
    assert fleet.peers[1].asked == []


@ONE_CLIENT
def test_state_is_given_when_the_caller_stops_before_a_server_takes_over(fleet: Fleet) -> None:
    stop = stop_event(fleet)
    fleet.start(Script(SHUTTING_DOWN), Script([stop.set, GONE]))
    assert fleet.until_error(request(), stop=stop) == ([*steps(1, 2), STOPPED], None)


@pytest.mark.parametrize(("priority", "number"), [("urgent", 1), ("normal", None), ("low", 3)])
@ONE_CLIENT
def test_priority_is_also_that_of_tritons_queue_over_grpc(
    fleet: Fleet, priority: str, number: int | None
) -> None:
    fleet.start(Script([*steps(1, 2, 3, 4), *WHOLE]))
    fleet.ask("generate", request(priority=priority))
    (asked,) = fleet.peers[0].asked
    assert asked.turn.get("priority") == number
    assert sent_fields(asked)["priority"] == priority.encode()


@ONE_CLIENT
def test_first_attempt_goes_to_the_next_address_when_it_is_refused(fleet: Fleet) -> None:
    fleet.start(Script([Overloaded("wan_t2v: full")]), Script([*steps(1, 2, 3, 4), *WHOLE]))
    assert fleet.ask("generate", request())[-1] == Video(b"abcd", 1.5)
    assert fleet.ask.client.url == fleet.urls[1]
    assert fleet.ask("stream", request())[-1] == WHOLE[-1]
    assert [len(peer.asked) for peer in fleet.peers] == [1, 2]
