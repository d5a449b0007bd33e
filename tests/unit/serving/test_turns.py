"""Sessions on their caller's side: turns in order, and an end however the caller's work ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Overloaded
from slipway_serving.protocol.turns import NO_SESSION, Session, Turn, Turns


class Model:
    """Answers each turn twice, and writes down what reached it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, bool, bool]] = []
        self.ids: set[int | str] = set()
        self.before: Callable[[str | None], None] = lambda content: None

    def send(self, content: str | None, turn: Turn) -> Iterator[str]:
        self.sent.append((content, turn.start, turn.end))
        self.ids.add(turn.id)
        self.before(content)
        if content is not None:
            yield content
            yield content.upper()


END = (None, False, True)


def session_of(model: Model) -> Session[str, str]:
    return Session(model.send, Turns())


def test_turns_begin_and_end_once_when_the_last_is_told() -> None:
    turns = Turns("s")
    assert turns.closing is None
    assert [turns.next(), turns.next(), turns.next(last=True)] == [
        Turn("s", start=True),
        Turn("s"),
        Turn("s", end=True),
    ]
    assert turns.closing is None
    with pytest.raises(InvalidRequest, match="session s has ended; begin a new session"):
        turns.next()


def test_only_turn_begins_and_ends_its_session() -> None:
    assert Turns(3).next(last=True) == Turn(3, start=True, end=True)


@pytest.mark.parametrize("session_id", ["", "s" * 129, "ü" * 65, 0, -1, 2**64, 1.5, True, ["a"]])
def test_turns_refuse_an_id_that_no_server_takes(session_id: Any) -> None:
    with pytest.raises(InvalidRequest, match="session: session id must be a text of 1 to 128 bytes or a"):
        Turns(session_id)


@pytest.mark.parametrize("session_id", ["s", "s" * 128, "ü" * 64, 1, 2**64 - 1])
def test_turns_take_an_id_within_the_limits_of_triton(session_id: int | str) -> None:
    assert Turns(session_id).id == session_id


@pytest.mark.parametrize("numbered", [False, True])
def test_sessions_have_ids_of_their_own(numbered: bool) -> None:
    ids = {Turns(numbered=numbered).id for _ in range(100)}
    assert len(ids) == 100
    assert all(isinstance(each, int) == numbered and each not in (0, NO_SESSION.id) for each in ids)
    assert not numbered or all(0 < int(each) < 2**63 for each in ids)


def test_closing_turn_ends_what_is_under_way_and_what_may_be_after_a_failure() -> None:
    turns = Turns(1)
    turns.next()
    assert turns.closing == Turn(1, end=True)
    turns.record_failure(turns.next(last=True), Cancelled("left"))
    assert turns.closing == Turn(1, end=True)
    turns.record_end()
    assert turns.closing is None


def test_session_ends_when_its_body_ends() -> None:
    model = Model()
    with session_of(model) as session:
        assert list(session.step("a")) == ["a", "A"]
        assert list(session.step("b")) == ["b", "B"]
    assert model.sent == [("a", True, False), ("b", False, False), END]
    assert model.ids == {session.id}


def test_session_is_not_ended_again_when_its_last_turn_was_told() -> None:
    model = Model()
    with session_of(model) as session:
        list(session.step("a", last=True))
    assert model.sent == [("a", True, True)]


def test_session_sends_nothing_when_no_turn_was_asked_for() -> None:
    model = Model()
    with session_of(model) as session:
        session.step("never asked for")
    assert model.sent == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Cancelled])
def test_session_ends_when_its_body_fails(error: type[BaseException]) -> None:
    model = Model()
    with pytest.raises(error), session_of(model) as session:
        list(session.step("a"))
        raise error("body")
    assert model.sent[-1] == END


@pytest.mark.parametrize("last", [False, True])
def test_session_ends_when_a_turn_fails(last: bool) -> None:
    model = Model()

    def fail(content: str | None) -> None:
        if content == "b":
            raise Overloaded("b: too many")

    model.before = fail
    with pytest.raises(Overloaded, match="too many"), session_of(model) as session:
        list(session.step("a"))
        list(session.step("b", last=last))
    assert model.sent == [("a", True, False), ("b", False, last), END]


@pytest.mark.parametrize("last", [False, True])
def test_session_that_a_server_with_enough_refused_was_never_begun(last: bool) -> None:
    model = Model()

    def fail(content: str | None) -> None:
        if content == "a":
            raise Overloaded("a: too many")

    model.before = fail
    with session_of(model) as session:
        with pytest.raises(Overloaded):
            list(session.step("a", last=last))
        assert list(session.step("b", last=True)) == ["b", "B"]
    assert model.sent == [("a", True, last), ("b", True, True)]


@pytest.mark.parametrize("last", [False, True])
def test_session_ends_when_a_turn_is_left_in_the_middle(last: bool) -> None:
    model = Model()
    with session_of(model) as session:
        answers = session.step("a", last=last)
        assert next(answers) == "a"
        answers.close()  # type: ignore[attr-defined]
    assert model.sent == [("a", True, last), END]


def test_error_of_the_body_is_told_when_the_end_fails_too() -> None:
    model = Model()

    def fail(content: str | None) -> None:
        if content is None:
            raise Overloaded("the server is gone")

    model.before = fail
    with pytest.raises(ValueError, match="body"), session_of(model) as session:
        list(session.step("a"))
        raise ValueError("body")
    assert model.sent[-1] == END
