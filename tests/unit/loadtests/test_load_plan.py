"""Plans of load tests: stages, arrivals, objectives, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from slipway_client import Client, TextToVideoRequest
from slipway_client.served_model import ServedModel
from slipway_loadtests.load.arrivals import moments_s
from slipway_loadtests.load.plan import Plan, Stage, read_plan, read_slo, read_stages, stages_of
from slipway_loadtests.load.slo import Objective
from slipway_loadtests.load.visits import Visitor
from slipway_serving.protocol.errors import InvalidRequest

ROOT = Path(__file__).resolve().parents[3]


def test_request_has_the_usual_size_of_its_model_unless_the_plan_states_another() -> None:
    plan = Plan(fields={"wan_t2v": {"width": 128}})
    told = {"frames": "33", "height": "64", "width": "64", "of_a_newer_server": "1"}
    served = ServedModel("wan_t2v", {f"usual_{name}": text for name, text in told.items()})
    with Client("localhost:1") as client:
        random = np.random.default_rng(0)
        visitor = Visitor(client, plan, random, lambda _: None, 0.0, served)
        request = visitor.asked(TextToVideoRequest, prompt="x")
        assert (request.frames, request.height, request.width) == (33, 64, 128)
        older = dataclasses.replace(visitor, served=ServedModel("wan_t2v")).asked(
            TextToVideoRequest, prompt="x"
        )
        assert (older.frames, older.height, older.width) == (81, 480, 128)


def gaps(plan: Plan) -> np.ndarray:
    return np.diff(list(moments_s(plan, 1.0, np.random.default_rng(1))))


def test_plan_comes_back_whole_when_sent_as_text() -> None:
    plan = Plan(
        url="here:1",
        users=("TextToVideo",),
        stages=(Stage(1.0, 2.0), Stage(3.0, 4.5)),
        fields={"wan_t2v": {"frames": 5}},
        slo={"wan_t2v": Objective(good={"latency_s": 1e-6}, p95={"step_s": 2.0}, most_failed_share=0.0)},
        json="report.json",
    )
    assert read_plan(plan.text()) == plan


@pytest.mark.parametrize(
    ("shape", "levels"),
    [
        ("steady", [8]),
        ("soak", [8]),
        ("ramp", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("spike", [2, 8, 2]),
    ],
)
def test_shape_has_its_levels_and_lasts_as_long_as_asked(shape: str, levels: list[float]) -> None:
    stages = stages_of(shape, 8.0, 24.0)  # type: ignore[arg-type]
    assert [stage.level for stage in stages] == levels
    assert sum(stage.seconds for stage in stages) == 24.0


def test_levels_are_whole_users_when_there_are_few() -> None:
    levels = [stage.level for stage in stages_of("ramp", 3.0, 8.0, whole=True)]
    assert levels == [1, 1, 1, 2, 2, 2, 3, 3]


def test_stage_is_the_one_at_the_moment_and_none_after_the_last() -> None:
    plan = Plan(stages=(Stage(1.0, 1.0), Stage(2.0, 2.0)))
    found = [plan.stage_at(at_s) for at_s in (0.0, 0.99, 1.0, 2.99)]
    assert [stage.level for stage in found if stage] == [1.0, 1.0, 2.0, 2.0]
    assert plan.stage_at(3.0) is None


def test_constant_arrivals_are_equally_far_apart_and_follow_the_stages() -> None:
    plan = Plan(arrivals="constant", stages=(Stage(2.0, 5.0), Stage(1.0, 20.0)))
    found = gaps(plan)
    assert np.isclose(found[:8], 0.2).all() and np.isclose(found[11:], 0.05).all()
    assert len(found) + 1 == 30


@pytest.mark.parametrize(("arrivals", "variation"), [("constant", 0.0), ("poisson", 1.0), ("gamma", 9.0)])
def test_arrivals_come_as_often_as_asked_and_as_unevenly(arrivals: str, variation: float) -> None:
    plan = Plan(arrivals=arrivals, burst=9.0, stages=(Stage(4000.0, 10.0),))  # type: ignore[arg-type]
    found = gaps(plan)
    assert found.mean() == pytest.approx(0.1, rel=0.05)
    assert found.var() / found.mean() ** 2 == pytest.approx(variation, rel=0.1, abs=1e-6)


def test_shares_of_sources_add_up_to_the_rate() -> None:
    plan = Plan(arrivals="poisson", stages=(Stage(1000.0, 12.0),))
    counts = [len(list(moments_s(plan, 1 / 3, np.random.default_rng(seed)))) for seed in range(3)]
    assert sum(counts) == pytest.approx(12_000, rel=0.05)


def test_no_request_comes_in_a_stage_without_any() -> None:
    plan = Plan(arrivals="poisson", stages=(Stage(10.0, 0.0), Stage(10.0, 5.0), Stage(10.0, 0.0)))
    found = list(moments_s(plan, 1.0, np.random.default_rng(0)))
    assert found and min(found) >= 10.0 and max(found) <= 20.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"protocol": "carrier"}, "protocol"),
        ({"arrivals": "never"}, "arrivals"),
        ({"burst": 0.0}, "burst"),
        ({"cancel_share": 1.5}, "cancel_share"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"think_s": -1.0}, "think_s"),
        ({"session_s": float("nan")}, "session_s"),
        ({"stages": (Stage(0.0, 1.0),)}, "stages"),
        ({"stages": (Stage(1.0, -1.0),)}, "stages"),
    ],
)
def test_plan_names_the_field_that_breaks_its_rule(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"load: {named} must"):
        Plan(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "{unknown: 1}",
        "{stages: [{seconds: 1}]}",
        "{stages: []}",
        "{stages: [{seconds: soon, level: 1}]}",
        "{slo: {wan_t2v: {p96: {latency_s: 1}}}}",
        "{slo: {wan_t2v: {p95: 1}}}",
        "{slo: {wan_t2v: {least_good_share: -1}}}",
        "{slo: {wan_t2v: {p95: {latency_s: soon}}}}",
        "{",
    ],
)
def test_file_that_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match="^load: "):
        read_plan(str(file))


def test_missing_file_is_named_when_a_plan_is_read() -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere\.yaml"):
        read_plan("nowhere.yaml")


def test_stages_are_read_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "stages.yaml"
    file.write_text("- {seconds: 30, level: 4}\n- {seconds: 60, level: 8}\n")
    assert read_stages(file) == (Stage(30.0, 4.0), Stage(60.0, 8.0))


def test_objectives_of_the_example_are_read_and_are_of_models_that_are_used() -> None:
    from slipway_loadtests.load.visits import USES

    objectives = read_slo(ROOT / "loadtests/slo.yaml")
    assert set(objectives) <= {use.model for use in USES}
    assert all(dataclasses.asdict(objective) for objective in objectives.values())
