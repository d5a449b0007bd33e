"""JSON values of messages as values of request classes, of families that the project does not have too."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from slipway_client import UniversalActions, UniversalRequest
from slipway_gateway.realtime.opening import parse_start
from slipway_gateway.realtime.steering import Steering, event_id_of, parse_interaction
from slipway_gateway.realtime.values import build, parse, turn_values
from slipway_gateway.realtime.world_kinds import formats_of, world_kinds
from slipway_serving.protocol.errors import InvalidRequest, Overloaded
from slipway_serving.protocol.fields import Array
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import boolean


@dataclass(frozen=True, eq=False)
class Pushes(Request):
    """Turn with fixed rows, whole numbers and texts."""

    model: ClassVar[str] = "pushes"

    push: Annotated[NDArray[np.int16], Array("int16", ("frames", 2), "pushes", columns=("left", "right"))]
    grid: Annotated[NDArray[np.float32] | None, Array("float32", (2, 3), "grid")] = None
    names: Annotated[NDArray[np.object_] | None, Array("text", ("names",), "names")] = None
    loud: Annotated[bool, boolean("be loud")] = False


def turn(**values: Any) -> Any:
    return build(Pushes, turn_values(Pushes, parse(Pushes, values, "here")), "here")


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ({"right": 3}, [[0, 3]]),
        ({"left": [1, 2], "right": 3}, [[1, 3], [2, 3]]),
        ({}, [[0, 0]]),
        ([4, 5], [[4, 5]]),
        ([[4, 5], [6, 7]], [[4, 5], [6, 7]]),
        ([[True, False]], [[1, 0]]),
    ],
)
def test_array_is_read_from_rows_one_row_or_named_columns(value: Any, rows: list[list[int]]) -> None:
    made = turn(push=value)
    assert made.push.dtype == np.int16 and made.push.tolist() == rows


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"up": 1}, "push must be a list or an object with left, right, got 'up'"),
        ({"left": [1, 2], "right": [1, 2, 3]}, "push must be columns of one length"),
        ({"left": [[1]]}, "push must be columns of one length"),
        ({"left": "1"}, "push must be numbers of type int16"),
        ([[1, 2], [3]], "push must be numbers of type int16 in a list of equal rows"),
        ([[1.5, 2]], "push must be numbers of type int16"),
        ([[1, 40_000]], "push must be numbers of type int16"),
        ([[1, 10**40]], "push must be numbers of type int16"),
        ([[None, 2]], "push must be numbers of type int16"),
        (7, "push must be a list or an object"),
        ([[1, 2, 3]], "push must be int16 [frames, 2], got int16 [1, 3]"),
        ([[[1, 2]]], "push must be int16 [frames, 2]"),
        ([], "push must"),
    ],
)
def test_array_is_refused_by_name_when_its_form_is_wrong(value: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        turn(push=value)
    assert problem in str(refused.value)


def test_other_fields_are_read_and_all_problems_are_named() -> None:
    made = turn(push=[1, 2], grid=[[1, 2, 3]] * 2, names=["a", "b"], loud=True)
    assert made.grid.shape == (2, 3) and made.names.tolist() == ["a", "b"] and made.loud is True
    assert turn().push.tolist() == [[0, 0]]
    with pytest.raises(InvalidRequest) as refused:
        turn(push=3, grid="x", other=1)
    for problem in ("push must be a list", "grid must be a list", "'other' must be left out"):
        assert problem in str(refused.value)
    with pytest.raises(InvalidRequest, match="loud must be of type bool, got 1"):
        turn(loud=1)


def test_one_row_is_repeated_when_another_array_has_more() -> None:
    values = parse(UniversalActions, {"keyboard_cond": [[1, 0, 0, 0]] * 12}, "here")
    made = UniversalActions(**turn_values(UniversalActions, values))
    assert made.mouse_cond.shape == (12, 2) and not made.mouse_cond.any()


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


PICTURE = picture()


def start(**values: Any) -> dict[str, Any]:
    return {"type": "session.start", "model": "matrix_game_universal", **values}


def test_columns_of_a_world_have_the_names_that_its_help_says() -> None:
    kind = world_kinds()["matrix_game_templerun"]
    assert [each.name for each in formats_of(kind)] == ["m4s", "jpeg"]
    event = {"keyboard_cond": {"turn_left": 1}}
    found = parse_interaction({"type": "session.interaction", "interaction": {"event": event}}, kind.turn)  # type: ignore[arg-type]
    assert found.values["keyboard_cond"].tolist() == [[0, 0, 0, 1, 0, 0, 0]]


def test_rate_of_a_world_is_the_viewers_or_the_models_or_the_usual_one() -> None:
    data_url = f"data:image/png;base64,{PICTURE}"
    for values, parameters, fps in (
        ({"fps": 10}, {"usual_fps": "20"}, 10),
        ({}, {"usual_fps": "20"}, 20),
        ({"fps": 0}, {}, 25),
    ):
        opening = parse_start(start(image=data_url, **values), parameters)
        assert isinstance(opening.request, UniversalRequest)
        assert (opening.fps, opening.request.fps, opening.request.output) == (fps, fps, "mp4")
    opening = parse_start(start(input_reference={"image_url": data_url}, format="jpeg", seed=3), {})
    assert isinstance(opening.request, UniversalRequest)
    assert (opening.request.output, opening.request.seed) == ("jpeg", 3)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "image must be given"),
        ({"image": PICTURE, "input_reference": PICTURE}, "input_reference must be left out with image"),
        ({"input_reference": "https://example.com/x.png"}, "input_reference must be base64 text"),
        ({"input_reference": "data:image/png,x"}, "got a data URL without base64"),
        ({"image": PICTURE, "pacing": "fast"}, "pacing must be continuous or on_event"),
        ({"image": PICTURE, "seed": "7"}, "seed must be of type int"),
        ({"state": {"byte_length": 0}}, "state must be an object with the byte_length"),
        ({"state": {"byte_length": 9}, "seed": 1}, "seed must be left out with state"),
        ({"image": PICTURE, "format": ["m4s"]}, "format must be m4s or jpeg"),
    ],
)
def test_start_is_refused_by_name(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_start(start(**values), {})
    assert problem in str(refused.value)


def interaction(event_id: Any = None, chunks: Any = None, **event: Any) -> Any:
    inner = {"event": event} | ({} if chunks is None else {"transition_chunks": chunks})
    message = {"type": "session.interaction", "interaction": inner}
    return message if event_id is None else {**message, "event_id": event_id}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"type": "session.interaction"}, "interaction must be an object"),
        ({"type": "session.interaction", "interaction": {}}, "event must be an object"),
        (interaction("x" * 129), "event_id must be a number or a text"),
        (interaction(1.5), "event_id must be a number or a text"),
        (interaction(1, 0), "transition_chunks must be 1 to"),
        (interaction(1, "2"), "transition_chunks must be 1 to"),
        (interaction() | {"at": 3}, "'at' must be left out"),
        (interaction(prompt="x"), "'prompt' must be left out"),
    ],
)
def test_interaction_is_refused_by_name(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_interaction(message, UniversalActions)
    assert problem in str(refused.value)
    assert event_id_of(message) in (None, 1)


def steering(one_block_each: bool) -> Steering:
    return Steering(UniversalActions, one_block_each)


def add(to: Steering, event_id: Any, chunks: int | None = None) -> None:
    to.add(parse_interaction(interaction(event_id, chunks), UniversalActions))


def ids(of: Steering) -> tuple[Any, ...]:
    block = of.begin_block()
    return block.started, block.active, block.completed


def test_latest_event_counts_and_stays_when_blocks_follow_each_other() -> None:
    events = steering(one_block_each=False)
    assert ids(events) == ((), (), ())
    add(events, "a")
    assert ids(events) == (("a",), ("a",), ())
    assert ids(events) == ((), ("a",), ())
    add(events, "b")
    add(events, "c", 2)
    assert ids(events) == (("c",), ("c",), ("a", "b"))
    assert ids(events) == ((), ("c",), ())
    assert ids(events) == ((), (), ("c",))
    assert events.can_begin


def test_each_event_has_its_blocks_when_the_pace_is_that_of_events() -> None:
    events = steering(one_block_each=True)
    assert not events.can_begin
    add(events, "a", 2)
    add(events, "b")
    assert [ids(events) for _ in range(3)] == [
        (("a",), ("a",), ()),
        ((), ("a",), ()),
        (("b",), ("b",), ("a",)),
    ]
    assert not events.can_begin
    add(events, "c")
    assert ids(events) == (("c",), ("c",), ("b",))


def test_events_are_refused_when_too_many_wait() -> None:
    events = steering(one_block_each=True)
    for number in range(64):
        add(events, number)
    with pytest.raises(Overloaded, match="at most 64 interactions may wait"):
        add(events, 64)
