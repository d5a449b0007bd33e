"""One small server for all faults that need no family, and the health that must be back after each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from health import Health, healthy
from server_fixtures import affine, any_port, echo, lookup, tensor, write_model, write_sleeper

from slipway_serving.triton.server import Server

TOLD = """
class Told:
    reports_requests = False

    def __init__(self, settings):
        pass

    def run(self, call):
        steps = call.tensors["steps"]
        if steps[0] == 7:
            raise RuntimeError("a secret of the model")
        if steps[0] == 8:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield {"y": steps * 2}

    def close(self):
        pass
"""
ADAPTED = """
import triton_python_backend_utils as pb_utils
from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
"""


def write_cheap_models(repository: Path) -> None:
    """Write models that load in a second: three graphs, one that sleeps, one that our adapter runs."""
    batched = "max_batch_size: 8\n"
    queue = "dynamic_batching { max_queue_delay_microseconds: 100000 }\n"
    write_model(
        repository,
        "affine",
        affine(),
        batched + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]"),
    )
    write_model(
        repository,
        "lookup",
        lookup(),
        batched + queue + tensor("input", "index", "INT64", "[1]") + tensor("output", "y", "FP32", "[1]"),
    )
    write_model(
        repository,
        "echo",
        echo(),
        tensor("input", "x", "STRING", "[-1]") + tensor("output", "y", "STRING", "[-1]"),
    )
    write_sleeper(repository)
    inputs = tensor("input", "steps", "INT64", "[1]") + tensor(
        "input", "prompt", "STRING", "[1]", "optional: true"
    )
    program = 'parameters { key: "program" value { string_value: "told_program:Told" } }\n'
    version = write_model(
        repository, "told", None, inputs + tensor("output", "y", "INT64", "[1]") + program, backend="python"
    )
    (version / "told_program.py").write_text(TOLD)
    (version / "model.py").write_text(ADAPTED)
    (repository.parent / "limits.yaml").write_text("told: {steps: 10, prompt: 100}\n")


@pytest.fixture(scope="module")
def cheap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Triton of cheap models whose administration takes orders from who knows its key."""
    repository = tmp_path_factory.mktemp("cheap") / "models"
    write_cheap_models(repository)
    limits = repository.parent / "limits.yaml"
    with Server(any_port(repository, model_control="explicit", limits=limits)) as running:
        yield running


@pytest.fixture
def health(cheap: Server) -> Iterator[Health]:
    """What the small server's health was before a test; it must be back after it."""
    with healthy(cheap) as before:
        yield before
