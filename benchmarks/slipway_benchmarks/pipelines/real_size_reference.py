"""Reference video of diffusers from given prompt embeddings, in a process that loads no text encoder.

Called as ``python -m slipway_benchmarks.pipelines.real_size_reference '<job as JSON>'``; writes frames to a
file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np


def make(job: dict[str, Any]) -> None:
    """Make a video with diffusers' own pipeline in float32.

    Args:
        job: Arguments by name: `checkpoint` (folder), `embeds` (file with `prompt_embeds` and
            `negative_prompt_embeds`, [1, tokens, width]), `seed` of the noise, `frames` (the file to write,
            [frames, height, width, 3], uint8), and further arguments of the pipeline.
    """
    import torch
    from diffusers import WanPipeline

    pipeline = WanPipeline.from_pretrained(
        job.pop("checkpoint"), text_encoder=None, tokenizer=None, torch_dtype=torch.float32,
        local_files_only=True,
    )  # fmt: skip
    with np.load(job.pop("embeds")) as arrays:
        embeds = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    generator, place = torch.Generator("cpu").manual_seed(job.pop("seed")), job.pop("frames")
    output = pipeline(**embeds, **job, generator=generator)
    np.save(place, (output.frames[0] * 255).round().astype(np.uint8))


if __name__ == "__main__":
    make(json.loads(sys.argv[1]))
