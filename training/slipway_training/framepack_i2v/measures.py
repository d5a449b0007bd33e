"""What a checkpoint reaches on pictures and prompts that its making never saw.

The judge is judged first, on renders; then the VAE, by what comes back of a clip; then videos of three
sections in both orders, made by diffusers' own pipeline. A video is looked at from its begin and up to its
end, about two sections each time: both must show what the prompt says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackPipeline
from numpy.typing import NDArray
from PIL import Image

from slipway_serving.framepack_i2v.request import FRAMES_PER_LATENT, SECTION_FRAMES
from slipway_training.causal_vae import psnr_db
from slipway_training.framepack_i2v.encoders import TOKENS
from slipway_training.framepack_i2v.footage import LONG
from slipway_training.framepack_i2v.transformer import GUIDANCE_SCALE
from slipway_training.shapes.captions import plain
from slipway_training.shapes.clips import SIDE_PX
from slipway_training.shapes.judge import LOOKED, Judge, Verdict, judged, load_judge, right
from slipway_training.shapes.render import render
from slipway_training.shapes.scenes import Scene, subjects

# Frames from one that the judge looks at to the next.
EVERY = 8
PICTURES, JUDGED_RENDERS, MEASURED_CLIPS, MEASURED_FRAMES = 24, 200, 16, 33
MEASURED_SECTIONS = 3
ORDERS = {"forward": "vanilla", "inverted": "inverted_anti_drifting"}
"""By the request's names, diffusers'."""
# Trainings draw from their seed and a step; this is no seed that one is given.
_SEED = 2**31


@dataclass(frozen=True)
class Sampling:
    """How videos are made.

    Args:
        sections: of each.
        steps: of denoising, for each section.
        batch: videos at a time.
    """

    sections: int = MEASURED_SECTIONS
    steps: int = 20
    batch: int = 8


def figures(folder: Path) -> dict[str, float]:
    """Measure a checkpoint.

    Returns:
        ``judge_…``: share of rendered clips of unseen subjects in which the judge is right; ``vae_psnr_db``:
        of such clips; ``forward_…`` and ``inverted_…``: share of unseen pictures and prompts whose video
        shows the word from its begin to its end.
    """
    judge = load_judge(folder)
    found = {f"judge_{word}": share for word, share in judge_figures(judge).items()}
    vae = AutoencoderKLHunyuanVideo.from_pretrained(folder / "vae", torch_dtype=torch.float32)
    found["vae_psnr_db"] = psnr_db(vae, rendered(unseen_scenes(MEASURED_CLIPS), MEASURED_FRAMES))
    scenes = unseen_scenes(PICTURES)
    for order in ORDERS:
        shares = video_figures(judge, scenes, generated(folder, scenes, order, Sampling()))
        found |= {f"{order}_{word}": share for word, share in shares.items()}
    return found


def judge_figures(judge: Judge) -> dict[str, float]:
    """Return how often the judge is right on rendered clips of unseen subjects."""
    scenes = unseen_scenes(JUDGED_RENDERS)
    clips = rendered(scenes, _window())
    return right([scene.subject for scene in scenes], [judged(judge, clip, EVERY) for clip in clips])


def video_figures(
    judge: Judge, scenes: Sequence[Scene], videos: Sequence[NDArray[np.uint8]]
) -> dict[str, float]:
    """Return the share of videos that show each word from their begin to their end."""
    asked = [scene.subject for scene in scenes]
    window = _window()
    verdicts = [
        _agreed(judged(judge, video[:window], EVERY), judged(judge, video[-window:], EVERY))
        for video in videos
    ]
    return right(asked, verdicts)


def unseen_scenes(count: int) -> list[Scene]:
    """Return scenes of subjects whose combination of words no training saw, each at most once."""
    random = np.random.default_rng(_SEED)
    choice = subjects(unseen=True)
    return [LONG.scene(random, [choice[place]]) for place in random.permutation(len(choice))[:count]]


def rendered(scenes: Sequence[Scene], frames: int) -> NDArray[np.uint8]:
    """Return the first frames of scenes, [scenes, frames, side, side, 3]."""
    return np.stack([render(scene, range(frames), SIDE_PX) for scene in scenes])


def generated(
    folder: Path, scenes: Sequence[Scene], order: str, sampling: Sampling
) -> list[NDArray[np.uint8]]:
    """Make the video of each scene's first picture and prompt, [frames, side, side, 3] each.

    Args:
        folder: of the checkpoint.
        scenes: whose pictures and plain captions are given.
        order: among `ORDERS`.
        sampling: how.
    """
    pipeline = HunyuanVideoFramepackPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    # As diffusers counts: the frames that a section would be alone.
    alone = (SECTION_FRAMES - 1) * FRAMES_PER_LATENT + 1
    videos: list[NDArray[np.uint8]] = []
    for first in range(0, len(scenes), sampling.batch):
        some = scenes[first : first + sampling.batch]
        made = pipeline(
            image=[Image.fromarray(picture) for picture in rendered(some, 1)[:, 0]],
            prompt=[plain(scene.subject) for scene in some],
            height=SIDE_PX,
            width=SIDE_PX,
            num_frames=sampling.sections * alone,
            num_inference_steps=sampling.steps,
            guidance_scale=GUIDANCE_SCALE,
            max_sequence_length=TOKENS,
            sampling_type=ORDERS[order],
            generator=torch.Generator().manual_seed(first),
            output_type="np",
        )
        videos += [np.rint(np.asarray(frames) * 255).astype(np.uint8) for frames in made.frames]
    return videos


def _window() -> int:
    """Return how many frames the judge looks at."""
    return (LOOKED - 1) * EVERY + 1


def _agreed(begin: Verdict, end: Verdict) -> Verdict:
    """Return what both say; a word that they do not agree on is none."""
    return Verdict(
        *(
            mine if mine == other else ""
            for mine, other in (
                (getattr(begin, word), getattr(end, word)) for word in ("colour", "shape", "motion")
            )
        )
    )
