"""Videos that begin with a picture against diffusers' own pipelines, on the same weights and noise.

The pipeline of Slipway calls the networks of the family's plan in PyTorch, so no graph is exported here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline, WanPipeline
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoTokenizer

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.wan_t2v.family import FAMILY
from slipway_export.networks.wan_vae_encoder import FrameEncoder
from slipway_export.spec import Component, Loading, Plan, Precision
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import generate
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import FramesPart
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.json_facts import facts_from_json
from slipway_serving.runtime.program import Tensors
from slipway_serving.video.frames import to_uint8

TI2V, I2V = "tiny-ti2v", "tiny-i2v"
PROMPT, NEGATIVE = "A paper boat sails down a rainy street.", "blurry"


@dataclass
class TorchModels:
    """Networks of a plan in PyTorch, in place of the served models."""

    plan: Plan
    checkpoint: Path
    _networks: dict[str, Any] = field(default_factory=dict)
    _caches: list[torch.Tensor] = field(default_factory=list)

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        name = model.removeprefix("wan_t2v_")
        if name == "prompt":
            return {"prompt_embeds": self._prompt(tensors), **self._mask(tensors)}
        (component,) = (each for each in self.plan.components if each.name == name)
        inputs = [torch.from_numpy(np.asarray(tensors[each.name])) for each in component.inputs]
        if name.startswith("denoiser") and component.inputs[1].sizes == component.inputs[1].sizes[:1]:
            inputs[1] = inputs[1][:, 0]  # Triton's configuration reshapes it in the same way.
        return {component.outputs[0].name: self._run(component, inputs)[0].numpy()}

    def stream(
        self, model: str, tensors: Tensors, outputs: list[str], *, turn: Turn = NO_SESSION
    ) -> Iterator[dict[str, NDArray[Any]]]:
        first, following = (each for each in self.plan.components if each.name == "vae_decoder")
        component = first if turn.start else following
        latents = torch.from_numpy(np.asarray(tensors["latents"]))
        sample, *self._caches = self._run(component, [latents, *([] if turn.start else self._caches)])
        yield {"frames": to_uint8(sample.numpy())}

    def is_ready(self, model: str) -> bool:
        return True

    def _run(self, component: Component, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if component.label not in self._networks:
            self._networks[component.label] = component.load(Precision.FP32, Loading.READ)
        with torch.no_grad():
            found = self._networks[component.label](*inputs)
        return found if isinstance(found, tuple) else (found,)

    def _tokens(self, tensors: Tensors) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(str(self.checkpoint / "tokenizer"), local_files_only=True)
        texts = [text.decode() for text in np.asarray(tensors["prompt"]).ravel()]
        return tokenizer(texts, padding=True, return_tensors="pt")

    def _mask(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        return {"attention_mask": self._tokens(tensors)["attention_mask"].numpy()}

    def _prompt(self, tensors: Tensors) -> NDArray[np.float32]:
        tokens = self._tokens(tensors)
        (encoder,) = (each for each in self.plan.components if each.name == "text_encoder")
        embeds: NDArray[np.float32] = self._run(encoder, [tokens["input_ids"], tokens["attention_mask"]])[
            0
        ].numpy()
        return embeds


@dataclass(frozen=True)
class Tried:
    """A checkpoint, its facts and its networks."""

    folder: Path
    facts: PipelineFacts
    models: TorchModels

    def frames(self, request: TextToVideoRequest) -> NDArray[np.uint8]:
        events = generate(request, self.facts, self.models, Interruption("test", lambda: False))
        return np.concatenate([event.frames for event in events if isinstance(event, FramesPart)])

    def expected(self, request: TextToVideoRequest) -> NDArray[np.uint8]:
        """Return the frames of diffusers' pipeline."""
        kind, more = WanPipeline, {}
        if request.image is not None:
            kind, more = WanImageToVideoPipeline, {"image": Image.fromarray(request.image)}
        pipeline = kind.from_pretrained(self.folder)
        pipeline.set_progress_bar_config(disable=True)
        video = pipeline(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            num_frames=request.frames,
            height=request.height,
            width=request.width,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance_scale,
            guidance_scale_2=request.guidance_scale_2,
            generator=torch.Generator().manual_seed(request.seed),
            **more,
        ).frames[0]
        return (video * 255).round().astype(np.uint8)


def tried(preset: str, folder: Path) -> Tried:
    FAMILY.presets[preset].write(folder, 0)
    with open_checkpoint(FAMILY, str(folder)) as checkpoint:
        plan = FAMILY.plan(checkpoint, FAMILY.presets[preset].axes)
        (content,) = (model.files["1/pipeline.json"] for model in plan.authored if model.name == "wan_t2v")
        assert callable(content)
        facts = facts_from_json(PipelineFacts, json.loads(content()), "pipeline.json")
    return Tried(folder, facts, TorchModels(plan, folder))


@pytest.fixture(scope="module")
def ti2v(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return tried(TI2V, tmp_path_factory.mktemp("ti2v"))


@pytest.fixture(scope="module")
def i2v(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return tried(I2V, tmp_path_factory.mktemp("i2v"))


def picture(height: int, width: int) -> NDArray[np.uint8]:
    colours = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC))


def asked(pixels_per_token: int, **fields: Any) -> TextToVideoRequest:
    height, width = 3 * pixels_per_token, 2 * pixels_per_token
    return TextToVideoRequest(
        prompt=PROMPT,
        negative_prompt=NEGATIVE,
        frames=9,
        height=height,
        width=width,
        steps=4,
        guidance_scale=4.0,
        seed=7,
        output="frames",
        **fields,
    )


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Return the peak signal-to-noise ratio in dB, 99 for equal frames."""
    error = float(np.mean(np.square(a.astype(np.float64) - b)))
    return 99.0 if error == 0 else 10 * np.log10(255**2 / error)


def check(of: Tried, request: TextToVideoRequest, others: Mapping[str, TextToVideoRequest]) -> None:
    """Check that frames equal diffusers', and that those of other requests are far from them."""
    expected = of.expected(request)
    found = of.frames(request)
    assert found.shape == expected.shape
    assert expected.std() > 20
    print(f"PSNR {psnr(found, expected):.1f} dB")
    assert psnr(found, expected) >= 60
    for name, other in others.items():
        assert psnr(of.frames(other), expected) < 45, name


def test_video_from_text_equals_diffusers_when_the_checkpoint_is_ti2v(ti2v: Tried) -> None:
    request = asked(32)
    check(ti2v, request, {"seed": replace(request, seed=8), "image": replace(request, image=picture(96, 64))})


def test_video_from_a_picture_equals_diffusers_when_the_checkpoint_is_ti2v(ti2v: Tried) -> None:
    request = asked(32, image=picture(96, 64))
    check(ti2v, request, {"image": replace(request, image=255 - picture(96, 64))})


def test_video_from_a_picture_equals_diffusers_when_the_checkpoint_is_i2v(i2v: Tried) -> None:
    request = asked(16, image=picture(48, 32), guidance_scale_2=3.0)
    check(
        i2v,
        request,
        {"image": replace(request, image=255 - picture(48, 32)), "seed": replace(request, seed=8)},
    )


def test_frame_encoder_equals_diffusers(ti2v: Tried) -> None:
    vae = AutoencoderKLWan.from_pretrained(ti2v.folder / "vae")
    image = torch.rand(1, 3, 96, 64) * 2 - 1
    mean, std = (
        torch.tensor(each).view(1, -1, 1, 1, 1) for each in (vae.config.latents_mean, vae.config.latents_std)
    )
    with torch.no_grad():
        expected = (vae.encode(image[:, :, None]).latent_dist.mode() - mean) / std
        torch.testing.assert_close(FrameEncoder(vae)(image), expected, atol=1e-5, rtol=0)


def test_request_is_refused_when_its_image_does_not_fit_the_checkpoint(ti2v: Tried, i2v: Tried) -> None:
    with pytest.raises(InvalidRequest, match="image must be given for an image-to-video checkpoint"):
        asked(16).check_against(i2v.facts.limits)
    text_only = replace(i2v.facts.limits, takes_image=False, needs_image=False)
    with pytest.raises(InvalidRequest, match="image must be left out for a checkpoint that makes videos fr"):
        asked(16, image=picture(48, 32)).check_against(text_only)
    with pytest.raises(InvalidRequest, match="height must be a multiple of 32 for this checkpoint, got 80"):
        replace(asked(32), height=80).check_against(ti2v.facts.limits)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"_class_name": "WanVACEPipeline"},
            "_class_name must be .* got 'WanVACEPipeline'; VACE is",
        ),
        ({"image_encoder": ["transformers", "CLIPVisionModel"]}, "image_encoder must be null, .* of Wan2.1"),
    ],
)
def test_checkpoint_is_refused_when_its_pipeline_is_not_supported(
    i2v: Tried, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    for part in i2v.folder.iterdir():
        if part.is_dir():
            (tmp_path / part.name).symlink_to(part)
    index = json.loads((i2v.folder / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**index, **changed}))
    with open_checkpoint(FAMILY, str(tmp_path)) as checkpoint, pytest.raises(InvalidRequest, match=message):
        FAMILY.plan(checkpoint, FAMILY.axes)


def test_checkpoint_is_refused_when_the_denoiser_has_too_few_channels(i2v: Tried, tmp_path: Path) -> None:
    for part in i2v.folder.iterdir():
        if part.is_dir():
            (tmp_path / part.name).symlink_to(part)
    index = json.loads((i2v.folder / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**index, "_class_name": "WanPipeline"}))
    with (
        open_checkpoint(FAMILY, str(tmp_path)) as checkpoint,
        pytest.raises(InvalidRequest, match="in_channels must be 16 as z_dim of vae .* got 36"),
    ):
        FAMILY.plan(checkpoint, FAMILY.axes)


@pytest.mark.parametrize(
    ("preset", "encoded", "largest"),
    [("ti2v-5b", (1, 48, 1, 44, 44), (121, 1280)), ("i2v-a14b", (1, 16, 30, 60, 60), (81, 1280))],
)
def test_public_size_is_planned_when_only_its_configurations_exist(
    tmp_path: Path, preset: str, encoded: tuple[int, ...], largest: tuple[int, int]
) -> None:
    write_empty = FAMILY.presets[preset].write_empty
    assert write_empty is not None
    write_empty(tmp_path)
    with open_checkpoint(FAMILY, str(tmp_path)) as checkpoint:
        axes = axes_of(FAMILY, checkpoint, {}, {})
        assert axes == FAMILY.presets[preset].axes
        plan = FAMILY.plan(checkpoint, axes)
    (encoder,) = (component for component in plan.components if component.name == "vae_encoder")
    assert encoder.outputs[0].at(encoder.points()["opt"]) == encoded
    (pipeline,) = (model for model in plan.authored if model.name == "wan_t2v")
    assert (pipeline.ranges["frames"][1], pipeline.ranges["height"][1]) == largest
