"""Slots: who gets one, who gives one up, and what is left of a process that died."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.slots.order import (
    MOST_SET_ASIDE,
    Entry,
    giving_way,
    starting,
    waiting_in_order,
)
from slipway_serving.runtime.slots.slots import Slots, is_spare

URGENT, NORMAL, LOW = range(3)
AGING_S = 60


def running(
    name: str, priority: int, arrived_s: float = 0, set_aside: int = 0, can_stop: bool = True
) -> Entry:
    return Entry(name, priority, arrived_s, None, set_aside, can_stop)


def waiting(name: str, priority: int, arrived_s: float = 0, since_s: float | None = None) -> Entry:
    return Entry(name, priority, arrived_s, arrived_s if since_s is None else since_s)


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


def test_most_urgent_request_is_next_and_among_equals_the_first() -> None:
    entries = [
        waiting("c", LOW, 1),
        waiting("a", NORMAL, 3),
        waiting("b", NORMAL, 2),
        waiting("u", URGENT, 4),
    ]
    assert names(waiting_in_order(entries, 5, AGING_S)) == ["u", "b", "a", "c"]


def test_low_request_is_next_when_it_has_waited_long_enough() -> None:
    entries = [waiting("low", LOW, 0), waiting("urgent", URGENT, 100)]
    assert names(waiting_in_order(entries, 119, AGING_S)) == ["urgent", "low"]
    assert names(waiting_in_order(entries, 121, AGING_S)) == ["low", "urgent"]


def test_free_slots_only_are_given() -> None:
    entries = [running("r", NORMAL), waiting("a", NORMAL, 1), waiting("b", NORMAL, 2)]
    assert names(starting(entries, 1, 3, AGING_S)) == []
    assert names(starting(entries, 2, 3, AGING_S)) == ["a"]
    assert names(starting(entries, 5, 3, AGING_S)) == ["a", "b"]


def test_youngest_request_of_the_lowest_priority_gives_way() -> None:
    entries = [
        running("n", NORMAL, 9), running("old", LOW, 1), running("young", LOW, 5), waiting("u", URGENT, 10),
    ]  # fmt: skip
    assert names(giving_way(entries, 3, 11, AGING_S)) == ["young"]
    assert names(giving_way([*entries, waiting("v", URGENT, 11)], 3, 12, AGING_S)) == ["young", "old"]


@pytest.mark.parametrize(
    "entry",
    [
        running("equal", URGENT),
        running("often", LOW, set_aside=MOST_SET_ASIDE),
        running("fixed", LOW, can_stop=False),
    ],
    ids=lambda entry: entry.name,
)
def test_request_keeps_its_slot_when_it_must_not_be_set_aside(entry: Entry) -> None:
    assert giving_way([entry, waiting("u", URGENT, 10)], 1, 11, AGING_S) == []


def test_nobody_gives_way_when_a_slot_is_free_or_only_age_is_higher() -> None:
    assert giving_way([running("l", LOW), waiting("u", URGENT, 1)], 2, 3, AGING_S) == []
    assert giving_way([running("n", NORMAL), waiting("old", LOW, 0)], 1, 10_000, AGING_S) == []


ENTRIES = st.lists(
    st.builds(
        Entry,
        name=st.uuids().map(str),
        priority=st.integers(0, 2),
        arrived_s=st.floats(0, 1000),
        waiting_since_s=st.none() | st.floats(0, 1000),
        set_aside=st.integers(0, MOST_SET_ASIDE),
    ),
    max_size=12,
)


@given(entries=ENTRIES, slots=st.integers(1, 4))
def test_slots_are_never_given_twice_and_only_lower_ones_give_way(entries: list[Entry], slots: int) -> None:
    taken = [entry for entry in entries if entry.waiting_since_s is None]
    begun = starting(entries, slots, 1000, AGING_S)
    assert len(begun) <= max(0, slots - len(taken))
    assert all(entry.waiting_since_s is not None for entry in begun)
    left = [entry for entry in entries if entry.waiting_since_s is not None and entry not in begun]
    victims = giving_way(entries, slots, 1000, AGING_S)
    assert len(victims) <= len(left)
    assert all(any(one.priority < victim.priority for one in left) for victim in victims)


@given(others=st.lists(st.integers(0, 2), min_size=1, max_size=30), priority=st.integers(0, 2))
def test_request_has_the_next_slot_before_later_ones_when_it_has_aged(
    others: list[int], priority: int
) -> None:
    later = [waiting(f"later {n}", each, 3 * AGING_S + n + 1) for n, each in enumerate(others)]
    (first,) = starting([waiting("old", priority, 0), *later], 1, 3 * AGING_S + 40, AGING_S)
    assert first.name == "old"


def test_second_request_waits_until_the_first_has_ended(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 1)
    with slots.enter(NORMAL) as first:
        assert first.take()
        with slots.enter(NORMAL) as second:
            assert not second.take()
            assert slots.count_waiting() == 1
            first.leave()
            assert second.take()
    assert slots.count_waiting() == 0
    assert [*(tmp_path / "slots").glob("[0-9]*")] == []


def test_request_is_set_aside_and_goes_on_when_a_more_urgent_one_comes(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 1)
    with slots.enter(LOW) as low:
        assert low.take()
        assert not low.must_give_way()
        with slots.enter(URGENT) as urgent:
            assert low.must_give_way()
            low.give_way()
            assert not low.take()
            assert urgent.take()
        assert low.take()
        assert low.set_aside_count == 1


def test_slot_of_a_killed_process_is_free(tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    slots = Slots(folder, 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (folder / f"{ended.pid}-1-0").write_text(json.dumps(asdict(running("x", URGENT))))
    with slots.enter(LOW) as low:
        assert low.take()


def test_every_request_has_a_slot_when_there_is_no_server() -> None:
    slots = Slots(None, 1)
    with slots.enter(LOW) as first, slots.enter(LOW) as second:
        assert first.take()
        assert second.take()
        assert not first.must_give_way()
        first.give_way()
    assert slots.count_waiting() == 0


def settings(**parameters: str) -> Settings:
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return Settings("wan_t2v", Path("wan_t2v/1"), {"parameters": values})


@pytest.mark.parametrize(
    ("instance", "spare"),
    [("wan_t2v_0_0", False), ("wan_t2v_0_1", False), ("wan_t2v_0_2", True), ("x", False)],
)
def test_instance_is_spare_when_there_are_fewer_slots(instance: str, spare: bool) -> None:
    assert is_spare(settings(concurrent_requests="2"), instance) is spare
    assert not is_spare(settings(), instance)


@pytest.mark.parametrize("value", ["0", "-1", "two", ""])
def test_number_of_slots_is_refused_when_it_is_none(value: str) -> None:
    with pytest.raises(InvalidRequest, match="parameter concurrent_requests of config.pbtxt must be a whole"):
        Slots.from_settings(settings(concurrent_requests=value))
