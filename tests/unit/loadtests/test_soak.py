"""What a soak makes of what it saw: slopes, failures that kills explain, answers, what is wrong at last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from slipway_loadtests.soak.kills import TRITON, Kill, Kills, unexplained
from slipway_loadtests.soak.leak import KIND
from slipway_loadtests.soak.resources import Held
from slipway_loadtests.soak.running import FLAT
from slipway_loadtests.soak.traffic import FAILED, GOOD, HUNG, REJECTED, RIGHT, WRONG, Sent
from slipway_loadtests.soak.trends import trend_of
from slipway_loadtests.soak.verdict import (
    SoakRun,
    lines_of,
    memory_broken,
    memory_ratio,
    requests_broken,
    shared_per_kill,
    slopes_broken,
)
from slipway_loadtests.soak.workload import Ask, Kind, kinds, same, spoiled, stated
from slipway_serving.families.airimu.request import Corrections
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import FramesPart, Progress

HALF_HOUR_S = 1800.0
MIB = 1 << 20
ALL = (*kinds(limit_s=60.0), KIND)
TIMES_S = np.linspace(0, HALF_HOUR_S, 360)


def flat(times_s: np.ndarray) -> np.ndarray:
    """A memory of 1,000 MiB, as noisy as allocators make it, after a warm-up."""
    random = np.random.default_rng(0)
    warm = 1 - np.exp(-times_s / 30)
    return 1000 * MIB * (0.5 + 0.5 * warm + 0.02 * random.standard_normal(times_s.size))


def run_of(memory: Callable[[np.ndarray], np.ndarray], slow_s: float = 0.0) -> SoakRun:
    """A run of half an hour, ten good answers every five seconds that get slower by `slow_s` in all."""
    samples = [
        Held(at, round(byte), 64 * MIB, 100) for at, byte in zip(TIMES_S, memory(TIMES_S), strict=True)
    ]
    took_s = 0.1 + slow_s * TIMES_S / HALF_HOUR_S
    took_s += 0.01 * np.random.default_rng(1).exponential(size=TIMES_S.size)
    ends = zip(TIMES_S, took_s, strict=True)
    sent = [Sent("airimu", GOOD, at - took, at, RIGHT) for at, took in ends for _ in range(10)]
    return SoakRun(sent, samples, [], [], [], 0.0, HALF_HOUR_S, [])


def sent(begun_s: float, ended_s: float, ended: str = FAILED, code: str = "UNAVAILABLE") -> Sent:
    return Sent("airimu", GOOD, begun_s, ended_s, ended, code, "its words")


def test_no_line_is_broken_when_all_are_flat_after_a_warm_up() -> None:
    lines = lines_of(run_of(flat), FLAT)
    assert not slopes_broken(lines)
    assert all(line.trend is not None for line in lines.values())
    assert "p95 of airimu, s" in lines


@pytest.mark.parametrize("mib_per_hour", [200, 1000])
def test_leak_is_caught_when_it_is_above_what_is_allowed(mib_per_hour: int) -> None:
    run = run_of(lambda times_s: flat(times_s) + mib_per_hour * MIB * times_s / 3600)
    (broken,) = slopes_broken(lines_of(run, FLAT))
    assert broken.startswith("memory, MiB must grow by at most 10 % per hour, got ")
    assert float(broken.rsplit(" ", 1)[1]) == pytest.approx(mib_per_hour / 10, rel=0.35)


def test_leak_of_descriptors_is_caught_when_a_few_stay_open_each_minute() -> None:
    run = run_of(flat)
    leaking = [replace(each, descriptors=100 + int(each.at_s // 60)) for each in run.samples]
    (broken,) = slopes_broken(lines_of(replace(run, samples=leaking), FLAT))
    assert broken.startswith("descriptors must grow by at most 10 % per hour")


def test_growing_p95_is_caught_when_answers_get_slower() -> None:
    (broken,) = slopes_broken(lines_of(run_of(flat, slow_s=0.1), FLAT))
    assert broken.startswith("p95 of airimu, s must grow by at most 50 % per hour")


def test_steep_line_passes_when_it_is_no_more_than_chance() -> None:
    values = 100 + 50 * np.random.default_rng(3).standard_normal(20)
    steep = [trend_of(range(20), np.roll(values, by).tolist(), allowed=10) for by in range(20)]
    assert any(each is not None and each.percent_per_hour > 10 for each in steep)
    assert all(each is not None and each.flat for each in steep)


def test_nothing_is_said_of_a_line_when_it_has_too_few_points() -> None:
    assert trend_of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], allowed=10) is None
    few = replace(run_of(flat), samples=())
    assert [words.split(" must")[0] for words in slopes_broken(lines_of(few, FLAT))] == [
        "memory, MiB",
        "shared memory, MiB",
        "descriptors",
    ]


@pytest.mark.parametrize(
    ("failure", "is_explained"),
    [
        (sent(9, 11), True),  # under way when the process was killed
        (sent(12, 13, code="ABORTED"), True),  # a session that went with it
        (sent(15.5, 16), True),  # just before the model is back
        (sent(5, 9.9), False),  # ended before
        (sent(17, 18), False),  # begun after
        (sent(9, 11, code="INVALID_ARGUMENT"), False),
        (sent(9, 11, code="INTERNAL"), False),
    ],
)
def test_failure_is_explained_when_its_time_and_code_are_those_of_a_kill(
    failure: Sent, is_explained: bool
) -> None:
    kills = [Kill("airimu", 10.0, 15.0), Kill("airimu", 100.0, 101.0)]
    assert unexplained([failure, sent(9, 11, RIGHT)], kills) == ([] if is_explained else [failure])


def test_all_that_must_not_be_is_named_when_a_run_has_it() -> None:
    run = replace(
        run_of(flat),
        sent=[sent(0, 1), sent(1, 2, WRONG), sent(2, 3, HUNG)],
        kills=[Kill("wan_t2v", 50.0)],
        deaths=[Kill(TRITON, 80.0, 81.0)],
        words=[
            "model died: model wan_t2v, deaths 1",
            "model died: model airimu, deaths 1",
        ],
        final=[sent(60, 61)],
        unended=1,
    )
    said = " | ".join(requests_broken(run))
    for words in (
        "no answer may be wrong, got 1: 1 times airimu (good): its words",
        "no request may hang, got 1",
        "every failure must be explained by a kill, got 1",
        "a good request must pass in the end, got 1",
        "every caller must come back, got 1",
        "every model must serve again whose process was killed, got wan_t2v",
        "tritonserver may die for 1% of the requests, got 1",
        "no model's process must die by itself, got model died: model airimu",
    ):
        assert words in said
    assert not requests_broken(run_of(flat))


def test_deaths_of_tritonserver_explain_failures_where_they_are_few() -> None:
    requests = [*[sent(0, 1, RIGHT)] * 99, sent(9, 11)]
    assert not requests_broken(replace(run_of(flat), sent=requests, deaths=[Kill(TRITON, 10.0, 15.0)]))


def test_some_requests_may_be_rejected_but_not_many() -> None:
    rejected, right = sent(0, 1, REJECTED, "RESOURCE_EXHAUSTED"), sent(0, 1, RIGHT)
    assert not requests_broken(replace(run_of(flat), sent=[rejected, *[right] * 99]))
    (said,) = requests_broken(replace(run_of(flat), sent=[rejected, rejected, *[right] * 98]))
    assert said == "at most 1% may be rejected, got 2: 2 times airimu (good): its words"
    assert requests_broken(replace(run_of(flat), final=[rejected]))


def test_memory_is_compared_with_that_after_the_first_tenth() -> None:
    requests = [sent(at, at + 1, RIGHT) for at in range(100)]
    memories = {5: 500, 11: 900, 14: 1000, 19: 1000, 50: 3000, 200: 1050}
    samples = [Held(float(at), mib * MIB, 0, 0) for at, mib in memories.items()]
    run = replace(run_of(flat), sent=requests, samples=samples)
    assert memory_ratio(run) == 1.05 and not memory_broken(run)
    grown = replace(run, samples=[*samples, Held(300.0, 1051 * MIB, 0, 0)])
    assert memory_broken(grown) == [
        "memory at the end must be at most 1.05 times that after the first tenth, got 1.051"
    ]
    seldom = replace(run, samples=[samples[0], samples[-1]])
    assert memory_ratio(seldom) == 1.0


def test_kill_is_over_when_the_server_says_that_the_model_is_back() -> None:
    kills = Kills(10, np.random.default_rng(0))
    kills.done.append(Kill("sum", 0.0))
    kills.told("model restarted: model sum_other, restarts 1, after_s 0.1")
    assert not kills.all_back
    kills.told("model restarted: model sum, restarts 1, after_s 0.1")
    assert kills.all_back and len(kills.words) == 2


def test_kill_is_over_when_no_instance_of_its_model_lacks_a_process() -> None:
    kills = Kills(10, np.random.default_rng(0))
    kills.done.append(Kill("sum", 0.0))
    kills.lacks(["sum_0_0", "other_0_0"])
    assert not kills.all_back
    kills.lacks(["sum_other_0_0"])  # of another model, whose name begins alike
    assert kills.all_back


def test_shared_memory_is_counted_per_kill_since_the_last_death() -> None:
    shared = {0: 30, 9: 31, 50: 33, 61: 30, 69: 30, 80: 31, 90: 34}
    samples = [Held(float(at), 0, mib * MIB, 0) for at, mib in shared.items()]
    kills = [
        Kill("sum", 10.0, 11.0),
        Kill("sum", 40.0, 41.0),
        Kill("sum", 70.0, 71.0),
        Kill("sum", 75.0, 76.0),
    ]
    run = replace(run_of(flat), samples=samples, kills=kills)
    assert shared_per_kill(run) == 3 * MIB / 4  # 34 - 31
    assert shared_per_kill(replace(run, deaths=[Kill(TRITON, 55.0, 60.0)])) == 2 * MIB  # (34 - 30) / 2
    assert shared_per_kill(replace(run, kills=[])) is None


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.model)
def test_request_is_the_same_for_a_seed_and_bad_in_the_field_that_is_spoiled(kind: Kind) -> None:
    one, again, other = kind.make(1), kind.make(1), kind.make(2)
    assert one.opening.model == kind.model
    assert seen(one) == seen(again) != seen(other)
    for field, change in kind.bad.items():
        bad = spoiled(one, field, change)
        problems = [problem for each in (bad.opening, *bad.turns) for problem in each.problems()]
        assert bad.refused_for == field
        assert any(problem.startswith(f"{field} must be") for problem in problems), problems
        assert not [problem for each in (one.opening, *one.turns) for problem in each.problems()]


def seen(ask: Ask) -> Sequence[str]:
    def text(value: object) -> str:
        return str(value.tobytes()) if isinstance(value, np.ndarray) else repr(value)

    return [
        f"{name}={text(value)}" for each in (ask.opening, *ask.turns) for name, value in vars(each).items()
    ]


def test_fields_are_as_stated_and_unknown_ones_are_named() -> None:
    video = next(kind for kind in ALL if kind.model == "wan_t2v")
    assert vars(stated(video, {"frames": 9}).make(3).opening)["frames"] == 9
    with pytest.raises(InvalidRequest, match=r"soak: fields of wan_t2v must be of .*, got \['frame'\]"):
        stated(video, {"frame": 9})


def test_answers_are_the_same_when_only_clocks_and_last_bits_differ() -> None:
    pixels = np.full((1, 2, 2, 3), 255, np.uint8)
    first = [Progress(1, 4, 0.1), FramesPart(pixels, 0, 0.5)]
    assert same(first, [Progress(1, 4, 7.0), FramesPart(pixels - 1, 0, 9.0)])
    assert not same(first, [Progress(2, 4, 0.1), FramesPart(pixels, 0, 0.5)])
    assert not same(first, [Progress(1, 4, 0.1), FramesPart(pixels + 1, 0, 0.5)])  # 255 + 1 is 0
    assert not same(first, first[:1])
    assert not same(first[1:], [FramesPart(pixels[:, :1], 0, 0.5)])
    one = np.ones((1, 2, 3), np.float32)
    assert same([Corrections(one, one, one, one)], [Corrections(one * 1.0005, one, one, one)])
    assert not same([Corrections(one, one, one, one)], [Corrections(one * 1.01, one, one, one)])
    assert not same([Corrections(one, one, one, one)], [Corrections(one * np.nan, one, one, one)])


def test_what_was_killed_is_back_with_the_server_that_died_and_was_started_anew() -> None:
    kills = Kills(10, np.random.default_rng(0))
    kills.done.append(Kill("sum", 0.0))
    kills.told("server died: deaths 1, reason SIGABRT")
    assert [death.model for death in kills.deaths] == [TRITON] and not kills.all_back
    kills.told("server restarted: restarts 1, after_s 2.0")
    assert kills.all_back
