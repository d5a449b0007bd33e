"""Videos that begin with a picture against diffusers' own pipelines, on the same weights and noise.

The pipeline of Slipway calls the networks of the family's plan in PyTorch, so no graph is exported here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline, WanPipeline
from distilled_wan import distilled_frames
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoTokenizer, CLIPVisionConfig, CLIPVisionModel, CLIPVisionModelWithProjection

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.wan_t2v import image_encoder
from slipway_export.families.wan_t2v.family import FAMILY
from slipway_export.networks.wan_vae_encoder import FrameEncoder
from slipway_export.spec import Component, Loading, Plan, Precision
from slipway_serving.families.wan_t2v import conditioning
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

TI2V, I2V, CLIP, FLF2V, FASTWAN = "tiny-ti2v", "tiny-i2v", "tiny-i2v-clip", "tiny-flf2v", "tiny-fastwan"
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
        found = self._run(component, inputs)
        return {spec.name: each.numpy() for spec, each in zip(component.outputs, found, strict=True)}

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
        pictures = {"image": request.image, "last_image": request.last_image}
        more = {name: Image.fromarray(each) for name, each in pictures.items() if each is not None}
        kind = WanImageToVideoPipeline if more else WanPipeline
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


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return tried(CLIP, tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def flf2v(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return tried(FLF2V, tmp_path_factory.mktemp("flf2v"))


@pytest.fixture(scope="module")
def fastwan(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return tried(FASTWAN, tmp_path_factory.mktemp("fastwan"))


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


def test_video_between_two_pictures_equals_diffusers_when_the_checkpoint_is_i2v(i2v: Tried) -> None:
    request = asked(16, image=picture(48, 32), last_image=picture(48, 32)[::-1])
    check(i2v, request, {"last_image": replace(request, last_image=None)})


def test_video_from_a_picture_equals_diffusers_when_the_denoiser_sees_its_clip_embedding(
    clip: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A picture of another size than the video: CLIP gets it whole, its shorter side resized.
    request = asked(16, image=picture(96, 64))
    check(clip, request, {"seed": replace(request, seed=8)})
    expected = clip.expected(request)
    monkeypatch.setattr(conditioning, "to_clip_input", lambda *_: np.zeros((1, 3, 56, 56), np.float32))
    assert psnr(clip.frames(request), expected) < 50


def test_video_between_two_pictures_equals_diffusers_when_the_checkpoint_is_flf2v(flf2v: Tried) -> None:
    request = asked(16, image=picture(48, 32), last_image=picture(48, 32)[::-1])
    swapped = replace(request, image=request.last_image, last_image=request.image)
    check(flf2v, request, {"pictures": swapped})


def test_fastwan_takes_its_three_steps_with_fresh_noise_as_an_independent_loop_does(fastwan: Tried) -> None:
    request = replace(asked(32), steps=3, guidance_scale=1.0)
    expected = distilled_frames(fastwan.folder, request)
    found = fastwan.frames(request)
    print(f"PSNR {psnr(found, expected):.1f} dB")
    assert expected.std() > 20
    assert psnr(found, expected) >= 60
    np.testing.assert_array_equal(fastwan.frames(request), found)
    # Euler's method over the same steps is another video.
    euler = replace(fastwan, facts=replace(fastwan.facts, distilled=False))
    assert psnr(euler.frames(request), expected) < 45


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
    with pytest.raises(InvalidRequest, match="last_image must be left out for this checkpoint, which takes"):
        asked(32, last_image=picture(96, 64)).check_against(ti2v.facts.limits)
    with pytest.raises(InvalidRequest, match="frames must be at least 5 with a last_image, got 1"):
        one = asked(16, image=picture(48, 32), last_image=picture(48, 32))
        replace(one, frames=1).check_against(i2v.facts.limits)
    with pytest.raises(InvalidRequest, match="height must be a multiple of 32 for this checkpoint, got 80"):
        replace(asked(32), height=80).check_against(ti2v.facts.limits)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"_class_name": "WanVACEPipeline"},
            "_class_name must be .* got 'WanVACEPipeline'; VACE is",
        ),
        (
            {"_class_name": "WanPipeline", "image_encoder": ["transformers", "CLIPVisionModel"]},
            "image_encoder must be null for WanPipeline and expand_timesteps False, got CLIPVisionModel",
        ),
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


def test_request_is_refused_when_its_pictures_do_not_fit_wan21(clip: Tried, flf2v: Tried) -> None:
    request = asked(16, image=picture(48, 32))
    with pytest.raises(InvalidRequest, match="last_image must be given for a checkpoint that joins two pict"):
        request.check_against(flf2v.facts.limits)
    with pytest.raises(InvalidRequest, match="last_image must be left out for this checkpoint"):
        replace(request, last_image=picture(48, 32)).check_against(clip.facts.limits)


def test_request_is_refused_when_fastwan_is_asked_for_other_steps(fastwan: Tried) -> None:
    message = (
        "steps must be 3 for this checkpoint, which was distilled for the timesteps 1000, 757, 522, got 4"
    )
    with pytest.raises(InvalidRequest, match=message):
        asked(32).check_against(fastwan.facts.limits)


def test_checkpoint_is_refused_when_its_parts_for_pictures_do_not_fit(flf2v: Tried, tmp_path: Path) -> None:
    def refusal(folder: str, file: str, **changed: Any) -> str:
        target = tmp_path / f"{folder}-{'-'.join(changed)}"
        shutil.copytree(flf2v.folder, target)
        config = json.loads((target / folder / file).read_text())
        (target / folder / file).write_text(json.dumps({**config, **changed}))
        with open_checkpoint(FAMILY, str(target)) as checkpoint, pytest.raises(InvalidRequest) as refused:
            FAMILY.plan(checkpoint, FAMILY.axes)
        return str(refused.value)

    wider = refusal("image_encoder", "config.json", hidden_size=48)
    assert "transformer/config.json: image_dim must be 48 as hidden_size of image_encoder" in wider
    longer = refusal("transformer", "config.json", pos_embed_seq_len=514)
    assert "pos_embed_seq_len must be 34 for two pictures of image_encoder" in longer


def test_denoiser_that_sees_pictures_is_the_same_when_it_is_traced_with_standard_operators(
    flf2v: Tried,
) -> None:
    (denoiser,) = (each for each in flf2v.models.plan.components if each.name == "denoiser_high")
    network = denoiser.load(Precision.FP32, Loading.READ)
    generator = torch.Generator().manual_seed(0)
    point = {"batch": 2, "latent_frames": 2, "token_height": 2, "token_width": 3}
    inputs = [torch.randn(each.at(point), generator=generator) for each in denoiser.inputs]
    with torch.no_grad():
        expected = network(*inputs)
        with denoiser.restate(network):
            torch.testing.assert_close(network(*inputs), expected, atol=1e-5, rtol=1e-5)
        inputs[3] = -inputs[3]
        assert float((network(*inputs) - expected).abs().max()) > 0.01


def test_image_encoder_is_the_same_when_its_file_has_a_projection_too(clip: Tried, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(clip.folder, folder)
    config = json.loads((folder / "image_encoder/config.json").read_text())
    network = CLIPVisionModelWithProjection(CLIPVisionConfig.from_dict({**config, "projection_dim": 24}))
    network.vision_model.load_state_dict(
        CLIPVisionModel.from_pretrained(clip.folder / "image_encoder").state_dict()
    )
    network.save_pretrained(folder / "image_encoder")
    pixels = torch.rand(2, 3, 56, 56)
    found = []
    for source in (clip.folder, folder):
        with open_checkpoint(FAMILY, str(source)) as checkpoint:
            encoder = image_encoder.image_encoder(checkpoint, 2).load(Precision.FP32, Loading.READ)
        with torch.no_grad():
            found.append(encoder(pixels))
    assert torch.equal(*found)


def test_checkpoint_is_refused_before_work_when_it_lacks_the_image_processor(
    clip: Tried, tmp_path: Path
) -> None:
    shutil.copytree(clip.folder, tmp_path / "c", ignore=lambda *_: ["image_processor"])
    with (
        open_checkpoint(FAMILY, str(tmp_path / "c")) as checkpoint,
        pytest.raises(InvalidRequest, match=r"image_processor/preprocessor_config\.json"),
    ):
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
