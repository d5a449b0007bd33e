"""Files of an engine: its header, the file of its facts, and the machine that can run it."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.tensorrt.engine_file import (
    EngineFacts,
    EngineHeader,
    check_engine,
    check_machine,
    facts_file,
    profile_of,
    read_header,
)
from slipway_serving.runtime.tensorrt.library import Library

FACTS = EngineFacts(
    library="tensorrt-rtx",
    version="1.7.1.116",
    targets=("sm89", "sm120"),
    graph="0" * 64,
    options={},
    profiles={
        "opt": {"x": ((2, 4), (2, 4), (2, 4))},
        "flexible": {"x": ((1, 4), (2, 4), (8, 4))},
    },
    inputs=({"name": "x", "onnx_type": "tensor(float)", "shape": ["batch", 4]},),
    outputs=({"name": "y", "onnx_type": "tensor(float16)", "shape": ["batch", 4]},),
    engine_bytes=64,
    built={},
)


def engine(magic: bytes = b"vtrt", version: tuple[int, ...] = (1, 7, 1, 116), size: int = 64) -> bytes:
    """Return the bytes of a file that begins like an engine."""
    start = magic + bytes(12) + struct.pack("<Q", size) + bytes(version)
    return start + bytes(size - len(start))


def placed(folder: Path, content: bytes, facts: EngineFacts = FACTS) -> Path:
    """Write an engine and its facts into a version folder."""
    (folder / "model.engine").write_bytes(content)
    (folder / facts_file()).write_text(json.dumps(facts.to_json()), encoding="utf-8")
    return folder


def test_header_has_library_version_and_size(tmp_path: Path) -> None:
    path = tmp_path / "a.engine"
    path.write_bytes(engine())
    assert read_header(path) == EngineHeader(Library.RTX, "1.7.1.116", 64)
    path.write_bytes(engine(b"ftrt", (10, 16, 1, 11)))
    assert read_header(path) == EngineHeader(Library.TENSORRT, "10.16.1.11", 64)


def test_complete_engine_is_accepted_with_its_tensors(tmp_path: Path) -> None:
    signature = check_engine(placed(tmp_path, engine()), "net").signature
    assert signature.inputs["x"].dims == [-1, 4]
    assert signature.outputs["y"].data_type == "TYPE_FP16"


@pytest.mark.parametrize(
    ("content", "changes", "said"),
    [
        (b"onnx, not an engine, though it is long enough", {}, "must be an engine .*, got one that begins"),
        (engine()[:20], {}, "must be an engine"),
        (engine()[:-1], {}, "net: engine model.engine: size must be 64 bytes, got 63"),
        (engine(version=(1, 6, 0, 0)), {}, "version must be 1.7.1.116 as .* says, got 1.6.0.0"),
        (engine(b"ftrt"), {}, "library must be tensorrt-rtx as .* says, got tensorrt"),
        (engine(), {"stripped": True}, "model.onnx must be beside an engine without weights"),
        (engine(version=(1, 6, 0, 0))[:40], {}, r"version must be .* \| size must be 64 bytes, got 40"),
    ],
)
def test_damaged_engine_is_refused_by_name(
    tmp_path: Path, content: bytes, changes: dict[str, Any], said: str
) -> None:
    placed(tmp_path, content, replace(FACTS, **changes))
    with pytest.raises(InvalidRequest, match=said):
        check_engine(tmp_path, "net")


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    placed(tmp_path, engine())
    (tmp_path / "model.engine").unlink()
    said = r"model\.engine: must be an engine of TensorRT, got No such file"
    with pytest.raises(InvalidRequest, match=said):
        check_engine(tmp_path, "net")
    (tmp_path / facts_file()).unlink()
    with pytest.raises(InvalidRequest, match=r"model\.engine\.json: must be the JSON file"):
        check_engine(tmp_path, "net")


@pytest.mark.parametrize(
    ("capability", "version", "said"),
    [
        (None, "1.7.1.116", "net: a TensorRT-RTX engine for sm89, sm120 must run on such a GPU, got a"),
        ((9, 0), "1.7.1.116", "got sm90; try `slipway engines build` with --target sm90"),
        ((8, 9), None, "must run with that version, got no such library"),
        ((8, 9), "1.6.0.1", "must run with that version, got version 1.6.0.1"),
    ],
)
def test_machine_that_cannot_run_an_engine_is_named(
    capability: tuple[int, int] | None, version: str | None, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as error:
        check_machine(FACTS, "net", capability, version)
    assert "\n" not in str(error.value)


def test_machine_that_fits_is_accepted() -> None:
    check_machine(FACTS, "net", (12, 0), "1.7.1.116.post1")


def test_first_profile_that_contains_the_shapes_is_chosen() -> None:
    assert profile_of(FACTS, {"x": (2, 4)}, "net") == 0
    assert profile_of(FACTS, {"x": (7, 4)}, "net") == 1


def test_size_outside_every_profile_is_named() -> None:
    with pytest.raises(
        InvalidRequest, match="net: dimension 0 of x must be 1 to 8 in profile flexible of the engine, got 9"
    ):
        profile_of(FACTS, {"x": (9, 4)}, "net")
