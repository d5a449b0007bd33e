"""A 4-step LoRA for each expert, from the file to the served video, against diffusers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline
from lora_files import RANK, factors, linear_modules, write_lora
from wan_reference import frames_of_pipeline, psnr

from slipway_cli.videos.making import Session
from slipway_client import Client, Frames, TextToVideoRequest
from slipway_client.address import address_of
from slipway_export.checkpoint.lora.requests import LoraRequest, RequestedAdditions
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Engine
from slipway_export.spec.schedule_defaults import ScheduleDefaults
from slipway_serving.triton.server import Server, ServerConfig

FAMILY = family_named("wan_t2v")
STEPS, SHIFT, ALPHA = (1000, 750, 500, 250), 5.0, 1.5
SEEDS = {"transformer": 100, "transformer_2": 500}
SCALES = {"transformer": 1.0, "transformer_2": 0.5}
REQUEST = TextToVideoRequest(
    prompt="a paper boat", frames=9, height=80, width=48, steps=4, guidance_scale=1.0, seed=3, output="frames"
)


class FourSteps(FlowMatchEulerDiscreteScheduler):
    """diffusers' scheduler at the steps of the LoRA."""

    def set_timesteps(self, *_: Any, device: Any = None, **__: Any) -> None:
        super().set_timesteps(sigmas=[step / 1000 for step in STEPS], device=device)


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wan") / "checkpoint"
    folder.mkdir()
    FAMILY.presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture(scope="module")
def pipeline(wan: Path) -> WanPipeline:
    """diffusers' pipeline without a LoRA."""
    return WanPipeline.from_pretrained(wan)


@pytest.fixture(scope="module")
def additions(wan: Path, pipeline: WanPipeline) -> RequestedAdditions:
    """A LoRA for each expert in ComfyUI's layout, and the schedule for 4 steps."""
    files = {
        part: write_lora(wan.parent / f"{part}.safetensors", pipeline.transformer, "comfy", seed, alpha=ALPHA)
        for part, seed in SEEDS.items()
    }
    loras = tuple(LoraRequest(str(files[part]), part, SCALES[part]) for part in SEEDS)
    return RequestedAdditions(loras, ScheduleDefaults(STEPS, SHIFT))


@pytest.fixture(scope="module")
def repository(wan: Path, additions: RequestedAdditions) -> Path:
    models = wan.parent / "models"
    # PyTorch serves one expert and ONNX Runtime the other, so that one server shows both.
    engines = {"denoiser_low": Engine.TORCH}
    run_export(FAMILY, ExportOptions(str(wan), models, engines=engines, additions=additions))
    return models


@pytest.fixture(scope="module")
def client(repository: Path) -> Iterator[Client]:
    with (
        Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running,
        Client(running.grpc_url) as connected,
    ):
        yield connected


def reference(wan: Path, *, merged: bool) -> np.ndarray:
    pipeline = WanPipeline.from_pretrained(wan)
    for part, seed in SEEDS.items() if merged else ():
        names = [name for name in linear_modules(getattr(pipeline, part)) if name.startswith("blocks.")]
        for number, name in enumerate(names):
            linear = getattr(pipeline, part).get_submodule(name)
            down, up = factors(linear, seed + number)
            with torch.no_grad():
                linear.weight += SCALES[part] * ALPHA / RANK * up @ down
    pipeline.scheduler = FourSteps(shift=SHIFT)
    return frames_of_pipeline(pipeline, REQUEST)


def test_served_video_equals_diffusers_when_each_expert_has_a_lora_for_4_steps(
    client: Client, wan: Path
) -> None:
    *_, last = client.generate(REQUEST)
    assert isinstance(last, Frames)
    expected = reference(wan, merged=True)
    assert psnr(last.array, expected) >= 60
    assert psnr(reference(wan, merged=False), expected) < 45


def test_schedule_of_the_lora_is_the_default_of_the_served_model(client: Client) -> None:
    session = Session(address_of(client.url, "grpc"), None, json=False, quiet=True)
    assert session.schedule(TextToVideoRequest) == {"steps": 4, "guidance_scale": 1.0}


def test_manifest_names_the_lora_of_its_own_expert(repository: Path, additions: RequestedAdditions) -> None:
    for name, lora in zip(("denoiser_high", "denoiser_low"), additions.loras, strict=True):
        manifest = json.loads((repository / f"wan_t2v_{name}/manifest.json").read_text())
        (named,) = manifest["loras"]
        assert (named["source"], named["scale"]) == (lora.source, lora.scale)
        assert len(manifest["checkpoint"]["loras"]) == 2
        (made,) = manifest["made"].values()
        part = {"denoiser_high": "transformer", "denoiser_low": "transformer_2"}[name]
        read = [file for file in made["read"] if file.startswith("slipway/") and "lora" in file]
        assert read
        assert all(file.startswith(f"slipway/lora/{part}/") for file in read)
    assert "loras" not in json.loads((repository / "wan_t2v_text_encoder/manifest.json").read_text())


def test_export_makes_only_the_expert_again_whose_scale_changed(
    repository: Path, wan: Path, additions: RequestedAdditions
) -> None:
    high, low = additions.loras
    changed = RequestedAdditions((LoraRequest(high.source, high.component, 0.9), low), additions.schedule)
    lines: list[str] = []
    options = ExportOptions(
        str(wan), repository, engines={"denoiser_low": Engine.TORCH}, additions=changed, check_only=True
    )
    run_export(FAMILY, options, lines.append)
    reused = " ".join(line for line in lines if "reused" in line)
    assert "denoiser_low" in reused
    assert "text_encoder" in reused
    assert "denoiser_high" not in reused
