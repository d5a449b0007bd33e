"""What a checkpoint reaches on scenes and prompts that its making never saw.

The judge is judged first, on renders; then the VAE, by what comes back of a clip; then the videos of prompts,
made by diffusers' own pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanPipeline
from numpy.typing import NDArray

from slipway_training.causal_vae import psnr_db
from slipway_training.shapes.captions import plain
from slipway_training.shapes.clips import FRAMES, SIDE_PX
from slipway_training.shapes.judge import Judge, judged, load_judge, right
from slipway_training.shapes.render import render
from slipway_training.shapes.scenes import Subject, random_scene, subjects

PROMPTS, JUDGED_RENDERS, MEASURED_CLIPS = 100, 300, 32
# Trainings draw from their seed and a step; this is no seed that one is given.
_SEED = 2**31


@dataclass(frozen=True)
class Sampling:
    """How videos are made.

    Args:
        steps: of denoising.
        guidance_scale: of both experts.
        batch: prompts at a time.
    """

    steps: int = 20
    guidance_scale: float = 4.0
    batch: int = 10


def figures(folder: Path) -> dict[str, float]:
    """Measure a checkpoint.

    Returns:
        ``judge_…``: share of rendered clips of unseen subjects in which the judge is right; ``vae_psnr_db``:
        of such clips; ``prompt_…``: share of unseen prompts whose video shows the word.
    """
    judge = load_judge(folder)
    found = {f"judge_{word}": share for word, share in judge_figures(judge).items()}
    vae = AutoencoderKLWan.from_pretrained(folder / "vae", torch_dtype=torch.float32)
    found["vae_psnr_db"] = psnr_db(vae, unseen_clips(MEASURED_CLIPS)[1])
    asked = unseen_subjects(PROMPTS)
    videos = generated(folder, [plain(subject) for subject in asked], Sampling())
    shares = right(asked, [judged(judge, video) for video in videos])
    return found | {f"prompt_{word}": share for word, share in shares.items()}


def judge_figures(judge: Judge) -> dict[str, float]:
    """Return how often the judge is right on rendered clips of unseen subjects."""
    shown, clips = unseen_clips(JUDGED_RENDERS)
    return right(shown, [judged(judge, clip) for clip in clips])


def unseen_subjects(count: int) -> list[Subject]:
    """Return subjects whose combination of words no training saw, each at most once."""
    choice = subjects(unseen=True)
    places = np.random.default_rng(_SEED).permutation(len(choice))[:count]
    return [choice[place] for place in places]


def unseen_clips(count: int) -> tuple[list[Subject], NDArray[np.uint8]]:
    """Return rendered clips of unseen subjects, [clips, frames, side, side, 3], and the subjects."""
    random = np.random.default_rng(_SEED)
    scenes = [random_scene(random, subjects(unseen=True), FRAMES) for _ in range(count)]
    clips = np.stack([render(scene, range(FRAMES), SIDE_PX) for scene in scenes])
    return [scene.subject for scene in scenes], clips


def generated(folder: Path, prompts: Sequence[str], sampling: Sampling) -> NDArray[np.uint8]:
    """Make the video of each prompt with diffusers' pipeline, [prompts, frames, side, side, 3]."""
    pipeline = WanPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    videos = []
    for first in range(0, len(prompts), sampling.batch):
        made = pipeline(
            prompt=list(prompts[first : first + sampling.batch]),
            height=SIDE_PX,
            width=SIDE_PX,
            num_frames=FRAMES,
            num_inference_steps=sampling.steps,
            guidance_scale=sampling.guidance_scale,
            generator=torch.Generator().manual_seed(first),
            output_type="np",
        )
        videos.append(np.rint(np.asarray(made.frames) * 255).astype(np.uint8))
    return np.concatenate(videos)
