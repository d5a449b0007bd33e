"""When deaths are too many, and how long to wait between them; a clock that tests set."""

from __future__ import annotations

import pytest

from slipway_serving.supervision import DEATHS, Deaths, ended_by


def test_waits_grow_in_a_row_of_deaths_until_they_are_too_many() -> None:
    deaths = Deaths(10, lambda: 0.0)
    waits = []
    while not deaths.too_many:
        deaths.died()
        waits.append(deaths.wait_s)
    assert waits == [0, 1, 2, 4, 8][:DEATHS]


def test_row_begins_anew_when_it_served_for_long_enough() -> None:
    now_s = 0.0
    deaths = Deaths(10, lambda: now_s)
    for served_s, count in ((9, 1), (9, 2), (10, 1), (9, 2)):
        deaths.serves()
        now_s += served_s
        deaths.died()
        assert deaths.count == count
    now_s += 100  # not serving meanwhile
    deaths.died()
    assert deaths.count == 3


@pytest.mark.parametrize(
    ("code", "said"), [(-11, "SIGSEGV"), (-9, "SIGKILL"), (1, "exit code 1"), (-99, "signal 99")]
)
def test_end_of_a_process_is_told_in_words(code: int, said: str) -> None:
    assert ended_by(code) == said
