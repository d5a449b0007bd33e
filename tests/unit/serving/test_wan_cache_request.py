"""The fields guidance_start, guidance_stop and cache_threshold: their rules, and which steps are guided."""

from typing import Any

import numpy as np
import pytest
from diffusers.guiders import ClassifierFreeGuidance
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.results import Assembler, Frames
from slipway_serving.families.wan_t2v.request import Limits, TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import FramesPart, read, tensors
from slipway_serving.protocol.requests import decode, encode

LIMITS = Limits(frames=(1, 33), height=(32, 128), width=(32, 128), two_experts=True)
SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.29, 1 / 3, 0.3, 0.5, 0.57, 0.58, 0.7, 1.0]) | st.floats(
    0, 1, width=32
)


@given(start=SHARES, stop=SHARES, steps=st.integers(1, 100))
def test_guided_steps_are_those_of_diffusers_guider(start: float, stop: float, steps: int) -> None:
    if start >= stop:
        start, stop = 0.0, 1.0
    # What crosses Triton is float32; both ends must count alike.
    sent = TextToVideoRequest("x", steps=steps, guidance_start=start, guidance_stop=stop)
    request = decode(TextToVideoRequest, encode(sent), "wan_t2v")
    guider = ClassifierFreeGuidance(4.0, start=request.guidance_start, stop=request.guidance_stop)
    wanted = []
    for step in range(steps):
        guider.set_state(step=step, num_inference_steps=steps, timestep=None)
        if guider.num_conditions == 2:
            wanted.append(step)
    assert list(request.guided_steps) == wanted


@pytest.mark.parametrize("stop", [1 / 3, 0.29, 0.57, 0.7])
def test_guided_steps_are_the_same_on_both_ends_when_a_share_has_few_decimals(stop: float) -> None:
    for steps in range(1, 101):
        sent = TextToVideoRequest("x", steps=steps, guidance_stop=round(stop, 6))
        assert decode(TextToVideoRequest, encode(sent), "wan_t2v").guided_steps == sent.guided_steps


def test_no_step_is_guided_when_guidance_is_off() -> None:
    assert not TextToVideoRequest("x", guidance_scale=1.0, guidance_start=0.2).guided_steps


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"guidance_start": -0.1}, "guidance_start must be 0 to 1, got -0.1; try 0.0 or 1.0"),
        ({"guidance_stop": 1.5}, "guidance_stop must be 0 to 1, got 1.5"),
        ({"guidance_start": float("nan")}, "guidance_start must be 0 to 1, got nan"),
        (
            {"guidance_start": 0.5, "guidance_stop": 0.5},
            r"guidance_start must be below guidance_stop \(0.5\)",
        ),
        ({"guidance_start": 1.0}, r"guidance_start must be below guidance_stop \(1.0\), got 1.0"),
        ({"cache_threshold": -1.0}, "cache_threshold must be finite and at least 0, got -1.0; try 0.05"),
        ({"cache_threshold": 1e39}, "cache_threshold must be finite"),
        ({"cache_threshold": True}, "cache_threshold must be of type float"),
    ],
)
def test_request_is_refused_when_a_share_or_threshold_breaks_its_rule(
    values: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^wan_t2v: {text}"):
        TextToVideoRequest("x", **values)


def test_both_conflicts_are_named_when_there_are_two() -> None:
    with pytest.raises(InvalidRequest, match=r"guidance_scale_2 must be .* \| guidance_start must be below"):
        TextToVideoRequest("x", guidance_scale=1.0, guidance_scale_2=2.0, guidance_start=1.0)


def test_threshold_is_refused_when_the_denoisers_were_exported_without_a_cache() -> None:
    request = TextToVideoRequest("x", frames=5, height=64, width=64, cache_threshold=0.0)
    with pytest.raises(
        InvalidRequest, match="cache_threshold must be left out .* --variant first-block-cache"
    ):
        request.check_against(LIMITS)
    request.check_against(Limits(LIMITS.frames, LIMITS.height, LIMITS.width, True, first_block_cache=True))


@pytest.mark.parametrize("hit_rate", [None, 0.0, 0.25])
def test_hit_rate_reaches_the_client_exactly_when_there_is_one(hit_rate: float | None) -> None:
    frames = np.zeros((5, 32, 64, 3), np.uint8)
    response = tensors(FramesPart(frames, 0, 1.5, frames_total=5, chunk=0, chunks=1, cache_hit_rate=hit_rate))
    assert ("cache_hit_rate" in response) == (hit_rate is not None)
    request = TextToVideoRequest("x", frames=5, height=32, width=64, output="frames")
    assembler = Assembler(request, "wan_t2v")
    assembler.add(read(request.events, response, "wan_t2v"))
    (result,) = assembler.results()
    assert isinstance(result, Frames)
    assert result.cache_hit_rate == hit_rate
