"""Which connections are used and which are let go, on an injected clock."""

from __future__ import annotations

from itertools import count

import pytest

from slipway_client.connections import Pools


class Clock:
    """Time that passes when told to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_pool_takes_no_request_after_its_age_and_is_over_when_its_last_has_ended() -> None:
    clock, made = Clock(), count(1)
    pools = Pools(lambda: f"pool {next(made)}", 30.0, clock)
    first, again = pools.acquire(), pools.acquire()
    clock.now_s += 30
    second = pools.acquire()
    assert (first, again, second) == ("pool 1", "pool 1", "pool 2")
    assert pools.release(first) == []
    assert pools.all() == ["pool 1", "pool 2"]
    assert pools.release(again) == ["pool 1"]
    assert pools.release(second) == []
    assert pools.all() == ["pool 2"]


@pytest.mark.parametrize(("refused", "then"), [(True, "pool 2"), (False, "pool 1")])
def test_pool_is_let_go_when_a_request_was_refused_over_it(refused: bool, then: str) -> None:
    made = count(1)
    pools = Pools(lambda: f"pool {next(made)}")
    pools.release(pools.acquire(), refused=refused)
    assert pools.acquire() == then


def test_refusal_over_an_earlier_pool_does_not_end_the_new_one() -> None:
    made = count(1)
    pools = Pools(lambda: f"pool {next(made)}")
    late = pools.acquire()
    pools.release(pools.acquire(), refused=True)
    assert pools.acquire() == "pool 2"
    assert pools.release(late, refused=True) == ["pool 1"]
    assert pools.acquire() == "pool 2"


def test_later_requests_take_another_pool_when_one_is_retired_while_it_is_used() -> None:
    made = count(1)
    pools = Pools(lambda: f"pool {next(made)}")
    used = pools.acquire()
    pools.retire()
    assert (pools.acquire(), pools.acquire()) == ("pool 2", "pool 2")
    assert pools.release(used) == ["pool 1"]
