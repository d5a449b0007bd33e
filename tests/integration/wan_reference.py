"""diffusers' own pipeline as the reference of served videos."""

from __future__ import annotations

import numpy as np
import torch
from diffusers import WanPipeline
from skimage.metrics import peak_signal_noise_ratio

from slipway_client import TextToVideoRequest


def frames_of_pipeline(pipeline: WanPipeline, request: TextToVideoRequest) -> np.ndarray:
    """Run a pipeline on a request; return uint8 frames as diffusers would write them."""
    pipeline.set_progress_bar_config(disable=True)
    if request.flow_shift is not None:
        config = pipeline.scheduler.config
        pipeline.scheduler = type(pipeline.scheduler).from_config(config, flow_shift=request.flow_shift)
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
    )
    return (output.frames[0] * 255).round().astype(np.uint8)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 arrays, dB."""
    # Equal arrays have an infinite ratio.
    with np.errstate(divide="ignore"):
        return float(peak_signal_noise_ratio(b, a, data_range=255))
