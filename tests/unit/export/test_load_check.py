"""The last step of an export: a model that a server would refuse is refused before it is placed."""

from __future__ import annotations

from pathlib import Path

import pytest
from server_fixtures import affine, overridable, tensor, timed, write_model

from slipway_export.repository.load_check import check_loadable, file_signature
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime import session
from slipway_serving.runtime.backends.onnxruntime.signature import graph_signature

Y = tensor("output", "y", "FP32", "[4]")
X = tensor("input", "x", "FP32", "[4]")
FIXED = tensor("input", "x", "FP32", "[1, 4]") + tensor("output", "y", "FP32", "[1, 4]")
ENSEMBLE = """platform: "ensemble" max_batch_size: 8
ensemble_scheduling { step [ { model_name: "member" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }
"""


def test_model_that_loads_is_let_through(tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    write_model(staged, "batched", affine(), "max_batch_size: 8\n" + X + Y)
    write_model(staged, "fixed", affine(batch=1), FIXED)
    (staged / "whole").mkdir()
    (staged / "whole" / "config.pbtxt").write_text(ENSEMBLE.replace("member", "batched"))
    check_loadable(staged, ["batched", "fixed", "whole"], tmp_path)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            "max_batch_size: 8\n" + X + Y,
            "input x must have a dynamic first axis in the graph for max_batch_size 8, got [1, 4]",
        ),
        (FIXED.replace("FP32", "FP16", 1), "input x must be TYPE_FP32 as in the graph, got TYPE_FP16"),
        (FIXED + 'parameters { key: "axes" value { string_value: "batch" } }', "entries AXIS=MIN:MAX"),
        (
            FIXED + 'parameters { key: "enable_mem_arena" value { string_value: "x" } }',
            "arena must be",
        ),
        ("no_such_field: 1", "must have a config.pbtxt that Triton can read"),
    ],
)
def test_model_is_refused_as_the_server_would(tmp_path: Path, config: str, problem: str) -> None:
    write_model(tmp_path, "m", affine(batch=1), config)
    with pytest.raises(InvalidRequest) as refusal:
        check_loadable(tmp_path, ["m"], tmp_path)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("backend", "more", "problem"),
    [
        (
            "python",
            'parameters { key: "program" value { string_value: "slipway_serving:No" } }',
            "program must be",
        ),
        ("openvino", "", "backend must be onnxruntime, tensorrt or python, got 'openvino'"),
    ],
)
def test_model_of_another_backend_is_refused(tmp_path: Path, backend: str, more: str, problem: str) -> None:
    write_model(tmp_path, "m", None, X + Y + more, backend=backend)
    with pytest.raises(InvalidRequest) as refusal:
        check_loadable(tmp_path, ["m"], tmp_path)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (None, "whole: member must be in the repository, got no such model"),
        ("max_batch_size: 4\n" + X + Y, "whole: max_batch_size of member must be at least 8, got 4"),
        (
            "max_batch_size: 8\n" + X.replace('"x"', '"z"') + Y,
            "whole: input of member must be one of z, got x",
        ),
    ],
)
def test_ensemble_is_refused_when_a_member_does_not_fit(
    tmp_path: Path, member: str | None, problem: str
) -> None:
    staged, repository = tmp_path / "staged", tmp_path / "repository"
    (staged / "whole").mkdir(parents=True)
    (staged / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    if member is not None:
        write_model(repository, "member", affine(), member)
    with pytest.raises(InvalidRequest) as refusal:
        check_loadable(staged, ["whole"], repository)
    assert problem in str(refusal.value)


@pytest.mark.parametrize("graph", [affine(), affine(batch=1), timed(), overridable()])
def test_tensors_of_a_file_are_those_of_a_session(tmp_path: Path, graph: object) -> None:
    version = write_model(tmp_path, "m", graph, "")  # type: ignore[arg-type]
    config = {"name": "m"}
    loaded = session.load(config, version, session.providers(config, "CPU", 0))
    assert file_signature(version / "model.onnx") == graph_signature(loaded)


def test_program_is_let_through_when_this_machine_lacks_a_package_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy.py").write_text("import no_such_package_of_a_server\n\nclass Program: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = 'parameters { key: "program" value { string_value: "needy:Program" } }'
    write_model(tmp_path / "staged", "m", None, config, backend="python")
    check_loadable(tmp_path / "staged", ["m"], tmp_path)
