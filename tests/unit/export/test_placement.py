"""Places and precisions of single components as they are written and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipway_export.engines.requested import parse_precisions
from slipway_export.options import ExportOptions
from slipway_export.repository.placement import (
    Placement,
    check_placements,
    parse_placements,
    set_instances,
    stage_remote,
)
from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.in_process import read_config
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.remote import RemoteModel

BOUNDS = {Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.9999)}
SCALE = TensorSpec("scale", DType.FLOAT32, ("batch",))
NET = Component(
    "net",
    (TensorSpec("x", DType.FLOAT32, ("batch", 4)), SCALE),
    (TensorSpec("y", DType.FLOAT32, ("batch", 4)),),
    (Axis("batch", 1, 2, 8),),
    lambda *_: None,  # type: ignore[arg-type, return-value]
    BOUNDS,
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cpu", Placement("cpu")),
        ("2xcpu", Placement("cpu", instances=2)),
        ("gpu", Placement("gpu")),
        ("3xgpu:0,12", Placement("gpu", (0, 12), 3)),
        ("grpc://text.models:8001", Placement("server", server="text.models:8001")),
        ("2xgrpc://10.0.0.1:8001", Placement("server", instances=2, server="10.0.0.1:8001")),
    ],
)
def test_place_is_read_as_it_is_written(text: str, place: Placement) -> None:
    assert Placement.parse(text) == place


@pytest.mark.parametrize(
    "text", ["", "tpu", "0xcpu", "cpu:1", "gpu:", "gpu:x", "-1xgpu", "grpc://host", "grpc://", "host:8001"]
)
def test_place_is_refused_when_it_is_no_place(text: str) -> None:
    with pytest.raises(InvalidRequest, match="place must be cpu, gpu, gpu:0,1 or grpc://HOST:PORT"):
        Placement.parse(text)


def test_places_are_of_one_component_each() -> None:
    assert parse_placements(("text-encoder=cpu", "net=gpu:1")) == {
        "text_encoder": Placement("cpu"),
        "net": Placement("gpu", (1,)),
    }
    with pytest.raises(InvalidRequest, match="place must be NAME=WHERE, got 'cpu'"):
        parse_placements(("cpu",))
    with pytest.raises(InvalidRequest, match="place of net must be given once"):
        parse_placements(("net=cpu", "net=gpu"))


def test_place_is_refused_when_the_component_cannot_be_there() -> None:
    cut = replace(NET, name="decoder", graph="first")
    check_placements({"net": Placement("server", server="h:1"), "decoder": Placement("cpu")}, (NET, cut))
    with pytest.raises(InvalidRequest) as refused:
        check_placements({"nte": Placement("cpu"), "decoder": Placement("gpu", instances=2)}, (NET, cut))
    assert "place must name an exported component (net, decoder), got nte" in str(refused.value)
    assert "place of decoder must be one instance on this server" in str(refused.value)
    with pytest.raises(InvalidRequest, match="place of decoder must be one instance on this server"):
        check_placements({"decoder": Placement("server", server="h:1")}, (cut,))


def test_instances_of_a_configuration_are_the_place_and_nothing_else_changes(tmp_path: Path) -> None:
    config = tmp_path / "config.pbtxt"
    config.write_text(
        'backend: "python"\ninstance_group [ { count: 4 kind: KIND_AUTO } ]\nmax_batch_size: 3\n'
    )
    set_instances(config, Placement("gpu", (1, 2), 2))
    (group,) = read_config(tmp_path).pop("instance_group")
    assert group == {"count": 2, "kind": "KIND_GPU", "gpus": [1, 2]}
    assert {"backend": "python", "max_batch_size": 3}.items() <= read_config(tmp_path).items()


def test_remote_model_has_the_tensors_that_callers_of_the_other_know(tmp_path: Path) -> None:
    stage_remote(NET, "toy_net", Placement("server", instances=2, server="text:8001"), tmp_path)
    config = read_config(tmp_path / "toy_net")
    assert [(entry["name"], entry["dims"]) for entry in config["input"]] == [("x", ["4"]), ("scale", ["1"])]
    # Whoever has the graph reshapes; here [batch, 1] goes on as it came.
    assert "reshape" not in config["input"][1]
    assert (config["max_batch_size"], config["instance_group"][0]["count"]) == (8, 2)
    settings = Settings("toy_net", tmp_path / "toy_net" / "1", config)
    assert settings.parameters["server"] == "text:8001"
    RemoteModel(settings).close()
    config["parameters"]["server"]["string_value"] = "text"
    with pytest.raises(
        InvalidRequest, match="parameter server of config.pbtxt must be HOST:PORT, got 'text'"
    ):
        RemoteModel(Settings("toy_net", tmp_path, config))


def test_precision_of_one_component_goes_before_that_of_all() -> None:
    of_all, of_one = parse_precisions(["fp16", "text-encoder=int8"])
    assert (of_all, of_one) == (Precision.FP16, {"text_encoder": Precision.INT8})
    assert parse_precisions([]) == (Precision.FP32, {})
    options = ExportOptions("tiny", Path("models"), precision=of_all, precisions={"net": Precision.INT8})
    assert options.requested_precision(NET) is Precision.INT8
    assert options.requested_precision(replace(NET, name="other")) is Precision.FP16


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["int3"], "precision must be one of fp64, .*int4, or NAME=PRECISION for a component, got 'int3'"),
        (["=int8"], "got '=int8'"),
        (["net="], "got 'net='"),
        (["fp16", "fp32"], "precision of all must be given once, got 'fp32' as well"),
        (["net=fp16", "net=fp32"], "precision of net must be given once"),
    ],
)
def test_precisions_are_refused_by_what_was_typed(texts: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_precisions(texts)
