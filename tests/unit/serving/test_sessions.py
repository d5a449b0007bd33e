"""States between the turns of sessions: begun, found, bounded, expired, freed; a clock that tests set."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipway_serving.protocol.errors import InvalidRequest, Overloaded, SessionLost
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.metrics import SESSIONS_LIMIT, SESSIONS_OPEN
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.sessions import Sessions
from slipway_serving.system.process_state import ProcessState

NEVER_S = 3600


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Iterator[Sessions[str]]:
    made: Sessions[str] = Sessions("sums", 2, 60, clock)
    yield made
    made.close()
    assert len(made) == 0


def begin(sessions: Sessions[str], key: int | str, state: str = "") -> None:
    with sessions.turn(Turn(key, start=True), lambda: state or str(key)):
        pass


def test_state_is_given_once_when_it_was_kept(sessions: Sessions[str]) -> None:
    begin(sessions, 7, "seven")
    assert sessions.acquire(Turn(7), str) == "seven"
    with pytest.raises(InvalidRequest, match="session 7 is not open"):
        sessions.acquire(Turn(7), str)


def test_session_is_refused_anew_when_one_of_its_id_is_under_way(
    sessions: Sessions[str], clock: Clock
) -> None:
    begin(sessions, 7, "seven")
    with pytest.raises(InvalidRequest, match="sums: session 7 is already open;"):
        sessions.check_id_is_new(Turn(7, start=True))
    sessions.check_id_is_new(Turn(8, start=True))
    sessions.check_id_is_new(Turn(7))
    assert sessions.acquire(Turn(7), str) == "seven"
    with pytest.raises(InvalidRequest, match="is already open"):
        sessions.check_id_is_new(Turn(7, start=True))
    sessions.store(Turn(7), "seven")
    clock.now_s = 61
    sessions.check_id_is_new(Turn(7, start=True))


def test_session_more_is_refused_when_all_are_taken_until_one_ends_or_falls_idle(
    sessions: Sessions[str], clock: Clock
) -> None:
    begin(sessions, 1)
    clock.now_s = 30
    begin(sessions, "two")
    with pytest.raises(Overloaded, match="sums: all 2 sessions are in use"):
        begin(sessions, 3)
    clock.now_s = 61
    begin(sessions, 3)
    assert len(sessions) == 2
    with pytest.raises(Overloaded):
        begin(sessions, 4)
    sessions.drop(Turn("two"))
    sessions.drop(Turn("never there"))
    begin(sessions, 4)


def test_idle_session_is_freed_without_being_asked_for(deadline_s: float = 10) -> None:
    sessions: Sessions[str] = Sessions("sums", 2, 0.1)
    begin(sessions, 1)
    end = time.monotonic() + deadline_s
    while len(sessions) and time.monotonic() < end:
        time.sleep(0.01)
    assert len(sessions) == 0
    sessions.close()


def test_session_is_not_idle_when_it_goes_on(sessions: Sessions[str], clock: Clock) -> None:
    begin(sessions, 1)
    for clock.now_s in (50, 100, 150):
        with sessions.turn(Turn(1), str) as taken:
            taken.state += "."
    assert sessions.acquire(Turn(1), str) == "1..."


def test_session_begins_anew_when_it_is_started_twice(sessions: Sessions[str]) -> None:
    for state in ("first", "second"):
        begin(sessions, 1, state)
    assert len(sessions) == 1
    assert sessions.acquire(Turn(1), str) == "second"


def test_nothing_is_kept_when_the_turn_was_the_last_or_of_no_session(sessions: Sessions[str]) -> None:
    begin(sessions, 1)
    with sessions.turn(Turn(1, end=True), str) as taken:
        assert taken.state == "1"
    with sessions.turn(NO_SESSION, lambda: "own") as taken:
        assert taken.state == "own"
    assert len(sessions) == sessions.count_open() == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, GeneratorExit, KeyboardInterrupt])
def test_session_is_freed_when_a_turn_fails_or_is_left(
    sessions: Sessions[str], error: type[BaseException]
) -> None:
    begin(sessions, 1)
    with pytest.raises(error), sessions.turn(Turn(1), str):
        raise error
    assert sessions.count_open() == 0
    with pytest.raises(InvalidRequest, match="is not open"):
        sessions.acquire(Turn(1), str)


def test_turn_is_refused_when_it_begins_or_ends_no_session(sessions: Sessions[str]) -> None:
    sessions.check_id(NO_SESSION)
    for turn in (Turn(start=True), Turn("", end=True)):
        with pytest.raises(InvalidRequest, match="session id must be given to begin or end a session"):
            sessions.check_id(turn)
    with pytest.raises(InvalidRequest, match="session id must be given, got none; try another model"):
        sessions.check_id(NO_SESSION, fix="another model")
    sessions.check_id(Turn(1), fix="another model")


@pytest.mark.parametrize("missing", ["max_sessions", "session_idle_s"])
def test_model_is_refused_when_its_config_does_not_bound_its_sessions(missing: str) -> None:
    values = {"max_sessions": "2", "session_idle_s": "60"}
    del values[missing]
    parameters = {name: {"string_value": value} for name, value in values.items()}
    with pytest.raises(InvalidRequest, match=f"parameter {missing} of config.pbtxt must be a whole number"):
        Sessions.from_settings(Settings("sums", Path("nowhere"), {"parameters": parameters}))


def settings(**values: str) -> Settings:
    parameters = {name: {"string_value": value} for name, value in values.items()}
    return Settings("sums", Path("nowhere"), {"parameters": parameters})


def test_model_tells_its_open_sessions_and_their_limit_when_its_metrics_are_read() -> None:
    given = settings(max_sessions="2", session_idle_s="60")
    sessions: Sessions[str] = Sessions.from_settings(given)
    begin(sessions, 1)
    sessions.acquire(Turn(2, start=True), str)
    told = {change.metric: change.amounts for change in given.recorder.updates()}
    assert told == {SESSIONS_OPEN: (2.0,), SESSIONS_LIMIT: (2.0,)}
    with pytest.raises(Overloaded, match="sums: all 2 sessions are in use"):
        sessions.acquire(Turn(3, start=True), str)
    with pytest.raises(InvalidRequest, match="sessions expire after 60 s idle"):
        sessions.acquire(Turn(3), str)
    sessions.close()


def test_session_is_under_way_once_when_it_waits_or_its_turn_is_worked_on(sessions: Sessions[str]) -> None:
    begin(sessions, 1)
    begin(sessions, 2)
    assert (len(sessions), sessions.count_open()) == (2, 2)
    with sessions.turn(Turn(2), str):
        assert (len(sessions), sessions.count_open()) == (1, 2)
    sessions.acquire(Turn(2), str)
    sessions.drop(Turn(2))
    assert (len(sessions), sessions.count_open()) == (1, 1)


def test_session_stays_when_its_idle_time_is_exactly_the_limit(sessions: Sessions[str], clock: Clock) -> None:
    begin(sessions, 1)
    clock.now_s = 60
    sessions.drop_idle()
    assert len(sessions) == 1
    clock.now_s = 60.5
    sessions.drop_idle()
    assert len(sessions) == 0


def refuse(state: str) -> None:
    raise InvalidRequest(f"refused {state}")


def test_session_is_as_it_was_before_when_a_check_refuses_its_turn(sessions: Sessions[str]) -> None:
    with (
        pytest.raises(InvalidRequest, match="refused new"),
        sessions.turn(Turn(1, start=True), lambda: "new", refuse),
    ):
        pytest.fail("the turn was refused")
    assert sessions.count_open() == 0
    begin(sessions, 1, "kept")
    with pytest.raises(InvalidRequest, match="refused kept"), sessions.turn(Turn(1), str, refuse):
        pytest.fail("the turn was refused")
    assert sessions.acquire(Turn(1), str) == "kept"


def test_turn_says_what_it_lacks_when_it_has_no_id(sessions: Sessions[str]) -> None:
    with pytest.raises(InvalidRequest) as bare:
        sessions.check_id(Turn(start=True))
    text = "session id must be given to begin or end a session, got none"
    assert str(bare.value) == f"sums: {text}"
    with pytest.raises(InvalidRequest) as fixed:
        sessions.check_id(NO_SESSION, fix="another model")
    assert str(fixed.value) == "sums: session id must be given, got none; try another model"
    sessions.check_id(Turn(1, start=True))
    sessions.check_id(Turn(1, end=True))


def dead(folder: Path, name: str) -> Path:
    """Make what a dead process of the model left: process 1 did not start at time 1."""
    place = folder / "footprints" / "sums" / f"1-1-{name}"
    place.mkdir(parents=True)
    (place / "work").write_bytes(bytes(12))
    return place


def test_session_is_told_as_lost_until_its_caller_ends_it_when_its_process_died(tmp_path: Path) -> None:
    process_state = ProcessState(tmp_path, "sums", "sums_0")
    given = replace(settings(max_sessions="2", session_idle_s="60"), process_state=process_state)
    sessions: Sessions[str] = Sessions.from_settings(given)
    begin(sessions, "seven")
    (own,) = (tmp_path / "footprints" / "sums").iterdir()
    (session,) = (path for path in own.iterdir() if path.name != "work")
    sessions.drop(Turn("seven"))
    assert not session.exists()
    (dead(tmp_path, "sums_0") / session.name).touch()
    assert process_state.record_serving() == 0
    lost = "sums: session 'seven' was lost when the model's process ended; begin a new one"
    for turn in (Turn("seven"), Turn("seven", end=True)):
        with pytest.raises(SessionLost) as failure:
            sessions.acquire(turn, str)
        assert str(failure.value) == lost
    with pytest.raises(InvalidRequest, match="session 'seven' is not open"):
        sessions.acquire(Turn("seven"), str)
    sessions.close()


@pytest.mark.parametrize("ends", ["last turn", "freed", "idle"])
def test_session_leaves_no_footprint_when_it_has_ended(tmp_path: Path, clock: Clock, ends: str) -> None:
    process_state = ProcessState(tmp_path, "sums", "sums_0")
    sessions: Sessions[str] = Sessions("sums", 2, 60, clock, process_state)
    begin(sessions, 1)
    begin(sessions, 2)
    (own,) = (tmp_path / "footprints" / "sums").iterdir()
    assert len(list(own.iterdir())) == 3
    clock.now_s = 30
    with sessions.turn(Turn(2), str):
        pass
    if ends == "last turn":
        sessions.store(Turn(1, end=True), sessions.acquire(Turn(1), str))
    elif ends == "freed":
        sessions.drop(Turn(1))
    else:
        clock.now_s = 61
        sessions.drop_idle()
    assert len(list(own.iterdir())) == 2
    assert sessions.acquire(Turn(2), str) == "2"
    sessions.close()


def test_thread_has_the_models_name_and_ends_when_the_sessions_are_closed() -> None:
    sessions: Sessions[str] = Sessions("sums", 1, NEVER_S)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "sums-sessions")
    begin(sessions, 1)
    sessions.close()
    assert not thread.is_alive()
    assert len(sessions) == 0


def test_process_ends_when_its_sessions_were_not_closed() -> None:
    program = "from slipway_serving.runtime.sessions import Sessions; Sessions('sums', 1, 3600)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
