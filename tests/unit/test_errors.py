"""Errors cross the wire and come back as the same class."""

import pytest

from slipway_serving import errors

CLASSES = [
    errors.InvalidRequest,
    errors.NotReady,
    errors.Overloaded,
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


def test_full_queue_of_triton_is_overloaded_whatever_the_status() -> None:
    text = "in model 'wan_t2v': Exceeds maximum queue size"
    assert type(errors.from_wire(text, "UNAVAILABLE")) is errors.Overloaded
    assert type(errors.from_wire(text, 503)) is errors.Overloaded


def test_raise_all_names_every_problem_at_once() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"wan_t2v: a \| b"):
        errors.raise_all("wan_t2v", ["a", "b"])
    errors.raise_all("wan_t2v", [])
