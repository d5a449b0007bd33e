"""The loop over sections with a first-block cache, on networks of a few lines of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler
from numpy.typing import NDArray

from slipway_serving.families.framepack_i2v.facts import Facts, ModelNames, Picture, Prompt, Tiles
from slipway_serving.families.framepack_i2v.pipeline import generate
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Overloaded
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.program import Tensors

PLAIN = Facts(
    prompt=Prompt("say {}", 2, 256, 77),
    picture=Picture(8, (0.5,) * 3, (0.5,) * 3, 3),
    latent_channels=4,
    frames_per_latent=4,
    pixels_per_latent=8,
    section_frames=9,
    clean_frames=2,
    history_2x_frames=2,
    history_4x_frames=16,
    tiles=Tiles(5, 3, 4),
    scheduler={"_class_name": "FlowMatchEulerDiscreteScheduler", **FlowMatchEulerDiscreteScheduler().config},
    axes=dict.fromkeys(("token_height", "token_width"), (1, 2, 6)) | {"text_tokens": (6, 12, 256)},
    models=ModelNames("transformer", "llama", "clip", "siglip", "encoder", "decoder", "tokenizer"),
)
CACHED = replace(PLAIN, first_block_cache=True)
PICTURE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
REQUEST = ImageToVideoRequest(
    image=PICTURE, prompt="a boat", seconds=2.4, height=32, width=48, steps=4, output="frames"
)
ON = replace(REQUEST, cache_threshold=0.1)
ONES = np.ones((1, 6, 5), np.float32)
LATENTS = np.ones((1, 4, 1, 4, 6), np.float32)


class SmallModels(InProcessModels):
    """Served models in a few lines: every other step of a session is a hit."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.asked: list[dict[str, tuple[int, ...]]] = []
        self.under_way: dict[int | str, int] = {}
        self.held_at_decoding: list[int] = []
        self.fail_at: int | None = None

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        if model == "transformer":
            return {"sample": self._denoise(tensors)}
        if model == "decoder":
            self.held_at_decoding.append(len(self.under_way))
            return {"sample": tensors["latents"][:, :3].repeat(4, 2)[:, :, 3:].repeat(8, 3).repeat(8, 4)}
        fixed = {
            "tokenizer": {"llama_ids": np.arange(6)[None], "clip_ids": np.arange(3)[None]},
            "llama": {"hidden_states": ONES},
            "clip": {"pooler_output": ONES[:, 0]},
            "siglip": {"last_hidden_state": ONES},
            "encoder": {"latents": LATENTS, "latents_std": LATENTS / 2},
        }
        return fixed[model]

    def stream(
        self, model: str, tensors: Tensors, outputs: list[str], *, turn: Turn = NO_SESSION
    ) -> Iterator[dict[str, NDArray[Any]]]:
        assert model == "transformer" and turn.id
        if turn.end:
            del self.under_way[turn.id]
            return
        assert turn.start == (turn.id not in self.under_way)
        assert tensors["cache_threshold"].tolist() == [np.float32(0.1)]
        done = self.under_way[turn.id] = self.under_way.get(turn.id, 0) + 1
        yield {"sample": self._denoise(tensors), "cached": np.array([done % 2 == 0])}

    def _denoise(self, tensors: Tensors) -> NDArray[Any]:
        if len(self.asked) == self.fail_at:
            raise Overloaded("transformer: too many")
        self.asked.append({name: array.shape for name, array in tensors.items() if name != "cache_threshold"})
        sample: NDArray[Any] = tensors["hidden_states"] * np.float32(0.5)
        return sample


def run(
    request: ImageToVideoRequest,
    models: SmallModels,
    facts: Facts = CACHED,
    interruption: Interruption | None = None,
) -> list[Event]:
    return list(
        generate(request, facts, models, interruption or Interruption("framepack_i2v", lambda: False))
    )


def test_transformer_is_told_the_same_when_the_cache_is_on() -> None:
    plain, cached = SmallModels(), SmallModels()
    without, with_cache = run(REQUEST, plain, PLAIN), run(ON, cached)
    assert len(plain.asked) == 8 and plain.asked == cached.asked
    assert plain.asked[0]["indices_latents_history_4x"] == (16,)
    for a, b in zip(without, with_cache, strict=True):
        if isinstance(a, FramesPart) and isinstance(b, FramesPart):
            np.testing.assert_array_equal(a.pixels, b.pixels)


def test_each_section_is_one_session_that_is_over_before_it_is_decoded() -> None:
    models, held = SmallModels(), []
    for event in generate(ON, CACHED, models, Interruption("x", lambda: False)):
        if isinstance(event, Progress):
            held.append(list(models.under_way.values()))
    assert held == [[1], [2], [3], [4]] * 2
    assert models.held_at_decoding and set(models.held_at_decoding) == {0}


@pytest.mark.parametrize("output", ["frames", "video"])
def test_parts_carry_the_hit_rate_until_then_exactly_when_the_cache_is_on(output: str) -> None:
    for request, facts, wanted in ((ON, CACHED, 0.5), (REQUEST, CACHED, None), (REQUEST, PLAIN, None)):
        events = run(replace(request, output=output), SmallModels(), facts)
        parts = [event for event in events if isinstance(event, FramesPart | VideoPart)]
        assert {part.cache_hit_rate for part in parts} == {wanted}


def test_cache_is_freed_when_the_caller_cancels_in_the_second_section() -> None:
    models = SmallModels()
    with pytest.raises(Cancelled, match="before step 3 of 4"):
        run(ON, models, interruption=Interruption("framepack_i2v", lambda: len(models.asked) == 6))
    assert models.under_way == {}


def test_cache_is_freed_when_the_video_is_abandoned_or_the_transformer_fails() -> None:
    models = SmallModels()
    events = generate(ON, CACHED, models, Interruption("framepack_i2v", lambda: False))
    while not isinstance(next(events), Progress):
        pass
    assert len(models.under_way) == 1
    events.close()
    assert models.under_way == {}
    models.fail_at = len(models.asked) + 2
    with pytest.raises(Overloaded, match="too many"):
        run(ON, models)
    assert models.under_way == {}


def test_threshold_is_refused_when_the_transformer_was_exported_without_a_cache() -> None:
    models = SmallModels()
    with pytest.raises(InvalidRequest, match="^framepack_i2v: cache_threshold must be left out .* --variant"):
        run(ON, models, PLAIN)
    assert not models.asked
