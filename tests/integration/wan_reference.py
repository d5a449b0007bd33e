"""diffusers' own pipelines as the reference of served videos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from numpy.typing import NDArray
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio

from slipway_client import TextToVideoRequest


def pipeline_for(checkpoint: Path, request: TextToVideoRequest) -> WanPipeline | WanImageToVideoPipeline:
    """Load the pipeline that makes such a video: from a text, or from a text and pictures."""
    kind = WanPipeline if request.image is None else WanImageToVideoPipeline
    return kind.from_pretrained(checkpoint)


def frames_of_pipeline(
    pipeline: WanPipeline | WanImageToVideoPipeline, request: TextToVideoRequest
) -> NDArray[np.uint8]:
    """Run a pipeline on a request; return uint8 frames as diffusers would write them."""
    pipeline.set_progress_bar_config(disable=True)
    if request.flow_shift is not None:
        config = pipeline.scheduler.config
        pipeline.scheduler = type(pipeline.scheduler).from_config(config, flow_shift=request.flow_shift)
    given = {name: getattr(request, name, None) for name in ("image", "last_image")}
    pictures = {name: Image.fromarray(pixels) for name, pixels in given.items() if pixels is not None}
    output = pipeline(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        num_frames=request.frames,
        height=request.height,
        width=request.width,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance_scale,
        guidance_scale_2=request.guidance_scale_2,
        generator=torch.Generator("cpu").manual_seed(request.seed),
        **pictures,
    )
    frames: NDArray[np.uint8] = (output.frames[0] * 255).round().astype(np.uint8)
    return frames


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 arrays, dB."""
    # Equal arrays have an infinite ratio.
    with np.errstate(divide="ignore"):
        return float(peak_signal_noise_ratio(b, a, data_range=255))


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """Return a picture of a few colours that blend."""
    colours = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC))
