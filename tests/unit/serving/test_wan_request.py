"""Every rule of a text-to-video request: what keeps it passes, what breaks it is named."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_serving.families.wan_t2v.request import Limits, TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.requests import decode, encode

LIMITS = Limits(frames=(1, 33), height=(32, 128), width=(48, 256), two_experts=True)
GUIDANCE = st.floats(0, 100, width=32)
POSITIVE = st.floats(2**-10, 1000, width=32)
GOOD = {
    "prompt": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200),
    "negative_prompt": st.text(st.characters(codec="ascii", exclude_characters="\0")),
    "frames": st.integers(0, 1000).map(lambda k: 4 * k + 1),
    "height": st.integers(1, 1000).map(lambda k: 16 * k),
    "width": st.integers(1, 1000).map(lambda k: 16 * k),
    "steps": st.integers(1, 100),
    "guidance_scale": st.floats(2, 100, width=32),
    "guidance_scale_2": st.none() | GUIDANCE,
    "flow_shift": st.none() | st.floats(2**-9, 1000, width=32),
    "fps": st.integers(1, 120),
    "seed": st.integers(0, 2**32 - 1),
    "output": st.sampled_from(["video", "video_base64", "frames"]),
    "preview": st.booleans(),
    "timeout_s": st.none() | POSITIVE,
}
NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf, 1e39, -1e39, -0.5])
BAD = {
    "prompt": st.integers(16_385, 20_000).map(lambda n: "x" * n),
    "negative_prompt": st.sampled_from(["a\0b", "\0", "x" * 2**20]),
    "frames": st.integers(max_value=0) | st.integers(0, 10**6).map(lambda k: 4 * k + 2) | st.just(2**80 + 1),
    "height": st.integers(max_value=0) | st.integers(1, 10**6).map(lambda k: 16 * k + 2),
    "width": st.integers(max_value=0) | st.integers(1, 10**6).map(lambda k: 16 * k - 1),
    "steps": st.integers(max_value=0) | st.integers(101),
    "guidance_scale": NOT_FINITE,
    "guidance_scale_2": NOT_FINITE,
    "flow_shift": NOT_FINITE | st.sampled_from([0.0, 1e-45, 1e-30, 1001.0, 3e38]),
    "fps": st.integers(max_value=0) | st.integers(121),
    "seed": st.integers(max_value=-1) | st.integers(2**32),
    "output": st.text(max_size=8).filter(lambda text: text not in ("video", "video_base64", "frames")),
    "preview": st.just(1),
    "timeout_s": NOT_FINITE | st.just(0),
}


@given(st.fixed_dictionaries(GOOD))
def test_request_crosses_as_tensors_unchanged_when_it_keeps_the_rules(values: dict[str, Any]) -> None:
    tensors = encode(TextToVideoRequest(**values))
    again = decode(TextToVideoRequest, tensors, "wan_t2v")
    assert again.prompt == values["prompt"]
    repeated = encode(again)
    assert tensors.keys() == repeated.keys()
    assert all(np.array_equal(tensors[name], repeated[name]) for name in tensors)


@pytest.mark.parametrize("name", BAD)
@given(data=st.data())
def test_request_is_refused_when_a_field_breaks_its_rule(name: str, data: st.DataObject) -> None:
    value = data.draw(BAD[name])
    with pytest.raises(InvalidRequest, match=f"^wan_t2v: {name} must be ") as caught:
        TextToVideoRequest(**{"prompt": "a lake", name: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"frames": 16}, "frames must be 4k+1 and at least 1, got 16; try 17"),
        ({"height": 50}, "height must be a multiple of 16 above 0, got 50; try 48"),
        ({"steps": 0}, "steps must be 1 to 100, got 0; try 1"),
        ({"seed": -1}, "seed must be 0 to 4294967295, got -1; try 0"),
        ({"prompt": "x" * 2**20}, "prompt must be at most 16384 characters, got 1048576 characters"),
    ],
)
def test_message_says_rule_value_and_fix_when_a_field_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TextToVideoRequest(**{"prompt": "a lake", **values})
    assert str(caught.value).startswith(f"wan_t2v: {text}")


def test_message_names_every_field_when_several_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        TextToVideoRequest("x", frames=16, height=50, steps=0, guidance_scale=math.nan, seed=-1)
    assert str(caught.value).count(" | ") == 4


def test_prompt_may_be_empty() -> None:
    assert TextToVideoRequest("").prompt == ""


def test_request_is_refused_when_guidance_is_off_but_wanted_at_low_noise() -> None:
    with pytest.raises(InvalidRequest, match="guidance_scale_2 must be at most 1"):
        TextToVideoRequest("x", guidance_scale=1.0, guidance_scale_2=3.0)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"frames": 37}, "frames"),
        ({"height": 16}, "height"),
        ({"width": 272}, "width"),
        ({"width": 2**40}, "width"),
    ],
)
def test_limits_refuse_a_size_when_the_models_were_not_exported_for_it(
    values: dict[str, int], name: str
) -> None:
    request = TextToVideoRequest(**{"prompt": "x", "frames": 5, "height": 64, "width": 64, **values})
    with pytest.raises(InvalidRequest, match=f"^wan_t2v: {name} must be .* the range of the exported models"):
        request.check_against(LIMITS)


def test_limits_refuse_a_second_guidance_when_there_is_one_denoiser() -> None:
    one = Limits(LIMITS.frames, LIMITS.height, LIMITS.width, two_experts=False)
    request = TextToVideoRequest("x", frames=5, height=64, width=64, guidance_scale_2=3.0)
    request.check_against(LIMITS)
    with pytest.raises(InvalidRequest, match="guidance_scale_2 must be left out"):
        request.check_against(one)
