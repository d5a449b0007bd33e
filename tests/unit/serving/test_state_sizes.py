"""Planned sizes of states, against the states that the loop makes of small videos."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler
from test_framepack_pipeline import FACTS as FRAMEPACK
from test_framepack_pipeline import REQUEST as PICTURE_REQUEST
from test_framepack_pipeline import SmallModels as FramePackModels
from test_wan_pipeline import FACTS as WAN
from test_wan_pipeline import REQUEST as TEXT_REQUEST
from test_wan_pipeline import SmallModels as WanModels

from slipway_serving.diffusion.videos.loop import Boundary, MakeVideo, denoise_video
from slipway_serving.diffusion.videos.sizes import state_size, unserved_tools
from slipway_serving.families.framepack_i2v.pipeline import FramePackVideo
from slipway_serving.families.framepack_i2v.pipeline import usual_video as usual_framepack
from slipway_serving.families.wan_t2v.pipeline import WanVideo
from slipway_serving.families.wan_t2v.pipeline import usual_video as usual_wan
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import Recorder

EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", **FlowMatchEulerDiscreteScheduler().config}
# Headers, and the state of the random number generator.
BESIDE_BYTES = 16 << 10


def largest_state(make_video: MakeVideo, models: Any) -> int:
    """Return the size of the largest state at the boundaries of a video, in bytes."""
    interruption = Interruption("videos", lambda: False)
    items = denoise_video(make_video, 0, None, models, interruption, Recorder(), "videos")
    kept = [item.kept() for item in items if isinstance(item, Boundary)]
    states = [DenoisingState("videos", Origin("", ""), {}, "", 1, 1, each) for each in kept]
    return max(len(state.to_bytes()) for state in states)


@pytest.mark.parametrize(("scheduler", "kept"), [(WAN.scheduler, 4), (EULER, 1)])
def test_planned_size_is_that_of_the_largest_state_when_a_text_becomes_a_video(
    scheduler: Any, kept: int
) -> None:
    facts = replace(WAN, scheduler=scheduler)
    size = state_size(WanVideo(TEXT_REQUEST, facts, unserved_tools("wan_t2v")))
    assert (size.latents_bytes, size.latents_kept) == (4 * 16 * 3 * 4 * 6, kept)
    made = largest_state(lambda tools: WanVideo(TEXT_REQUEST, facts, tools), WanModels())
    assert size.bytes <= made <= size.bytes + BESIDE_BYTES


def test_planned_size_includes_what_sections_carry_when_a_picture_becomes_a_video() -> None:
    size = state_size(FramePackVideo(PICTURE_REQUEST, FRAMEPACK, unserved_tools("framepack_i2v")))
    assert size.latents_kept == 1
    # 19 latent frames of history, and 33 frames of overlap in pixels.
    assert size.carried_bytes == 4 * (4 * 19 * 4 * 6 + 3 * 33 * 32 * 48)
    made = largest_state(lambda tools: FramePackVideo(PICTURE_REQUEST, FRAMEPACK, tools), FramePackModels())
    assert size.bytes <= made <= size.bytes + BESIDE_BYTES


def test_usual_videos_have_the_size_of_the_traced_axes_and_cannot_work() -> None:
    assert usual_wan(WAN).latents_shape == (1, 16, 5, 8, 8)
    video = usual_framepack(FRAMEPACK)
    assert video.latents_shape == (1, 4, 9, 4, 4)
    with pytest.raises(RuntimeError, match="must not be called for the size of a state"):
        video.encode()
    assert not unserved_tools("wan_t2v").models.is_ready("prompt")


def test_public_latents_have_their_known_size_when_axes_are_those_of_480p() -> None:
    axes = replace(WAN.axes, latent_frames=(1, 21, 21), token_height=(2, 30, 45), token_width=(2, 52, 80))
    size = state_size(usual_wan(replace(WAN, axes=axes)))
    assert size.latents_bytes == 16 * 21 * 60 * 104 * 4 == 8_386_560
    assert size.bytes == 4 * 8_386_560
