"""What a server would refuse, the export refuses; what the export would refuse, `--plan` refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from server_fixtures import write_model
from torch import nn

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.commands.plan_commands import print_plan
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.repository.load_check import check_loadable
from slipway_export.sizing.cost import counted
from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest

PREPROCESSOR = "preprocessor_config.json"


@pytest.fixture
def ast_8_khz(tmp_path: Path) -> Iterator[Path]:
    """Return a tiny AST whose feature extractor takes 8 kHz."""
    folder = tmp_path / "ast"
    folder.mkdir()
    family_named("wakeword").presets["tiny"].write(folder, 0)
    content = json.loads((folder / PREPROCESSOR).read_text())
    (folder / PREPROCESSOR).write_text(json.dumps({**content, "sampling_rate": 8000}))
    yield folder


def test_ast_is_refused_by_the_plan_when_its_sample_rate_is_not_that_of_the_server(ast_8_khz: Path) -> None:
    family = family_named("wakeword")
    with (
        open_checkpoint(family, str(ast_8_khz)) as checkpoint,
        pytest.raises(InvalidRequest, match=r"sampling_rate of .* must be 16000, .* got 8000"),
    ):
        family.plan(checkpoint, family.axes)


def test_staged_model_is_refused_when_its_program_refuses_its_files(ast_8_khz: Path, tmp_path: Path) -> None:
    program = "slipway_serving.families.wakeword.decide:WakewordDecide"
    config = f'parameters {{ key: "program" value {{ string_value: "{program}" }} }}'
    version = write_model(tmp_path / "staged", "wakeword_decide", None, config, backend="python")
    shutil.copy(ast_8_khz / PREPROCESSOR, version)
    with pytest.raises(InvalidRequest, match="wakeword_decide: .* sampling_rate must be 16000"):
        check_loadable(tmp_path / "staged", ["wakeword_decide"], tmp_path)


class _Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, ::2]


def test_network_is_refused_when_its_output_has_another_shape_than_its_description() -> None:
    shape = ("batch", 8)
    component = Component(
        name="halved",
        inputs=(TensorSpec("x", DType.FLOAT32, shape),),
        outputs=(TensorSpec("y", DType.FLOAT32, shape),),
        axes=(Axis("batch", 1, 2, 4),),
        load=lambda *_: _Halved(),
        tolerance={Precision.FP32: Tolerance(max_abs=1.0, relative_l2=1.0, cosine=0.0)},
    )
    with pytest.raises(InvalidRequest, match=r"halved: y .* shape \[2, 8\] at batch=2, got \[2, 4\]"):
        counted(component, [{"batch": 2}])


def test_plan_is_refused_when_the_export_would_refuse_its_options(tmp_path: Path) -> None:
    options = ExportOptions(checkpoint="tiny", repository=tmp_path / "models", axes=(Axis("batch", 1, 1, 1),))
    with pytest.raises(InvalidRequest, match="axis batch of .* must include 1 to 16"):
        print_plan(family_named("wakeword"), options)
