"""The family of another distribution, installed and exported, and what its networks make without a server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from filelock import FileLock

from slipway_export.families import registered
from slipway_export.spec import Loading
from slipway_serving.triton.server import Server

ROOT = Path(__file__).resolve().parents[2]
PROTOCOLS: tuple[Literal["grpc", "http"], ...] = ("grpc", "http")
PICTURE = np.random.default_rng(3).integers(0, 256, (24, 32, 3), np.uint8)
ACTIONS = np.random.default_rng(4).uniform(-1, 1, (5, 2, 4)).astype(np.float32)


@contextlib.contextmanager
def installed_toy(folder: Path) -> Iterator[Path]:
    """Install the distribution by pip into a folder, which is on the import path until the block ends."""
    source, target = folder / "source", folder / "installed"
    shutil.copytree(ROOT / "tests/toy_family", source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(target))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH")))))
        registered.cache_clear()
        yield target
    registered.cache_clear()


def toy_repository(shared: Path) -> Path:
    """Return the tiny checkpoint's repository, exported by the command line by the first process that asks.

    The distribution must be installed. Read only: copy it to change it.
    """
    repository, done = shared / "toy" / "repository", shared / "toy" / "done"
    done.parent.mkdir(exist_ok=True)
    with FileLock(shared / "toy.lock"):
        if not done.exists():
            export = slipway("export", "toy", "--checkpoint", "tiny", "--repository", repository)
            assert export.returncode == 0, export.stderr
            done.touch()
    return repository


def slipway(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipway_cli.root", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def url_of(server: Server, protocol: str) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


def expected_frames(blocks: int, actions: np.ndarray = ACTIONS) -> np.ndarray:
    """Generate with PyTorch alone: the whole network at once for each step, its noise in the same order."""
    from slipway_toy.family import SHIFT, STEPS
    from slipway_toy.network import Block, Decode, Encode, ToyDenoiser, ToyVae

    from slipway_export.checkpoint.opening import open_checkpoint
    from slipway_export.families import family_named
    from slipway_export.spec import Precision
    from slipway_serving.diffusion.noise import Noise
    from slipway_serving.diffusion.schedules import FewStep

    with open_checkpoint(family_named("toy"), "tiny") as checkpoint, torch.no_grad():
        block = Block(checkpoint.load("denoiser", ToyDenoiser, Precision.FP32, Loading.READ))
        vae = checkpoint.load("vae", ToyVae, Precision.FP32, Loading.READ)
        picture = torch.from_numpy(PICTURE.astype(np.float32) / np.float32(127.5) - 1)
        condition = Encode(vae)(picture.permute(2, 0, 1)[None])
        noise, clean, frames = Noise(7), [], []
        for index in range(blocks):
            schedule = FewStep(STEPS, SHIFT, noise)
            latents = noise.next((1, 4, 2, 3, 4))
            for timestep in schedule.timesteps:
                times = [torch.zeros(1, 2 * index), torch.full((1, 2), float(timestep))]
                whole = {
                    "latents": torch.cat([*clean, latents], dim=2),
                    "timestep": torch.cat(times, dim=1),
                    "actions": torch.from_numpy(actions[: index + 1].reshape(1, -1, 4)),
                    "condition": condition,
                }
                latents = schedule.step(block.whole(whole)["sample"][:, :, -2:], timestep, latents)
            clean.append(latents)
            frames.append(Decode(vae)(latents))
    joined = torch.cat(frames, dim=2)[0].permute(1, 2, 3, 0)
    return ((joined.clamp(-1, 1) + 1) * 127.5).round().numpy().astype(np.uint8)
