"""Which schedulers a pipeline takes, tried at the export and at the load, and how the others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from test_framepack_pipeline import FACTS as FRAMEPACK

from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import FewStep
from slipway_serving.families.framepack_i2v import pipeline as framepack
from slipway_serving.families.wan_t2v import pipeline as wan
from slipway_serving.protocol.errors import InvalidRequest

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler"}
UNIPC = {"_class_name": "UniPCMultistepScheduler", **FLOW}


def of_wan(config: Mapping[str, Any]) -> None:
    wan.check_schedules(config, "s.json")


def of_framepack(config: Mapping[str, Any]) -> None:
    framepack.check_schedules(replace(FRAMEPACK, scheduler=config), "s.json")


@pytest.mark.parametrize(
    "config",
    [
        # As public checkpoints have them, each with all the entries that diffusers writes.
        EULER | dict(FlowMatchEulerDiscreteScheduler(shift=7.0).config),
        UNIPC | dict(UniPCMultistepScheduler(flow_shift=3.0, **FLOW).config) | UNIPC,
        {"_class_name": "DPMSolverMultistepScheduler", **FLOW, "flow_shift": 5.0},
    ],
)
def test_flow_scheduler_is_taken_for_wan(config: dict[str, Any]) -> None:
    of_wan(config)


def test_schedule_that_follows_the_size_is_taken_for_framepack_alone() -> None:
    config = EULER | {"use_dynamic_shifting": True}
    of_framepack(config)
    with pytest.raises(
        InvalidRequest,
        match=r"^s\.json: use_dynamic_shifting must be False, the value with which"
        r" FlowMatchEulerDiscreteScheduler works, got True: 1 steps end with ValueError: `mu` must be passed",
    ):
        of_wan(config)


@pytest.mark.parametrize("check", [of_wan, of_framepack])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "_class_name must be one of diffusers' schedulers for flows, got None"),
        ({"_class_name": ["DDIMScheduler"]}, "_class_name must be one of diffusers' schedulers for flows"),
        ({"_class_name": "Nothing"}, "_class_name must be one of .* got 'Nothing'"),
        ({"_class_name": "DDIMScheduler"}, "_class_name must be one of .* got 'DDIMScheduler'"),
        (
            {"_class_name": "FlowMatchHeunDiscreteScheduler"},
            "_class_name must be a scheduler that solves a flow .* got FlowMatchHeunDiscreteScheduler: ",
        ),
        (
            {"_class_name": "EulerDiscreteScheduler"},
            "_class_name must be a scheduler that solves a flow .* such as FlowMatchEulerDiscreteScheduler,"
            " or UniPC.*; got EulerDiscreteScheduler: ",
        ),
        ({"_class_name": "HeunDiscreteScheduler"}, "_class_name must be .*; got HeunDiscreteScheduler: "),
        (UNIPC | {"prediction_type": "epsilon"}, "prediction_type must be 'flow_prediction', .* 'epsilon'"),
        (UNIPC | {"use_flow_sigmas": False}, "use_flow_sigmas must be True, .* got False"),
        (EULER | {"invert_sigmas": True}, "invert_sigmas must be False, .* got True: "),
        (EULER | {"shift": "5"}, "shift must be of type float, such as 1.0, got '5'"),
        (EULER | {"num_train_timesteps": [1000]}, r"num_train_timesteps must be of type int.* got \[1000\]"),
        (EULER | {"shift": 0.0}, "shift must be 1.0, .* got 0.0: "),
    ],
)
def test_scheduler_is_refused_with_its_key_when_no_request_could_use_it(
    check: Any, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"^s\.json: {message}"):
        check(config)


def test_entry_that_only_framepack_reads_is_named_when_it_is_wrong() -> None:
    config = EULER | {"base_image_seq_len": 4096}
    with pytest.raises(
        InvalidRequest, match=r"^s\.json: base_image_seq_len must be 256, .* ZeroDivisionError"
    ):
        of_framepack(config)


@pytest.mark.parametrize("shift", [0, -1.0, float("nan"), float("inf"), "5", True, None])
def test_few_steps_are_refused_when_the_shift_is_no_number_above_zero(shift: Any) -> None:
    with pytest.raises(InvalidRequest, match="shift must be a finite number above 0, got"):
        FewStep((1000, 500), shift, Noise(0))


@pytest.mark.parametrize("steps", [("1000", 500), (1000.0, 500.0), (True,)])
def test_few_steps_are_refused_when_they_are_no_whole_numbers(steps: Any) -> None:
    with pytest.raises(InvalidRequest, match="steps must be descending"):
        FewStep(steps, 5.0, Noise(0))
