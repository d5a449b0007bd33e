"""The summary of an export in a configuration, as a client reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.repository.told_facts import write_facts
from slipway_serving.protocol.export_facts import ExportFacts, ParitySummary


def row(max_abs: float, relative_l2: float, cosine: float) -> dict[str, Any]:
    bound = {"max_abs": 1e-3, "relative_l2": 1e-4, "cosine": 0.99999, "row_cosine": None}
    return {"max_abs": max_abs, "relative_l2": relative_l2, "cosine": cosine, "bound": bound}


def told(folder: Path, **changes: Any) -> ExportFacts:
    """The facts that a client reads after an export wrote them."""
    facts = {
        "engine": "onnxruntime",
        "precision": {"model": "fp32"},
        "parity": [row(1e-6, 1e-5, 0.9999999), row(5e-4, 1e-6, 0.999999)],
        "not_verified": [{}],
    }
    config = folder / "config.pbtxt"
    config.write_text('name: "net"\nparameters { key: "axes" value { string_value: "batch=1:2" } }\n')
    write_facts(config, facts | changes)
    parsed = text_format.Parse(config.read_text(), pb.ModelConfig())
    parameters = {name: value.string_value for name, value in parsed.parameters.items()}
    assert parameters["axes"] == "batch=1:2"
    return ExportFacts.read(parameters)


def test_server_tells_the_worst_of_all_parity_rows(tmp_path: Path) -> None:
    parity = ParitySummary(2, 1, 5e-4, 1e-5, 0.999999, 0.5)
    assert told(tmp_path) == ExportFacts("onnxruntime", "fp32", parity)


def test_server_tells_the_precision_of_each_graph_when_they_differ(tmp_path: Path) -> None:
    mixed = told(tmp_path, precision={"first": "fp32", "next": "int8"}, parity=[])
    assert (mixed.precision, mixed.parity) == ("first=fp32 next=int8", None)
    assert told(tmp_path, precision={"first": "int8", "next": "int8"}).precision == "int8"


def test_parity_of_another_form_is_not_told() -> None:
    for text in ("", "points=1", "points=x left_out=0 max_abs=1 relative_l2=1 cosine=1 of_bound=1"):
        assert ParitySummary.parse(text) is None
    text = "points=1 left_out=0 max_abs=nan relative_l2=1 cosine=1 of_bound=1"
    assert ParitySummary.parse(text) is None
    assert ExportFacts.read({}) == ExportFacts()
