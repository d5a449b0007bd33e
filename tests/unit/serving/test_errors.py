"""Errors cross the wire and come back as the same class."""

import pytest

from slipway_serving.protocol import errors

CLASSES = [
    errors.InvalidRequest,
    errors.NotReady,
    errors.Overloaded,
    errors.SessionLost,
    errors.Cancelled,
    errors.DeadlineExceeded,
    errors.Unrecoverable,
]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("prefix", ["", "in ensemble 'wan_t2v_prompt', Failed to process: "])
def test_error_comes_back_as_its_class_whatever_triton_puts_before(
    cls: type[errors.SlipwayError], prefix: str
) -> None:
    text = "wan_t2v: frames must be 4k+1, got 16; try 17"
    back = errors.from_wire(prefix + cls(text).to_wire(), "UNKNOWN")
    assert type(back) is cls
    assert str(back) == text


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        ("StatusCode.INVALID_ARGUMENT", errors.InvalidRequest),
        ("StatusCode.UNAVAILABLE", errors.NotReady),
        ("NOT_FOUND", errors.NotReady),
        ("CANCELLED", errors.Cancelled),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded),
        (400, errors.InvalidRequest),
        (503, errors.NotReady),
        (500, errors.Unrecoverable),
        (None, errors.Unrecoverable),
    ],
)
def test_error_of_triton_itself_maps_by_status(
    status: str | int | None, cls: type[errors.SlipwayError]
) -> None:
    assert type(errors.from_wire("unexpected inference input 'foo'", status)) is cls


@pytest.mark.parametrize(
    "said", ["in model 'wan_t2v': Exceeds maximum queue size", "Request timeout expired"]
)
@pytest.mark.parametrize("status", ["UNAVAILABLE", 503, None])
def test_refusal_of_a_queue_is_overloaded_and_hints_to_try_again(said: str, status: str | int | None) -> None:
    error = errors.from_wire(said, status)
    assert type(error) is errors.Overloaded
    assert str(error) == f"{said}; try again in a few seconds, or send fewer requests at a time"
    # One that a model hands on has one hint still.
    assert str(errors.from_wire(error.to_wire(), status)) == str(error)


def test_raise_all_names_every_problem_at_once() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"wan_t2v: a \| b"):
        errors.raise_all("wan_t2v", ["a", "b"])
    errors.raise_all("wan_t2v", [])


@pytest.mark.parametrize("prefix", ["", "in ensemble 'wakeword', "])
def test_dead_process_of_a_model_is_not_ready_whatever_the_status(prefix: str) -> None:
    error = errors.from_wire(f"{prefix}Stub process 'wan_t2v_0_1' is not healthy.", "StatusCode.INTERNAL")
    assert type(error) is errors.NotReady
    assert str(error).startswith("wan_t2v_0_1: the model's process ended before it answered; try again")
