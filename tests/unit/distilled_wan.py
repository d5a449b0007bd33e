"""Independent loop of distribution matching distillation with diffusers' networks, for FastWan's videos.

It follows the published description: predict the clean latents, add fresh noise for the next timestep. The
sigma of a timestep is that of the nearest entry in the shifted table of training steps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline
from numpy.typing import NDArray

from slipway_client import TextToVideoRequest


def distilled_frames(folder: Path, request: TextToVideoRequest) -> NDArray[np.uint8]:
    """Return the frames of distribution matching distillation, step by step with diffusers' networks."""
    pipeline = WanPipeline.from_pretrained(folder)
    table = FlowMatchEulerDiscreteScheduler(shift=5.0)
    embeds, _ = pipeline.encode_prompt(
        request.prompt, do_classifier_free_guidance=False, max_sequence_length=512
    )
    generator = torch.Generator().manual_seed(request.seed)
    shape = (1, 48, (request.frames - 1) // 4 + 1, request.height // 16, request.width // 16)
    latents = torch.randn(shape, generator=generator)
    timesteps = (1000, 757, 522)
    sigmas = [float(table.sigmas[(table.timesteps - each).abs().argmin()]) for each in timesteps]
    with torch.no_grad():
        for step, (timestep, sigma) in enumerate(zip(timesteps, sigmas, strict=True)):
            of_tokens = torch.full((1, shape[2] * shape[3] * shape[4] // 4), float(timestep))
            clean = latents - sigma * pipeline.transformer(latents, of_tokens, embeds).sample
            latents = clean
            if step + 1 < len(sigmas):
                noise = torch.randn(shape, generator=generator)
                latents = (1 - sigmas[step + 1]) * clean + sigmas[step + 1] * noise
        mean, std = (
            torch.tensor(each).view(1, -1, 1, 1, 1)
            for each in (pipeline.vae.config.latents_mean, pipeline.vae.config.latents_std)
        )
        pixels = pipeline.vae.decode(latents * std + mean).sample
    video = pipeline.video_processor.postprocess_video(pixels, output_type="np")[0]
    frames: NDArray[np.uint8] = (video * 255).round().astype(np.uint8)
    return frames
