"""A 4-step LoRA for each expert, from the file to the served video, against diffusers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from lora_files import RANK, factors, linear_modules, write_lora
from wan_reference import frames_of_pipeline, picture, pipeline_for, psnr

from slipway_cli.videos.making import Session
from slipway_client import Client, Frames, TextToVideoRequest
from slipway_client.address import address_of
from slipway_export.checkpoint.lora.requests import LoraRequest, RequestedAdditions
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis, Engine
from slipway_export.spec.schedule_defaults import ScheduleDefaults
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

FAMILY = family_named("wan_t2v")
STEPS, SHIFT, ALPHA = (1000, 750, 500, 250), 5.0, 1.5
SEEDS = {"transformer": 100, "transformer_2": 500}
SCALES = {"transformer": 1.0, "transformer_2": 0.5}
AXES = (Axis("latent_frames", 1, 2, 3), Axis("token_height", 2, 3, 5), Axis("token_width", 2, 3, 3))
FROM_TEXT = TextToVideoRequest(
    prompt="a paper boat", frames=9, height=80, width=48, steps=4, guidance_scale=1.0, seed=3, output="frames"
)
# Two experts each: Wan2.2-T2V-A14B's, and Wan2.2-I2V-A14B's with a first picture.
REQUESTS = {"tiny": FROM_TEXT, "tiny-i2v": replace(FROM_TEXT, image=picture(80, 48))}
LAYOUTS = {"tiny": "comfy", "tiny-i2v": "lightx2v"}


class FourSteps(FlowMatchEulerDiscreteScheduler):
    """diffusers' scheduler at the steps of the LoRA."""

    def set_timesteps(self, *_: Any, device: Any = None, **__: Any) -> None:
        super().set_timesteps(sigmas=[step / 1000 for step in STEPS], device=device)


@pytest.fixture(scope="module", params=["tiny", pytest.param("tiny-i2v", marks=pytest.mark.long)])
def preset(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def wan(preset: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wan") / "checkpoint"
    folder.mkdir()
    FAMILY.presets[preset].write(folder, 0)
    return folder


@pytest.fixture(scope="module")
def additions(wan: Path, preset: str) -> RequestedAdditions:
    """A LoRA for each expert, and the schedule for 4 steps."""
    network = WanTransformer3DModel.from_pretrained(wan / "transformer")
    files = {
        part: write_lora(wan.parent / f"{part}.safetensors", network, LAYOUTS[preset], seed, alpha=ALPHA)
        for part, seed in SEEDS.items()
    }
    loras = tuple(LoraRequest(str(files[part]), part, SCALES[part]) for part in SEEDS)
    return RequestedAdditions(loras, ScheduleDefaults(STEPS, SHIFT))


@pytest.fixture(scope="module")
def repository(wan: Path, additions: RequestedAdditions) -> Path:
    models = wan.parent / "models"
    # PyTorch serves one expert and ONNX Runtime the other, so that one server shows both.
    engines = {"denoiser_low": Engine.TORCH}
    options = ExportOptions(str(wan), models, axes=AXES, engines=engines, additions=additions)
    run_export(FAMILY, options)
    return models


@pytest.fixture(scope="module")
def client(repository: Path) -> Iterator[Client]:
    with (
        Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running,
        Client(running.grpc_url) as connected,
    ):
        yield connected


def reference(wan: Path, request: TextToVideoRequest, *, merged: bool) -> np.ndarray:
    pipeline = pipeline_for(wan, request)
    for part, seed in SEEDS.items() if merged else ():
        names = [name for name in linear_modules(getattr(pipeline, part)) if name.startswith("blocks.")]
        for number, name in enumerate(names):
            linear = getattr(pipeline, part).get_submodule(name)
            down, up = factors(linear, seed + number)
            with torch.no_grad():
                linear.weight += SCALES[part] * ALPHA / RANK * up @ down
    pipeline.scheduler = FourSteps(shift=SHIFT)
    return frames_of_pipeline(pipeline, request)


def test_served_video_equals_diffusers_when_each_expert_has_a_lora_for_4_steps(
    client: Client, wan: Path, preset: str
) -> None:
    *_, last = client.generate(REQUESTS[preset])
    assert isinstance(last, Frames)
    expected = reference(wan, REQUESTS[preset], merged=True)
    print(f"PSNR {psnr(last.array, expected):.1f} dB")
    assert psnr(last.array, expected) >= 60
    assert psnr(reference(wan, REQUESTS[preset], merged=False), expected) < 45


def test_schedule_of_the_lora_is_the_default_of_the_served_model(client: Client) -> None:
    session = Session(address_of(client.url, "grpc"), None, json=False, quiet=True)
    own = session.schedule(TextToVideoRequest, {"steps", "guidance_scale", "seed"})
    assert own == {"steps": 4, "guidance_scale": 1.0}
    assert session.schedule(TextToVideoRequest, {"steps"}) == {"steps": 4}


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
        str(wan),
        repository,
        axes=AXES,
        engines={"denoiser_low": Engine.TORCH},
        additions=changed,
        check_only=True,
    )
    run_export(FAMILY, options, lines.append)
    reused = " ".join(line for line in lines if "reused" in line)
    assert "denoiser_low" in reused
    assert "text_encoder" in reused
    assert "denoiser_high" not in reused
