"""Sections of a video: the same as in diffusers' own pipeline, for small networks written in a few lines."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoFramepackPipeline
from numpy.typing import NDArray

from slipway_serving.diffusion.noise import Noise
from slipway_serving.families.framepack_i2v.facts import Facts, ModelNames, Picture, Prompt, Tiles
from slipway_serving.families.framepack_i2v.pipeline import schedule_of
from slipway_serving.families.framepack_i2v.request import SECTION_FRAMES
from slipway_serving.families.framepack_i2v.sections import (
    TIME,
    Forward,
    FrameRun,
    Inverted,
    Sections,
    Sizes,
    section_gaps,
)
from slipway_serving.video.tiles import decode_tiles

Orders = dict[str, type[Sections]]
ORDERS: Orders = {"inverted_anti_drifting": Inverted, "vanilla": Forward}
SIDE, STEPS, SEED = 4, 2, 7
# A schedule whose shift follows the number of tokens, as the public one's does not.
SCHEDULER = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
FACTS = Facts(
    prompt=Prompt("{}", 0, 256, 77),
    picture=Picture(8, (0.5,) * 3, (0.5,) * 3, 3),
    latent_channels=4,
    frames_per_latent=4,
    pixels_per_latent=8,
    section_frames=SECTION_FRAMES,
    clean_frames=2,
    history_2x_frames=2,
    history_4x_frames=16,
    tiles=Tiles(5, 3, 4),
    scheduler={"_class_name": type(SCHEDULER).__name__, **SCHEDULER.config},
    axes={},
    models=ModelNames(*"abcdefg"),
)
SIZES = Sizes.of(FACTS, SECTION_FRAMES)
PICTURE = np.random.default_rng(0).normal(size=(1, 4, 1, SIDE, SIDE)).astype(np.float32)


def flow(told: dict[str, Any]) -> Any:
    """Predict something that depends on every tensor that a section is told, and on each index."""
    near, half, quarter = (
        told[name].mean() for name in ("latents_clean", "latents_history_2x", "latents_history_4x")
    )
    seen = near * 0.5 + told["latents_clean"][:, :, 1:].mean() + half * 0.7 - quarter * 0.3
    return told["hidden_states"] * 0.4 + seen + float(told["timestep"][0]) / 4000


def frames_of(latents: Any, library: Any) -> Any:
    """Draw four frames of a latent frame, and one of the first of a window, which says which window it is."""
    first, rest = latents[:, :3, :1], latents[:, :3, 1:]
    later = [rest * share for share in (0.7, 0.8, 0.9, 1.0)]
    woven = library.stack(later, 3).reshape(*rest.shape[:2], -1, *rest.shape[3:])
    joined = library.concatenate([first, woven], 2)
    return library.tanh(joined * 0.6 + latents.mean() * 0.1)


class Transformer(torch.nn.Module):
    dtype, device = torch.float32, torch.device("cpu")
    config = SimpleNamespace(in_channels=4, patch_size=2)

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict[str, Any]] = []

    def forward(self, **told: Any) -> tuple[Any]:
        self.told.append(told)
        return (flow(told),)


class Vae(torch.nn.Module):
    dtype, device = torch.float32, torch.device("cpu")
    config = SimpleNamespace(scaling_factor=1.0)
    spatial_compression_ratio, temporal_compression_ratio = 8, 4

    def __init__(self) -> None:
        super().__init__()
        self.windows: list[int] = []

    def decode(self, latents: Any, return_dict: bool) -> tuple[Any]:
        self.windows.append(latents.shape[2])
        return (frames_of(latents, torch),)


class Upstream(HunyuanVideoFramepackPipeline):
    """diffusers' own pipeline, with the picture encoded already."""

    def encode_image(self, image: Any, device: Any = None, dtype: Any = None) -> Any:
        return torch.zeros(1, 1, 1)

    def prepare_image_latents(self, image: Any, **_: Any) -> Any:
        return torch.from_numpy(PICTURE)


@dataclass
class Made:
    """A video, and what it was made by."""

    video: NDArray[Any]
    told: list[dict[str, Any]]
    windows: list[int]
    runs: list[list[FrameRun]] = field(default_factory=list)
    most_held: int = 0


def upstream(sections: int, order: str) -> Made:
    names = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "image_encoder")
    parts: dict[str, Any] = dict.fromkeys((*names, "feature_extractor"))
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(SCHEDULER.config)
    pipeline = Upstream(transformer=Transformer(), vae=Vae(), scheduler=scheduler, **parts)
    pipeline.set_progress_bar_config(disable=True)
    output = pipeline(
        image=torch.zeros(1, 3, 8 * SIDE, 8 * SIDE),
        prompt_embeds=torch.zeros(1, 1, 1),
        pooled_prompt_embeds=torch.zeros(1, 1),
        prompt_attention_mask=torch.ones(1, 1),
        height=8 * SIDE,
        width=8 * SIDE,
        num_frames=33 * sections,
        num_inference_steps=STEPS,
        generator=torch.Generator().manual_seed(SEED),
        sampling_type=order,
        output_type="np",
    )
    told = [{name: _array(value) for name, value in call.items()} for call in pipeline.transformer.told]
    return Made(output.frames[0], told, pipeline.vae.windows)


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def ours(sections: int, order: str) -> Made:
    video = ORDERS[order](PICTURE, sections, SIZES)
    noise = Noise(SEED)
    made = Made(np.full((sections * 36 + 1, SIDE, SIDE, 3), np.nan), [], [])
    for _ in range(sections):
        schedule = schedule_of(FACTS, STEPS, (SIDE, SIDE), Noise(0))
        latents = noise.next((1, 4, SECTION_FRAMES, SIDE, SIDE))
        for timestep in schedule.timesteps:
            told = {
                **video.conditions(),
                "hidden_states": latents.numpy(),
                "timestep": np.array([float(timestep)], np.float32),
            }
            made.told.append(told)
            latents = schedule.step(torch.from_numpy(flow(told)), timestep, latents)
        window = video.window(latents.numpy())
        made.windows.append(window.shape[TIME])
        made.runs.append(video.finish_section(frames_of(window, np)))
        held = video.history.shape[TIME] + (0 if video.overlap is None else video.overlap.shape[TIME])
        made.most_held = max(made.most_held, held)
        assert not any(
            array.base is not None for array in (video.history, video.overlap) if array is not None
        )
        for run in made.runs[-1]:
            end = run.first_frame + run.frames.shape[TIME]
            made.video[run.first_frame : end] = np.clip(run.frames[0].transpose(1, 2, 3, 0) / 2 + 0.5, 0, 1)
    return made


@pytest.mark.parametrize(("sections", "order"), list(itertools.product(range(1, 7), ORDERS)))
def test_sections_equal_diffusers_when_a_video_has_so_many(sections: int, order: str) -> None:
    expected, made = upstream(sections, order), ours(sections, order)
    assert made.windows == expected.windows
    assert len(made.told) == len(expected.told) == sections * STEPS
    for told, wanted in zip(made.told, expected.told, strict=True):
        for name, value in told.items():
            np.testing.assert_allclose(value, wanted[name], atol=1e-5, err_msg=name)
            assert value.dtype == wanted[name].dtype
    assert made.video.shape == expected.video.shape == (36 * sections + 1, SIDE, SIDE, 3)
    assert expected.video.std() > 0.1
    np.testing.assert_allclose(made.video, expected.video, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_frames_are_final_once_and_open_at_most_once_before(order: str) -> None:
    made = ours(6, order)
    final, opened = np.zeros(6 * 36 + 1, int), np.zeros(6 * 36 + 1, int)
    for runs in made.runs:
        assert [run.first_frame for run in runs] == sorted(run.first_frame for run in runs)
        for run in runs:
            places = slice(run.first_frame, run.first_frame + run.frames.shape[TIME])
            (final if run.final else opened)[places] += 1
            assert run.final or not final[places].any()
    assert (final == 1).all()
    assert opened.max() == 1 and opened.sum() == 5 * 33


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_held_is_the_same_when_a_video_is_longer(order: str) -> None:
    assert ours(2, order).most_held == ours(6, order).most_held == 19 + 33


def test_paddings_are_bounded_when_a_video_is_long() -> None:
    assert [section_gaps(count) for count in (1, 4, 5, 7)] == [
        [0], [3, 2, 1, 0], [3, 2, 2, 1, 0], [3, 2, 2, 2, 2, 1, 0]
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 4, 5, 9, 10, 18, 19])
def test_tiles_equal_diffusers_when_a_window_is_decoded(count: int) -> None:
    from diffusers import AutoencoderKLHunyuanVideo

    torch.manual_seed(0)
    vae = AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4
    ).eval()
    latents = torch.randn(1, 4, count, 2, 2)
    with torch.no_grad():
        expected = vae.decode(latents, return_dict=False)[0].numpy()
        made = list(
            decode_tiles(
                latents.numpy(),
                lambda tile: vae.decoder(vae.post_quant_conv(torch.from_numpy(tile))).numpy(),
                frames=5,
                stride=3,
                blended=4,
                frames_per_latent=4,
            )
        )
    np.testing.assert_allclose(np.concatenate(made, axis=TIME), expected, atol=1e-6)
