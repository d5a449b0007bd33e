"""NVIDIA's perf_analyzer drives exported models with shapes read from their configurations alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytriton
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

PERF_ANALYZER = Path(sys.executable).with_name("perf_analyzer")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """perf_analyzer wants libb64 and libcudart by name; Triton's wheel carries both under hashed ones."""
    folder = tmp_path_factory.mktemp("libraries")
    carried = Path(pytriton.__file__).parents[1] / "nvidia_pytriton.libs"
    for name in ("libb64.so.0d", "libcudart.so.12"):
        stem, suffix = name.split(".", 1)
        (library,) = carried.glob(f"{stem}-*.{suffix}*")
        (folder / name).symlink_to(library)
    return os.environ | {"LD_LIBRARY_PATH": str(folder)}


def shape_flags(config: pb.ModelConfig) -> list[str]:
    """Return a --shape for every input with a free dimension, from the warm-up request."""
    (warmup,) = config.model_warmup
    return [
        f"--shape={tensor.name}:{','.join(map(str, warmup.inputs[tensor.name].dims))}"
        for tensor in config.input
        if -1 in tensor.dims
    ]


@pytest.mark.parametrize("model", ["wan_t2v_text_encoder", "wan_t2v_denoiser_high"])
def test_perf_analyzer_drives_model_from_its_configuration(
    server: Server, repository: Path, environment: dict[str, str], model: str
) -> None:
    config = text_format.Parse((repository / model / "config.pbtxt").read_text(), pb.ModelConfig())
    command = [
        PERF_ANALYZER, "-m", model, "-u", server.grpc_url, "-i", "grpc", "-b", "2",
        # Zeros are valid token ids; random 64-bit numbers are not.
        "--input-data", "zero", "--request-count", "10", *shape_flags(config),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Throughput:" in done.stdout
