"""When a client tries again, on an injected clock."""

from __future__ import annotations

import pytest

from slipway_client.retry import Attempts, Deadline, RetryPolicy, UnknownModel
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
    Unrecoverable,
)


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def longest(low: float, high: float) -> float:
    assert low == 0.0
    return high


def attempts(policy: RetryPolicy, clock: Clock, limit_s: float | None = None) -> Attempts:
    return Attempts(policy, Deadline(limit_s, "wan_t2v", clock), clock, longest)


def test_wait_doubles_up_to_its_bound_when_refused_again_and_again() -> None:
    tries = attempts(RetryPolicy(budget_s=100, base_s=0.5, max_s=3), Clock())
    assert [tries.wait_s(NotReady("x")) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_wait_is_spread_over_the_whole_range_when_drawn() -> None:
    policy = RetryPolicy(budget_s=100, base_s=1, max_s=1)
    waits = [Attempts(policy, Deadline(None, "x")).wait_s(Overloaded("x")) for _ in range(200)]
    assert min(waits) < 0.2 and max(waits) > 0.8 and max(waits) <= 1


@pytest.mark.parametrize("kind", [InvalidRequest, Cancelled, DeadlineExceeded, Unrecoverable, UnknownModel])
def test_error_is_raised_at_once_when_it_is_no_refusal(kind: type[SlipwayError]) -> None:
    error = kind("x")
    with pytest.raises(kind) as raised:
        attempts(RetryPolicy(), Clock()).wait_s(error)
    assert raised.value is error


def test_error_is_raised_when_the_budget_is_spent() -> None:
    clock = Clock()
    tries = attempts(RetryPolicy(budget_s=2, base_s=1, max_s=1), clock)
    assert tries.wait_s(Overloaded("first")) == 1
    clock.now_s += 1
    with pytest.raises(Overloaded, match="second"):
        tries.wait_s(Overloaded("second"))


def test_error_is_raised_when_the_policy_has_no_budget() -> None:
    with pytest.raises(NotReady):
        attempts(RetryPolicy(budget_s=0), Clock()).wait_s(NotReady("x"))


def test_error_is_raised_when_the_deadline_comes_before_the_next_attempt() -> None:
    with pytest.raises(NotReady):
        attempts(RetryPolicy(budget_s=9, base_s=1), Clock(), limit_s=0.5).wait_s(NotReady("x"))


def test_deadline_counts_down_and_is_raised_when_it_has_passed() -> None:
    clock = Clock()
    deadline = Deadline(3, "wan_t2v", clock)
    clock.now_s += 1
    assert deadline.remaining_s() == pytest.approx(2)
    clock.now_s += 2
    with pytest.raises(DeadlineExceeded, match="wan_t2v: the call did not finish within 3 s"):
        deadline.remaining_s()


def test_deadline_leaves_the_server_its_grace_when_it_has_passed() -> None:
    clock = Clock()
    deadline = Deadline(3, "wan_t2v", clock, grace_s=1)
    clock.now_s += 3.5
    assert deadline.remaining_s() == pytest.approx(0.5)
    clock.now_s += 0.5
    with pytest.raises(DeadlineExceeded, match="3 s"):
        deadline.remaining_s()


def test_deadline_never_passes_when_there_is_none() -> None:
    assert Deadline(None, "wan_t2v").remaining_s() is None


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["budget_s", "base_s", "max_s"])
def test_policy_is_refused_when_a_field_is_no_duration(field: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=field):
        RetryPolicy(**{field: value})
