"""The loop over sections in process: small stand-ins for the networks, all else is the real thing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler
from numpy.typing import NDArray

from slipway_client.results import join_frames
from slipway_serving.families.framepack_i2v.facts import FACTS_FILE, Facts, ModelNames, Picture, Prompt, Tiles
from slipway_serving.families.framepack_i2v.pipeline import ImageToVideo, generate
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    SlipwayError,
    Unrecoverable,
)
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import DENOISE_STEP, FRAMES, Recorder
from slipway_serving.runtime.program import Settings, Tensors

FACTS = Facts(
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
PICTURE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
REQUEST = ImageToVideoRequest(
    image=PICTURE, prompt="a boat", seconds=2.4, height=32, width=48, steps=2, output="frames"
)


class SmallModels(InProcessModels):
    """Answers as the served models would, and writes down what it was asked."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.calls: list[tuple[str, Tensors]] = []
        self.broken = ""
        self.writes_down = True
        self.before: Callable[[str], None] = lambda model: None

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        self.before(model)
        if self.writes_down:
            self.calls.append((model, tensors))
        answer: dict[str, NDArray[Any]] = getattr(self, f"_{model}")(tensors)
        assert set(answer) == set(outputs)
        return {
            name: value * np.nan if model == self.broken and value.dtype.kind == "f" else value
            for name, value in answer.items()
        }

    def asked(self, model: str) -> list[Tensors]:
        return [tensors for name, tensors in self.calls if name == model]

    def _tokenizer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        return {"llama_ids": np.arange(6)[None], "clip_ids": np.arange(3)[None]}

    def _llama(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        return {"hidden_states": np.ones((1, tensors["input_ids"].shape[1], 5), np.float32)}

    def _clip(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        return {"pooler_output": np.ones((1, 3), np.float32)}

    def _siglip(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        return {"last_hidden_state": tensors["pixel_values"].reshape(1, 8, -1)}

    def _encoder(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        mode = np.ones((1, 4, 1, *(side // 8 for side in tensors["image"].shape[3:])), np.float32)
        return {"latents": mode, "latents_std": mode / 2}

    def _transformer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        return {"sample": tensors["hidden_states"] * np.float32(0.5)}

    def _decoder(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        frames = tensors["latents"][:, :3].repeat(4, 2)[:, :, 3:]
        return {"sample": frames.repeat(8, 3).repeat(8, 4)}


def run(
    request: ImageToVideoRequest, models: SmallModels, interruption: Interruption | None = None
) -> list[Event]:
    return list(
        generate(request, FACTS, models, interruption or Interruption("framepack_i2v", lambda: False))
    )


@pytest.mark.parametrize("order", ["inverted", "forward"])
def test_each_section_is_reported_and_sent_before_the_next_is_begun(order: str) -> None:
    models, recorder, seen = SmallModels(), Recorder(), []
    interruption = Interruption("framepack_i2v", lambda: False)
    for event in generate(replace(REQUEST, order=order), FACTS, models, interruption, recorder):
        seen.append((type(event), len(models.asked("transformer"))))
        if isinstance(event, Progress):
            assert (event.step, event.steps) == (len(models.asked("transformer")), 4)
    assert seen[:3] == [(Progress, 1), (Progress, 2), (FramesPart, 2)]
    assert seen[-1] == (FramesPart, 4)
    amounts = {change.metric: change.amounts for change in recorder.updates()}
    assert sum(amounts[FRAMES]) == 73 and DENOISE_STEP in amounts


@pytest.mark.parametrize("order", ["inverted", "forward"])
@pytest.mark.parametrize("output", ["frames", "frames_base64"])
def test_parts_make_the_whole_video_in_either_form(order: str, output: str) -> None:
    events = run(replace(REQUEST, order=order, output=output), SmallModels())
    parts = [event for event in events if isinstance(event, FramesPart)]
    assert join_frames(parts, "here").shape == (73, 32, 48, 3)
    assert {part.frames_base64 is None for part in parts} == {output == "frames"}


def test_only_final_frames_are_encoded_when_a_video_is_asked_for() -> None:
    events = run(replace(REQUEST, seconds=3.6, output="video"), SmallModels())
    parts = [event for event in events if isinstance(event, VideoPart)]
    places = [(part.chunk, part.first_frame, part.part_frames, part.frames_total) for part in parts]
    assert places == [(0, 73, 36, 109), (1, 0, 73, 109)]


@pytest.mark.parametrize("order", ["inverted", "forward"])
@pytest.mark.parametrize("output", ["frames", "video"])
def test_memory_is_flat_when_a_video_is_longer(order: str, output: str) -> None:
    def peak(sections: int, kept: list[Event]) -> int:
        models = SmallModels()
        models.writes_down = False
        request = replace(REQUEST, seconds=1.2 * sections, order=order, output=output, height=96, width=96)
        tracemalloc.start()
        for event in generate(request, FACTS, models, Interruption("framepack_i2v", lambda: False)):
            kept += [event] * (kept is all_kept)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    all_kept: list[Event] = []
    peak(1, [])
    # From four on there is a section between two that have a whole window.
    few = peak(4, [])
    assert peak(10, []) < 1.01 * few
    # A caller that keeps what comes would be seen.
    assert output == "video" or peak(10, all_kept) > 1.1 * few


def test_text_is_cropped_and_filled_up_with_masked_rows() -> None:
    models = SmallModels()
    run(replace(REQUEST, seconds=1.0, guidance_scale=3.0), models)
    told = models.asked("transformer")[0]
    assert told["encoder_attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert told["encoder_hidden_states"][0, :, 0].tolist() == [1, 1, 1, 1, 0, 0]
    assert told["guidance"].tolist() == [3000.0]
    assert told["hidden_states"].shape == (1, 4, 9, 4, 6)


@pytest.mark.parametrize("model", ["llama", "clip", "siglip", "encoder", "transformer", "decoder"])
def test_video_is_given_up_when_a_model_gives_what_is_not_finite(model: str) -> None:
    models = SmallModels()
    models.broken = model
    with pytest.raises(Unrecoverable, match="must be finite, got non-finite values"):
        run(REQUEST, models)


@pytest.mark.parametrize("model", ["tokenizer", "siglip", "transformer", "decoder"])
@pytest.mark.parametrize("error", [Cancelled, DeadlineExceeded])
def test_work_stops_before_the_next_model_is_asked(model: str, error: type[SlipwayError]) -> None:
    models, over = SmallModels(), False

    def end(asked: str) -> None:
        nonlocal over
        over = over or asked == model

    models.before = end
    interruption = Interruption("framepack_i2v", lambda: over)
    if error is DeadlineExceeded:
        interruption = Interruption("framepack_i2v", lambda: False, 1.0, lambda: 2.0 if over else 0.0)
    with pytest.raises(error):
        run(REQUEST, models, interruption)
    # The two encoders of a prompt, and those of a picture, are asked one after the other.
    after = {"tokenizer": 3, "siglip": 5, "transformer": 6, "decoder": 8}
    assert len(models.calls) == after[model]


def test_prompt_is_named_when_its_tokenizer_refuses_it() -> None:
    models = SmallModels()

    def refuse(model: str) -> None:
        raise InvalidRequest("framepack_i2v_tokenizer: prompt must be at most 256 tokens, got 300")

    models.before = refuse
    with pytest.raises(InvalidRequest, match="^framepack_i2v: prompt: framepack_i2v_tokenizer: prompt must"):
        run(REQUEST, models)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"section_frames": 5}, "section_frames must be 9 or null, got 5"),
        ({"frames_per_latent": 8}, "frames_per_latent must be 4, got 8"),
        ({"scheduler": {"_class_name": "Nothing"}}, "scheduler: _class_name must be one of diffusers'"),
    ],
)
def test_facts_are_refused_when_the_pipeline_cannot_run_them(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / FACTS_FILE).write_bytes(replace(FACTS, **change).to_json())
    with pytest.raises(InvalidRequest, match=message):
        ImageToVideo(Settings("framepack_i2v", tmp_path, {}))
