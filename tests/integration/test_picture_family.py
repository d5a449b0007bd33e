"""The picture family of examples/, exported from a distribution of its own, equals diffusers' pipeline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import PIL.Image
import pytest
from load_environment import load_environment
from numpy.typing import NDArray

from slipway_client import Client, Picture, Progress
from slipway_export.families import family_named, registered
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Precision
from slipway_loadtests.soak.running import Options, soak_at
from slipway_loadtests.soak.sampled import all_kinds, of_families
from slipway_loadtests.soak.traffic import FAILED
from slipway_loadtests.soak.verdict import counts
from slipway_serving.protocol.errors import Cancelled, DeadlineExceeded, InvalidRequest
from slipway_serving.protocol.events import read
from slipway_serving.protocol.fields import encode
from slipway_serving.runtime.in_process import InProcessModels, read_config
from slipway_serving.runtime.program import Call, Settings, load_program
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SUBJECT, SEED, STEPS, GUIDANCE = 207, 5, 4, 3.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The distribution, installed by pip into a folder on the import path."""
    folder = tmp_path_factory.mktemp("pictures")
    source, target = folder / "source", folder / "installed"
    shutil.copytree(ROOT / "examples/picture_family", source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(target))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH")))))
        registered.cache_clear()
        yield folder
    registered.cache_clear()


@pytest.fixture(scope="module")
def checkpoint(installed: Path) -> Path:
    """The tiny checkpoint."""
    folder = installed / "checkpoint"
    folder.mkdir()
    family_named("pictures").presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture(scope="module")
def repository(installed: Path, checkpoint: Path) -> Path:
    """The exported checkpoint."""
    folder = installed / "models"
    assert run_export(family_named("pictures"), ExportOptions(str(checkpoint), folder)).placed
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    """A Triton with the family's models."""
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as started:
        yield started


def painted(checkpoint: Path, guidance: float) -> NDArray[np.uint8]:
    """Paint with diffusers' own pipeline on the same weights and the same noise."""
    import torch
    from diffusers import DiTPipeline

    pipeline = DiTPipeline.from_pretrained(checkpoint)
    generator = torch.Generator().manual_seed(SEED)
    (picture,) = pipeline(
        [SUBJECT], guidance_scale=guidance, generator=generator, num_inference_steps=STEPS, output_type="np"
    ).images
    pixels: NDArray[np.uint8] = np.round(picture * 255).astype(np.uint8)
    return pixels


def psnr_db(found: NDArray[np.uint8], expected: NDArray[np.uint8]) -> float:
    error = np.mean((found.astype(np.float64) - expected) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


@pytest.mark.parametrize("guidance", [GUIDANCE, 1.0])
def test_program_paints_the_reference_picture_without_a_server(
    repository: Path, checkpoint: Path, guidance: float
) -> None:
    from slipway_pictures.request import PictureRequest

    folder, models = repository / "pictures", InProcessModels(repository)
    program = load_program(Settings("pictures", folder / "1", read_config(folder)))
    request = PictureRequest(SUBJECT, steps=STEPS, guidance_scale=guidance, seed=SEED)
    *_, answer = program.run(Call(encode(request), models))
    picture = read(PictureRequest.events, answer, "pictures")
    assert isinstance(picture, Picture)
    assert psnr_db(picture.picture, painted(checkpoint, guidance)) > 60


def test_networks_are_exported_and_verified_in_half_precision(checkpoint: Path, tmp_path: Path) -> None:
    options = ExportOptions(
        str(checkpoint), tmp_path, components=("denoiser", "vae_decoder"), precision=Precision.FP16
    )
    assert run_export(family_named("pictures"), options).placed


@pytest.mark.parametrize("guidance", [GUIDANCE, 1.0])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_picture_is_that_of_the_reference_pipeline(
    server: Server, checkpoint: Path, guidance: float, protocol: Literal["grpc", "http"]
) -> None:
    from slipway_pictures.request import PictureRequest

    url = server.grpc_url if protocol == "grpc" else server.http_url
    request = PictureRequest(SUBJECT, steps=STEPS, guidance_scale=guidance, seed=SEED)
    with Client(url, protocol) as client:
        *progress, picture = client.generate(request)
    assert [(event.step, event.steps) for event in progress if isinstance(event, Progress)] == [
        (step, STEPS) for step in range(1, STEPS + 1)
    ]
    assert isinstance(picture, Picture)
    assert psnr_db(picture.picture, painted(checkpoint, guidance)) > 60


def test_picture_is_a_file_when_the_command_line_asks(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    command = [sys.executable, "-m", "slipway_cli.root", "generate", "pictures", "--subject", str(SUBJECT)]
    command += ["--steps", str(STEPS), "--url", server.grpc_url, "--output", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "a picture, 64x64" in done.stdout
    with PIL.Image.open(path) as picture:
        assert picture.size == (64, 64)


def test_cancellation_and_deadline_stop_the_work(repository: Path) -> None:
    from slipway_pictures.request import PictureRequest

    folder, models = repository / "pictures", InProcessModels(repository)
    program = load_program(Settings("pictures", folder / "1", read_config(folder)))
    left: list[bool] = []
    request = PictureRequest(SUBJECT, steps=STEPS)
    responses = program.run(Call(encode(request), models, is_cancelled=lambda: bool(left)))
    next(responses)
    left.append(True)
    with pytest.raises(Cancelled, match=f"before step 2 of {STEPS}"):
        next(responses)
    with pytest.raises(DeadlineExceeded, match="time limit"):
        list(program.run(Call(encode(replace(request, timeout_s=1e-6)), models)))


def test_field_is_refused_by_its_name(server: Server, installed: Path) -> None:
    from slipway_pictures.request import PictureRequest

    with pytest.raises(InvalidRequest, match="subject must be 0 to 999, got 1000"):
        PictureRequest(1000)


def test_load_needs_no_table_of_families(
    server: Server, installed: Path, shared: Path, tmp_path: Path
) -> None:
    line = "--family pictures --users 2 --field pictures.steps=2 --seconds 3 --cancel-share 0.3"
    done = load_environment(shared).load(tmp_path, server.grpc_url, line)
    assert done.code == 0, done.output
    whole = done.whole("pictures")
    assert set(whole["ended"]) <= {"answered", "cancelled"}, whole
    assert whole["measures"]["step_s"]["count"] == 2 * whole["measures"]["latency_s"]["count"] > 0


@pytest.mark.long
def test_capacity_is_planned_from_a_measured_saturation(
    server: Server, installed: Path, shared: Path, tmp_path: Path
) -> None:
    environment = load_environment(shared)
    saturate = (
        f"slipway saturate --url {server.grpc_url} --family pictures --users 2 --field pictures.steps=2"
    )
    saturate += f" --field pictures.steps=2 --seconds 3 --output {tmp_path}"
    found = environment.run(*saturate.split())
    assert found.returncode == 0 and "| `pictures` |" in found.stdout, found.stdout
    capacity = f"slipway capacity --measured {tmp_path}/pictures.json --each-s 60 --p95-s 5 --users 10"
    planned = environment.run(*capacity.split())
    assert planned.stdout.startswith("10 users: 1 replicas"), planned.stdout


def test_soak_sends_good_bad_and_abandoned_requests(server: Server, installed: Path) -> None:
    kinds = of_families(all_kinds(60.0, {"pictures": {"steps": 2}}), ["pictures"])
    assert server.server_id is not None
    result = soak_at(server.grpc_url, server.server_id, kinds, Options(requests=40, callers=2, rest_s=0))
    # So few requests tell nothing of a leak.
    broken = [words for words in result.broken if not words.startswith("memory at the end")]
    assert not broken, [each for each in result.run.sent if each.ended == FAILED]
    assert {"bad, right", "good, right", "left, right"} == set(counts(result.run))
