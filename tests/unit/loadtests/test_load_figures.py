"""From what users saw to figures and broken promises; what they send is what the request classes accept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from slipway_loadtests.load import payloads, report
from slipway_loadtests.load.outcomes import Outcome, RequestObserver, now_s
from slipway_loadtests.load.plan import Plan, Stage
from slipway_loadtests.load.queues import Queues
from slipway_loadtests.load.slo import Objective
from slipway_loadtests.load.summary import summarize
from slipway_loadtests.load.uses import all_uses, uses_of
from slipway_loadtests.load.visits import USES
from slipway_serving.families.matrix_game.keys import VOCABULARIES, actions_of
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
    Unrecoverable,
)
from slipway_serving.protocol.events import FramesPart, Progress

MODEL = "wan_t2v"


def outcome(due_s: float, took_s: float, ended: str = "answered", **measures: float) -> Outcome:
    found = {"latency_s": took_s, **measures} if ended == "answered" else {}
    return Outcome(MODEL, due_s, due_s + took_s, ended, {name: (value,) for name, value in found.items()})


def watched(*events: Any, error: BaseException | None = None) -> Outcome:
    kept: list[Outcome] = []
    with RequestObserver(MODEL, now_s() - 1.0, kept.append) as watch:
        for event in events:
            watch.see(event)
        if error is not None:
            raise error
    (found,) = kept
    return found


def test_watch_counts_no_step_while_the_request_waits() -> None:
    steps = (Progress(1, 2, 3.1), Progress(2, 2, 3.5))
    waits = watched(Progress(0, 0, 0.0, phase="waiting"), Progress(0, 0, 3.0, phase="waiting"), *steps)
    assert waits.measures["step_s"] == watched(*steps).measures["step_s"]
    assert "first_frame_s" not in waits.measures


def test_watch_measures_from_when_the_request_was_due() -> None:
    frames = FramesPart(np.zeros((1, 2, 2, 3), np.uint8), 0, elapsed_s=0.7)
    found = watched(Progress(1, 2, 0.1), Progress(2, 2, 0.5), frames)
    assert found.ended == "answered"
    assert found.measures["step_s"] == pytest.approx((0.1, 0.4))
    assert found.measures["service_s"] == (0.7,)
    for name in ("latency_s", "lag_s", "first_progress_s", "first_frame_s"):
        assert found.measures[name][0] >= 1.0, name
    assert len(found.measures["first_frame_s"]) == len(found.measures["first_progress_s"]) == 1


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (Overloaded("full"), "rejected"),
        (NotReady("down"), "unavailable"),
        (DeadlineExceeded("late"), "expired"),
        (InvalidRequest("odd"), "refused"),
        (Cancelled("cut"), "cut off"),
        (Unrecoverable("broken"), "failed"),
    ],
)
def test_watch_says_how_a_request_failed_and_measures_nothing(error: SlipwayError, ended: str) -> None:
    found = watched(Progress(1, 2, 0.1), error=error)
    assert (found.ended, found.measures, found.said) == (ended, {}, str(error))


def test_watch_lets_a_defect_through() -> None:
    with pytest.raises(ZeroDivisionError):
        watched(error=ZeroDivisionError())


def test_figures_count_rejected_failed_and_good_answers_apart() -> None:
    plan = Plan(stages=(Stage(10.0, 1.0),), slo={MODEL: Objective(good={"latency_s": 1.0})})
    outcomes = [
        *(outcome(number, 0.5) for number in range(4)),
        *(outcome(number, 2.0) for number in range(2)),
        *(outcome(number, 0.1, "rejected") for number in range(3)),
        outcome(1.0, 0.1, "cancelled"),
        outcome(1.0, 0.1, "failed"),
        outcome(1.0, 0.1, "unanswered"),
    ]
    whole = summarize(plan, [MODEL], 0.0, outcomes, []).models[MODEL].whole
    assert whole.sent == 12 and whole.answered == 6
    assert (whole.per_s, whole.goodput_per_s, whole.good_share) == (0.6, 0.4, pytest.approx(4 / 6))
    assert (whole.rejected_share, whole.failed_share) == (3 / 12, 2 / 12)
    assert whole.measures["latency_s"].count == 6 and whole.measures["latency_s"].most == 2.0


def test_answer_counts_where_it_came_and_its_latency_where_it_was_due() -> None:
    plan = Plan(stages=(Stage(1.0, 1.0), Stage(1.0, 2.0)))
    first, second = summarize(plan, [MODEL], 0.0, [outcome(0.9, 0.5)], []).models[MODEL].stages
    assert (first.figures.sent, first.figures.per_s, second.figures.sent, second.figures.per_s) == (
        1,
        0,
        0,
        1,
    )
    assert first.figures.measures["latency_s"].p50 == 0.5 and not second.figures.measures


def test_knee_is_the_lowest_load_that_nearly_gets_the_most_answers() -> None:
    plan = Plan(stages=tuple(Stage(10.0, float(level)) for level in (1, 2, 4, 8)))
    answers = (10, 19, 37, 40)
    outcomes = [
        outcome(10 * stage + 9 * number / count, 0.1)
        for stage, count in enumerate(answers)
        for number in range(count)
    ]
    assert summarize(plan, [MODEL], 0.0, outcomes, []).models[MODEL].knee == 4


def test_knee_of_open_arrivals_is_the_highest_rate_that_is_kept_up_with() -> None:
    stages = tuple(Stage(10.0, float(level)) for level in (1, 2, 4, 8))
    # At 4 and 8 per second some wait for later stages, where more are answered than at 2.
    took_s = (0.5, 0.5, 6.0, 6.0)
    outcomes = [
        outcome(10 * stage + number / each.level, took)
        for stage, (each, took) in enumerate(zip(stages, took_s, strict=True))
        for number in range(int(each.level) * 9)
    ]
    plan = Plan(stages=stages, arrivals="poisson")
    assert summarize(plan, [MODEL], 0.0, outcomes, []).models[MODEL].knee == 2


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (Objective(p95={"latency_s": 0.4}), "p95 of latency_s must be 0.4 or less, got 0.5"),
        (Objective(p50={"stall_s": 1.0}), "p50 of stall_s must be 1 or less, got no such measure"),
        (Objective(good={"latency_s": 0.1}, least_good_share=0.9), "good_share must be 0.9 or more, got 0"),
        (Objective(least_goodput_per_s=9.0), "goodput_per_s must be 9 or more, got 0.4"),
        (Objective(most_rejected_share=0.1), "rejected_share must be 0.1 or less, got 0.2"),
        (Objective(most_failed_share=0.0), "failed_share must be 0 or less, got 0.4"),
    ],
)
def test_objective_says_which_promise_was_broken(objective: Objective, said: str) -> None:
    plan = Plan(stages=(Stage(5.0, 1.0),), slo={MODEL: objective})
    outcomes = [
        *(outcome(number, 0.5) for number in range(2)),
        outcome(0.0, 0.1, "rejected"),
        outcome(0.0, 0.1, "expired"),
        outcome(0.0, 0.1, "failed"),
    ]
    assert summarize(plan, [MODEL], 0.0, outcomes, []).broken == (f"{MODEL}: {said}",)


def test_kept_objective_breaks_nothing() -> None:
    kept = Objective(
        good={"latency_s": 1.0}, p99={"latency_s": 1.0}, least_good_share=1.0, most_failed_share=0
    )
    plan = Plan(stages=(Stage(5.0, 1.0),), slo={MODEL: kept})
    assert summarize(plan, [MODEL], 0.0, [outcome(1.0, 0.5)], []).broken == ()


@pytest.mark.parametrize("outcomes", [[], [outcome(0.0, 1.0, "rejected")]])
def test_run_without_an_answer_is_broken_whatever_was_promised(outcomes: list[Outcome]) -> None:
    assert summarize(Plan(stages=(Stage(5.0, 1.0),)), [MODEL], 0.0, outcomes, []).broken


def test_promise_about_a_model_that_is_not_asked_is_not_broken() -> None:
    plan = Plan(stages=(Stage(5.0, 1.0),), slo={"airimu": Objective(most_failed_share=0)})
    assert summarize(plan, [MODEL], 0.0, [outcome(1.0, 0.5)], []).broken == ()


def test_report_shows_what_went_wrong_and_escapes_it() -> None:
    plan = Plan(stages=(Stage(5.0, 1.0), Stage(5.0, 2.0)))
    bad = Outcome(MODEL, 1.0, 2.0, "failed", {}, "<script> broke")
    summary = summarize(plan, [MODEL], 0.0, [outcome(0.0, 0.5), bad], ["no <model>"])
    page = "\n".join(report.page(plan, summary, None))
    assert "&lt;script&gt; broke" in page and "no &lt;model&gt;" in page
    assert "<script>" not in page and "data:image/png;base64," in page
    assert any("1 times failed: <script> broke" in line for line in report.lines(summary, None))


def test_queues_are_what_was_added_since() -> None:
    before = Queues({"a": {"requests": 5.0, "queue_us": 100.0, "compute_us": 1000.0}})
    after = Queues(
        {
            "a": {"requests": 7.0, "queue_us": 4100.0, "compute_us": 9000.0},
            "b": {"requests": 0.0, "queue_us": 0.0, "compute_us": 0.0},
        }
    )
    found = after.since(before)
    assert set(found) == {"a"}
    assert (found["a"].requests, found["a"].queue_s, found["a"].compute_s) == (2, 0.002, 0.004)


def test_payloads_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    assert payloads.prompt(np.random.default_rng(3)) == payloads.prompt(np.random.default_rng(3))
    makers: tuple[Callable[[int], object], ...] = (
        payloads.picture,
        payloads.said,
        *(partial(payloads.land, mode=mode) for mode in VOCABULARIES),
        lambda seed: payloads.speech(seed, 0.5, 16_000).tobytes(),
    )
    for make in makers:
        first = make(1)
        for kept in (payloads.picture, payloads.land, payloads.speech):
            kept.cache_clear()
        assert make(1) == first != make(2)


def test_sounds_are_loud_enough_to_be_heard_and_within_range() -> None:
    samples = payloads.speech(5, 1.0, 16_000)
    assert samples.shape == (16_000,) and np.abs(samples).max() <= 1
    assert np.sqrt(np.mean(samples**2)) > 0.005


def test_motion_is_that_of_a_sensor_under_gravity() -> None:
    recordings = payloads.motion(1, 2, 1000)
    assert {name: signal.shape for name, signal in recordings.items()} == {
        "acc": (2, 1000, 3),
        "gyro": (2, 1000, 3),
    }
    assert recordings["acc"][..., 2].mean() == pytest.approx(9.81, abs=0.2)


@pytest.mark.parametrize("mode", VOCABULARIES)
def test_held_keys_are_ones_that_can_be_held_together(mode: str) -> None:
    random = np.random.default_rng(0)
    held = {payloads.keys(random, mode) for _ in range(300)}
    assert len(held) > 4
    for keys in held:
        actions_of(keys, mode)


def test_every_family_is_used_and_every_user_has_a_name_of_its_own() -> None:
    families = {"wan_t2v", "framepack_i2v", "matrix_game", "wakeword", "airimu"}
    assert {use.family for use in USES} == families
    assert len({use.user for use in USES}) == len({use.model for use in USES}) == len(USES)
    assert len({use.user for use in all_uses()}) == len(all_uses())
    with pytest.raises(InvalidRequest, match="family must be one of"):
        uses_of("toy")
    with pytest.raises(InvalidRequest, match="must have requests that clients send, got wakeword_head"):
        uses_of("wakeword_head")
