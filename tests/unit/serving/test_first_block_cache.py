"""The loop with a guidance interval and with a first-block cache, on denoisers of a few lines of numpy."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from diffusers import UniPCMultistepScheduler
from numpy.typing import NDArray

from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import generate
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Overloaded
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.json_facts import facts_from_json
from slipway_serving.runtime.program import Tensors

UNIPC = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
RAW: dict[str, Any] = {
    "scheduler": {"_class_name": "UniPCMultistepScheduler", **UNIPC.config},
    "boundary_ratio": 0.875,
    "latent_channels": 16,
    "vae_scale_factor_spatial": 8,
    "vae_scale_factor_temporal": 4,
    "patch_size": [1, 2, 2],
    "text_tokens": 12,
    "axes": {"latent_frames": [1, 5, 9], "token_height": [2, 4, 8], "token_width": [2, 4, 8]},
    "latent_rgb": {"weight": [[0.1, 0.0, -0.1]] * 16, "bias": [0.0, 0.5, 0.0]},
    "models": {"prompt": "prompt", "denoiser_high": "high", "denoiser_low": "low", "vae_decoder": "decoder"},
}
PLAIN = facts_from_json(PipelineFacts, RAW, "facts")
CACHED = facts_from_json(PipelineFacts, {**RAW, "first_block_cache": True}, "facts")
REQUEST = TextToVideoRequest(
    "a lake", negative_prompt="blur", frames=5, height=32, width=48, steps=10, seed=7, output="frames"
)
ON = replace(REQUEST, cache_threshold=0.1)
DENOISERS = ("high", "low")


class SmallModels:
    """Served models in a few lines: every third step of a session is computed, the others are hits."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.prompts: list[bytes] = []
        self.under_way: dict[tuple[str, int | str], int] = {}
        self.most = 0
        self.fail_at: int | None = None

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        if model == "prompt":
            self.prompts.append(tensors["prompt"][0, 0])
            text = np.full((1, 3, 4), len(tensors["prompt"][0, 0]) / 10, np.float32)
            return {"prompt_embeds": text, "attention_mask": np.ones((1, 3), np.int64)}
        return {"sample": self._denoise(model, tensors)}

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        if model == "decoder":
            yield {"frames": np.zeros((1 if turn.start else 4, 32, 48, 3), np.uint8)}
            return
        key = (model, turn.id)
        if turn.end:
            del self.under_way[key]
            return
        assert turn.id and turn.start == (key not in self.under_way)
        assert tensors["cache_threshold"].tolist() == [np.float32(0.1)]
        assert len(tensors["hidden_states"]) == len(tensors["timestep"]) == 1
        sample = self._denoise(model, tensors)  # a model that has enough begins nothing
        done = self.under_way[key] = self.under_way.get(key, 0) + 1
        self.most = max(self.most, len(self.under_way))
        yield {"sample": sample, "cached": np.array([done % 3 != 1])}

    def _denoise(self, model: str, tensors: Tensors) -> NDArray[Any]:
        if len(self.asked) == self.fail_at:
            raise Overloaded(f"{model}: too many")
        self.asked.append((model, len(tensors["hidden_states"])))
        pull = tensors["encoder_hidden_states"].mean(axis=(1, 2)) + tensors["timestep"][:, 0] / 1000
        answer: NDArray[Any] = 0.5 * np.tanh(tensors["hidden_states"]) + pull[:, None, None, None, None]
        return answer.astype(np.float32)


def run(
    request: TextToVideoRequest,
    models: SmallModels,
    facts: PipelineFacts = PLAIN,
    interruption: Interruption | None = None,
) -> list[Event]:
    return list(generate(request, facts, models, interruption or Interruption("wan_t2v", lambda: False)))


@pytest.mark.parametrize(
    ("start", "stop", "batches"),
    [
        (0.0, 1.0, [2] * 10),
        (0.0, 0.5, [2] * 5 + [1] * 5),
        (0.25, 0.75, [1] * 2 + [2] * 5 + [1] * 3),
        (0.9, 1.0, [1] * 9 + [2]),
    ],
)
def test_negative_prompt_is_computed_in_the_guidance_interval_only(
    start: float, stop: float, batches: list[int]
) -> None:
    models = SmallModels()
    run(replace(REQUEST, guidance_start=start, guidance_stop=stop), models)
    assert [batch for _, batch in models.asked] == batches
    assert models.prompts == [b"a lake", b"blur"]


def test_negative_prompt_is_never_encoded_when_no_step_lies_in_the_interval() -> None:
    models = SmallModels()
    run(replace(REQUEST, guidance_start=0.51, guidance_stop=0.59), models)
    assert [batch for _, batch in models.asked] == [1] * 10
    assert models.prompts == [b"a lake"]


def test_each_branch_of_each_denoiser_is_one_session_when_the_cache_is_on() -> None:
    models = SmallModels()
    run(ON, models, CACHED)
    assert [batch for _, batch in models.asked] == [1] * 20
    assert {model for model, _ in models.asked} == set(DENOISERS)
    assert models.under_way == {}
    assert models.most == 2  # the high-noise denoiser's are freed before the other begins


def test_latents_are_those_of_a_batch_when_nothing_is_reused() -> None:
    def last_preview(request: TextToVideoRequest, facts: PipelineFacts) -> NDArray[np.uint8]:
        pictures = [
            event.preview
            for event in run(replace(request, preview=True), SmallModels(), facts)
            if isinstance(event, Progress)
        ]
        assert pictures[-1] is not None
        return pictures[-1]

    np.testing.assert_array_equal(last_preview(ON, CACHED), last_preview(REQUEST, PLAIN))


@pytest.mark.parametrize("output", ["frames", "video", "video_base64"])
def test_result_carries_the_hit_rate_when_the_cache_is_on(output: str) -> None:
    models = SmallModels()
    chunks = [
        event
        for event in run(replace(ON, output=output), models, CACHED)
        if isinstance(event, FramesPart | VideoPart)
    ]
    # Of n evaluations of a session (n + 2) // 3 are computed; two sessions per denoiser.
    computed = sum(2 * ((sum(m == name for m, _ in models.asked) // 2 + 2) // 3) for name in DENOISERS)
    assert {chunk.cache_hit_rate for chunk in chunks} == {1 - computed / 20}


def test_result_carries_no_hit_rate_when_the_cache_is_off() -> None:
    for facts in (PLAIN, CACHED):
        *_, last = run(REQUEST, SmallModels(), facts)
        assert isinstance(last, FramesPart) and last.cache_hit_rate is None


def test_cache_of_the_negative_prompt_is_freed_when_guidance_ends() -> None:
    models = SmallModels()
    held = []
    for event in generate(replace(ON, guidance_stop=0.8), CACHED, models, Interruption("x", lambda: False)):
        if isinstance(event, Progress):
            held.append(len(models.under_way))
    assert held == [2] * 8 + [1] * 2


@pytest.mark.parametrize("step", [1, 3, 9])
def test_caches_are_freed_when_the_caller_cancels(step: int) -> None:
    models = SmallModels()
    interruption = Interruption("wan_t2v", lambda: len(models.asked) == 2 * step)
    with pytest.raises(Cancelled, match=f"before step {step + 1} of 10"):
        run(ON, models, CACHED, interruption)
    assert models.asked and models.under_way == {}


def test_caches_are_freed_when_the_result_is_abandoned() -> None:
    models = SmallModels()
    events = generate(ON, CACHED, models, Interruption("wan_t2v", lambda: False))
    next(events)
    assert len(models.under_way) == 2
    events.close()
    assert models.under_way == {}


@pytest.mark.parametrize("call", [1, 4, 7])
def test_caches_are_freed_when_a_denoiser_fails(call: int) -> None:
    models = SmallModels()
    models.fail_at = call
    with pytest.raises(Overloaded, match="too many"):
        run(ON, models, CACHED)
    assert models.under_way == {}


def test_nothing_is_started_when_the_denoisers_have_no_cache() -> None:
    models = SmallModels()
    with pytest.raises(InvalidRequest, match="cache_threshold must be left out"):
        run(ON, models, PLAIN)
    assert models.prompts == []
