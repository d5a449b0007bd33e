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
    first, again = pools.take(), pools.take()
    clock.now_s += 30
    second = pools.take()
    assert (first, again, second) == ("pool 1", "pool 1", "pool 2")
    assert pools.give_back(first) == []
    assert pools.all() == ["pool 1", "pool 2"]
    assert pools.give_back(again) == ["pool 1"]
    assert pools.give_back(second) == []
    assert pools.all() == ["pool 2"]


@pytest.mark.parametrize(("refused", "then"), [(True, "pool 2"), (False, "pool 1")])
def test_pool_is_let_go_when_a_request_was_refused_over_it(refused: bool, then: str) -> None:
    made = count(1)
    pools = Pools(lambda: f"pool {next(made)}")
    pools.give_back(pools.take(), refused=refused)
    assert pools.take() == then


def test_refusal_over_an_earlier_pool_does_not_end_the_new_one() -> None:
    made = count(1)
    pools = Pools(lambda: f"pool {next(made)}")
    late = pools.take()
    pools.give_back(pools.take(), refused=True)
    assert pools.take() == "pool 2"
    assert pools.give_back(late, refused=True) == ["pool 1"]
    assert pools.take() == "pool 2"
