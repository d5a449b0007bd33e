"""The loop in process: a small numpy denoiser stands in for the networks, all else is the real thing."""

import base64
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from diffusers.utils.torch_utils import randn_tensor
from numpy.typing import NDArray

from slipway_serving.diffusion.noise import make_noise
from slipway_serving.diffusion.schedules import make_scheduler
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import TextToVideo, generate
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Unrecoverable,
)
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart, tensors
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.json_facts import facts_from_json
from slipway_serving.runtime.metrics import Recorder
from slipway_serving.runtime.program import Settings, Tensors
from slipway_serving.video.decode import decode

UNIPC = dict(
    UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0).config
)
RAW: dict[str, Any] = {
    "scheduler": {"_class_name": "UniPCMultistepScheduler", **UNIPC},
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
FACTS = facts_from_json(PipelineFacts, RAW, "facts")
ONE_EXPERT = facts_from_json(
    PipelineFacts, {**RAW, "boundary_ratio": None, "models": {**RAW["models"], "denoiser_low": None}}, "facts"
)
REQUEST = TextToVideoRequest(
    "a lake", negative_prompt="blur", frames=9, height=32, width=48, steps=6, seed=7, output="frames"
)


def network(model: str, hidden: NDArray[Any], timestep: NDArray[Any], text: NDArray[Any]) -> NDArray[Any]:
    """Predict something that depends on every input and on which denoiser it is."""
    weight = {"high": 0.7, "low": 0.4}[model]
    pull = text.mean(axis=(1, 2)) + timestep[:, 0] / 1000
    predicted: NDArray[Any] = weight * np.tanh(hidden) + pull[:, None, None, None, None].astype(np.float32)
    return predicted


class SmallModels:
    """Answers as the served models would, from a few lines of numpy, and writes down what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Tensors]] = []
        self.decoding: dict[int | str, NDArray[Any]] = {}
        self.freed: list[int | str] = []
        self.before: Callable[[str], None] = lambda model: None

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        self.before(model)
        self.calls.append((model, tensors))
        if model == "prompt":
            return self._embed(tensors["prompt"][0, 0])
        sample = network(
            model, tensors["hidden_states"], tensors["timestep"], tensors["encoder_hidden_states"]
        )
        return {"sample": sample}

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        if "latents" in tensors:
            self.before(model)
            self.calls.append((model, tensors))
            yield {"frames": self._draw(tensors["latents"], turn.id, turn.start)}
        if turn.end:
            self.decoding.pop(turn.id, None)
            self.freed.append(turn.id)

    def _embed(self, prompt: bytes) -> dict[str, NDArray[Any]]:
        rows = np.linspace(-1, 1, 4 * (len(prompt) + 1), dtype=np.float32).reshape(1, -1, 4)
        mask = np.ones(rows.shape[:2], np.int64)
        rows = np.pad(rows, ((0, 0), (0, 2), (0, 0)), constant_values=9)  # what the encoder gives for padding
        return {"prompt_embeds": rows, "attention_mask": np.pad(mask, ((0, 0), (0, 2)))}

    def _draw(self, latents: NDArray[Any], session: int | str, start: bool) -> NDArray[Any]:
        assert start == (session not in self.decoding)
        total = latents + self.decoding.get(session, 0)
        self.decoding[session] = total
        picture = np.clip(total[0, :3, 0].transpose(1, 2, 0) * 60 + 128, 0, 255).astype(np.uint8)
        return np.repeat(picture.repeat(8, 0).repeat(8, 1)[None], 1 if start else 4, axis=0)

    def asked(self, model: str) -> list[Tensors]:
        return [tensors for name, tensors in self.calls if name == model]


def run(
    request: TextToVideoRequest,
    models: SmallModels,
    facts: PipelineFacts = FACTS,
    interruption: Interruption | None = None,
) -> list[Event]:
    interruption = interruption or Interruption("wan_t2v", lambda: False)
    return list(generate(request, facts, models, interruption))


def frames_of(events: list[Event]) -> NDArray[np.uint8]:
    return np.concatenate([event.pixels for event in events if isinstance(event, FramesPart)])


def straightforward(request: TextToVideoRequest, facts: PipelineFacts) -> NDArray[Any]:
    """Return the final latents of the loop as diffusers' WanPipeline writes it: one call per branch."""
    models = SmallModels()

    def embed(text: str) -> NDArray[Any]:
        rows = models._embed(text.encode())["prompt_embeds"][:, : len(text) + 1]
        return np.pad(rows, ((0, 0), (0, facts.text_tokens - rows.shape[1]), (0, 0)))

    scheduler = UniPCMultistepScheduler.from_config(UNIPC, flow_shift=request.flow_shift or 3.0)
    scheduler.set_timesteps(request.steps)
    shape = (1, 16, (request.frames - 1) // 4 + 1, request.height // 8, request.width // 8)
    latents = randn_tensor(shape, generator=torch.Generator().manual_seed(request.seed), dtype=torch.float32)
    for t in scheduler.timesteps:
        high = facts.boundary_ratio is None or t >= facts.boundary_ratio * 1000
        scale = request.guidance_scale if high else request.guidance_scale_2 or request.guidance_scale
        ask = partial(
            network, "high" if high else "low", latents.numpy(), np.full((1, 1), float(t), np.float32)
        )
        noise = torch.from_numpy(ask(embed(request.prompt)))
        if request.guidance_scale > 1:
            without = torch.from_numpy(ask(embed(request.negative_prompt)))
            noise = without + scale * (noise - without)
        latents = scheduler.step(noise, t, latents, return_dict=False)[0]
    return latents.numpy()


@pytest.mark.parametrize(
    ("facts", "change"),
    [
        (FACTS, {}),
        (FACTS, {"guidance_scale": 1.0}),
        (FACTS, {"flow_shift": 5.0}),
        (FACTS, {"frames": 1, "steps": 1}),
        (FACTS, {"steps": 2, "seed": 2**32 - 1}),
        (FACTS, {"guidance_scale_2": 2.5}),
        (ONE_EXPERT, {}),
        (ONE_EXPERT, {"guidance_scale": 0.0, "steps": 9}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else f"low: {value.models.denoiser_low}",
)
def test_latents_equal_the_straightforward_loop(facts: PipelineFacts, change: dict[str, Any]) -> None:
    request, models = replace(REQUEST, **change), SmallModels()
    run(request, models, facts)
    decoded = np.concatenate([tensors["latents"] for tensors in models.asked("decoder")], axis=2)
    np.testing.assert_allclose(decoded, straightforward(request, facts), rtol=1e-5, atol=1e-5)


def test_noise_is_that_of_diffusers() -> None:
    shape = (1, 16, 3, 4, 6)
    wanted = randn_tensor(shape, generator=torch.Generator().manual_seed(11), dtype=torch.float32)
    assert torch.equal(make_noise(11, shape), wanted)


def test_guidance_is_one_call_of_two_when_it_is_on_and_of_one_when_it_is_off() -> None:
    on, off = SmallModels(), SmallModels()
    run(REQUEST, on)
    run(replace(REQUEST, guidance_scale=1.0), off)
    denoised = [tensors for name, tensors in on.calls if name in ("high", "low")]
    assert [len(tensors["hidden_states"]) for tensors in denoised] == [2] * REQUEST.steps
    assert len(on.asked("prompt")) == 2
    denoised = [tensors for name, tensors in off.calls if name in ("high", "low")]
    assert [len(tensors["hidden_states"]) for tensors in denoised] == [1] * REQUEST.steps
    assert len(off.asked("prompt")) == 1


def test_embeddings_are_zero_beyond_the_prompts_own_tokens() -> None:
    models = SmallModels()
    run(REQUEST, models)
    text = models.asked("high")[0]["encoder_hidden_states"]
    assert text.shape == (2, 12, 4)
    assert (text[0, 7:] == 0).all()
    assert (text[0, :7] == models._embed(b"a lake")["prompt_embeds"][0, :7]).all()


def test_experts_switch_once_from_high_to_low_at_the_boundary() -> None:
    models = SmallModels()
    run(replace(REQUEST, steps=20), models)
    steps = [
        (name, float(tensors["timestep"][0, 0])) for name, tensors in models.calls if name in ("high", "low")
    ]
    assert {name for name, when in steps if when >= 875} == {"high"}
    assert {name for name, when in steps if when < 875} == {"low"}


@pytest.mark.parametrize("steps", [1, 2, 6, 100])
def test_each_step_gives_exactly_one_progress(steps: int) -> None:
    events = run(replace(REQUEST, steps=steps), SmallModels())
    progress = [event for event in events if isinstance(event, Progress)]
    assert [(event.step, event.steps) for event in progress] == [(k, steps) for k in range(1, steps + 1)]
    assert events[: len(progress)] == progress
    assert all(event.preview is None for event in progress)
    assert set(tensors(progress[0])) == {"step", "steps", "elapsed_s"}


def test_preview_is_a_small_picture_when_it_is_asked_for() -> None:
    events = run(replace(REQUEST, preview=True), SmallModels())
    pictures = [event.preview for event in events if isinstance(event, Progress)]
    assert all(picture is not None and picture.shape == (4, 6, 3) for picture in pictures)
    assert tensors(events[0])["preview"].dtype == np.uint8


def test_same_seed_gives_the_same_frames_and_another_seed_others() -> None:
    first, again = run(REQUEST, SmallModels()), run(REQUEST, SmallModels())
    other = run(replace(REQUEST, seed=8), SmallModels())
    assert np.array_equal(frames_of(first), frames_of(again))
    assert not np.array_equal(frames_of(first), frames_of(other))


@pytest.mark.parametrize("output", ["video", "video_base64"])
def test_video_has_the_frames_size_and_fps_that_were_asked(output: str) -> None:
    chunks = [
        e for e in run(replace(REQUEST, output=output, fps=12), SmallModels()) if isinstance(e, VideoPart)
    ]
    assert [(chunk.chunk, chunk.chunks) for chunk in chunks] == [(0, 1)]
    video = base64.b64decode(chunks[0].video) if output == "video_base64" else chunks[0].video
    with av.open(io.BytesIO(video)) as container:
        stream = container.streams.video[0]
        assert (stream.frames, stream.width, stream.height) == (9, 48, 32)
        assert stream.average_rate == 12


@pytest.mark.parametrize("step", [0, 1, 3, 5])
def test_loop_stops_within_a_step_when_the_caller_cancels(step: int) -> None:
    done, models = [0], SmallModels()
    events = generate(REQUEST, FACTS, models, Interruption("wan_t2v", lambda: done[0] >= step))
    with pytest.raises(Cancelled, match=f"before step {step + 1} of 6" if step else "before encoding prompt"):
        for event in events:
            assert isinstance(event, Progress)
            done[0] = event.step
    assert len(models.asked("high") + models.asked("low")) == step
    assert models.asked("decoder") == []


def test_decoder_is_freed_when_the_caller_cancels_between_latents() -> None:
    models = SmallModels()
    interruption = Interruption("wan_t2v", lambda: len(models.asked("decoder")) == 2)
    with pytest.raises(Cancelled, match="before decoding latent 3 of 3"):
        run(REQUEST, models, interruption=interruption)
    assert models.decoding == {}
    assert len(models.freed) == 1


def test_decoder_is_freed_when_the_result_is_abandoned() -> None:
    models, nobody = SmallModels(), Interruption("wan_t2v", lambda: False)
    with contextlib.closing(
        decode(np.zeros((1, 16, 3, 4, 6), np.float32), "decoder", models, nobody, Recorder())
    ) as frames:
        next(frames)
    assert models.decoding == {}


def test_decoder_is_told_once_that_a_whole_video_is_over() -> None:
    models = SmallModels()
    run(REQUEST, models)
    assert models.decoding == {}
    assert len(models.freed) == 1


def test_error_of_a_model_reaches_the_caller_and_frees_the_decoder() -> None:
    models = SmallModels()

    def fail(model: str) -> None:
        if model == "decoder":
            raise Overloaded("decoder: too many")

    models.before = fail
    with pytest.raises(Overloaded, match="too many"):
        run(REQUEST, models)
    assert models.decoding == {}


def test_refused_negative_prompt_is_named() -> None:
    models = SmallModels()

    def refuse(model: str) -> None:
        if len(models.asked("prompt")) == 1:
            raise InvalidRequest("prompt: prompt must be at most 512 tokens, got 600")

    models.before = refuse
    with pytest.raises(InvalidRequest, match="^wan_t2v: negative_prompt: prompt: prompt must be at most 512"):
        run(REQUEST, models)
    assert models.asked("high") == []


@pytest.mark.parametrize(("limit_s", "step"), [(2.5, 3), (0.5, 1)])
def test_loop_ends_with_limit_and_step_when_the_time_is_over(limit_s: float, step: int) -> None:
    models = SmallModels()
    now_s = [0.0]

    def tick(model: str) -> None:
        now_s[0] += model in ("high", "low")

    models.before = tick
    interruption = Interruption("wan_t2v", lambda: False, limit_s, lambda: now_s[0])
    with pytest.raises(
        DeadlineExceeded, match=f"limit of {limit_s} s, got {step} s before step {step + 1} of 6"
    ):
        run(REQUEST, models, interruption=interruption)


def test_loop_ends_when_latents_are_not_finite() -> None:
    class Broken(SmallModels):
        def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
            answer = super().call(model, tensors, outputs)
            if len(self.asked("high") + self.asked("low")) == 3:
                answer["sample"][0, 0, 0, 0, 0] = np.nan
            return answer

    models = Broken()
    with pytest.raises(Unrecoverable, match="non-finite values after step 3 of 6"):
        run(REQUEST, models)
    assert models.asked("decoder") == []


@pytest.mark.parametrize(
    ("request_", "facts"),
    [
        (replace(REQUEST, frames=37), FACTS),
        (replace(REQUEST, height=144), FACTS),
        (replace(REQUEST, guidance_scale_2=3.0), ONE_EXPERT),
    ],
)
def test_nothing_is_started_when_the_models_cannot_do_it(
    request_: TextToVideoRequest, facts: PipelineFacts
) -> None:
    models = SmallModels()
    with pytest.raises(InvalidRequest):
        run(request_, models, facts)
    assert models.calls == []


def test_scheduler_takes_the_shift_under_its_own_name() -> None:
    euler = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        **FlowMatchEulerDiscreteScheduler(shift=3.0).config,
    }
    assert make_scheduler(euler, None, "x").config.shift == 3.0
    assert make_scheduler(euler, 5.0, "x").config.shift == 5.0
    assert make_scheduler(RAW["scheduler"], 5.0, "x").config.flow_shift == 5.0
    assert make_scheduler(RAW["scheduler"], None, "x").config.flow_shift == 3.0


def test_scheduler_is_refused_when_it_is_unknown_or_has_no_shift() -> None:
    for name in ("NoSuchScheduler", "os", "None"):
        with pytest.raises(InvalidRequest, match="scheduler: _class_name must be one of diffusers'"):
            make_scheduler({"_class_name": name}, None, "x")
    with pytest.raises(InvalidRequest, match="^x: flow_shift must be left out"):
        make_scheduler({**RAW["scheduler"], "use_flow_sigmas": False}, 5.0, "x")


def test_pipeline_does_not_load_when_no_request_could_use_its_scheduler(tmp_path: Path) -> None:
    euler = {"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": True}
    (tmp_path / "pipeline.json").write_text(json.dumps({**RAW, "scheduler": euler}))
    with pytest.raises(InvalidRequest, match="^pipeline.json: scheduler: use_dynamic_shifting must be False"):
        TextToVideo(Settings("wan_t2v", tmp_path, {}))


@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"axes": {"latent_frames": [1, 5, 9]}},
        {"models": {**RAW["models"], "upscaler": "x"}},
        {"latent_rgb": None},
        {"boundary_ratio": None},
    ],
)
def test_facts_are_refused_when_keys_are_unknown_missing_or_at_odds(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="must be"):
        facts_from_json(PipelineFacts, {**RAW, **change}, "pipeline.json")
