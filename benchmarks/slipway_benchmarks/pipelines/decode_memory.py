"""Peak memory of decoding a video, measured in a process that does nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from slipway_benchmarks.denoiser.cases import LATENT_CHANNELS, PIXELS_PER_LATENT
from slipway_benchmarks.separate_process import peak_mib
from slipway_client import TextToVideoRequest
from slipway_serving.runtime.in_process import InProcessModels


def decode_memory(repository: Path, count: int, request: TextToVideoRequest) -> float:
    """Return the peak memory of a process that decodes `count` latent frames of a video's size, in MiB."""
    sizes = [str(size) for size in (count, request.height, request.width)]
    command = [sys.executable, "-m", "slipway_benchmarks.pipelines.decode_memory", str(repository), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def decode_and_measure(repository: Path, count: int, height: int, width: int) -> float:
    """Decode `count` latent frames, drop the pixels as they arrive, and return the peak memory in MiB."""
    models = InProcessModels(repository, gpu=True)
    shape = (1, LATENT_CHANNELS, count, height // PIXELS_PER_LATENT, width // PIXELS_PER_LATENT)
    latents = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    frames = sum(
        len(answer["frames"])
        for answer in models.stream("wan_t2v_vae_decoder", {"latents": latents}, ["frames"])
    )
    if frames != 4 * (count - 1) + 1:
        raise RuntimeError(f"decoded {frames} frames of {count} latents")
    return peak_mib()


if __name__ == "__main__":
    sys.stdout.write(str(decode_and_measure(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
