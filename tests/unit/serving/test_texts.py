"""Texts that a caller made long, as the log has them."""

import pytest

from slipway_serving.protocol.caller_ids import request_id_problem, shortened_id
from slipway_serving.protocol.texts import shortened


@pytest.mark.parametrize("length", [0, 1, 16_384])
def test_text_stays_whole_when_the_log_has_room_for_it(length: int) -> None:
    text = "x" * length
    assert shortened(text) == text


def test_text_loses_its_middle_when_it_is_too_long() -> None:
    text = "a" * 8192 + "b" + "c" * 8192
    assert shortened(text) == f"{'a' * 8192}... (1 characters left out) ...{'c' * 8192}"


def test_id_loses_everything_after_its_beginning_when_it_is_too_long() -> None:
    assert shortened_id("i" * 128) == "i" * 128
    assert shortened_id("i" * 129) == f"{'i' * 24}... (129 characters)"
    assert shortened_id(7) == 7


@pytest.mark.parametrize(("request_id", "refused"), [("", 0), ("i" * 128, 0), ("i" * 129, 1), ("ü" * 65, 1)])
def test_request_id_is_limited_in_bytes(request_id: str, refused: bool) -> None:
    assert bool(request_id_problem(request_id)) == refused
