"""Plans of TensorRT that are refused before a start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_engine_file import FACTS, engine

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.tensorrt.engine_file import facts_file
from slipway_serving.triton.start import plan_check
from slipway_serving.triton.start.plan_check import check_plans, installed_tensorrt


def model(repository: Path, name: str, version: tuple[int, ...] = (11, 3, 0, 99), size: int = 64) -> Path:
    """Write a model with a plan that says it has 64 bytes, and return its folder."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(engine(b"ftrt", version, size))
    facts = replace(
        FACTS, library="tensorrt", version=".".join(map(str, version)), targets=("sm90",), engine_bytes=64
    )
    (folder / facts_file()).write_text(json.dumps(facts.to_json()), encoding="utf-8")
    return folder.parent


def machine(monkeypatch: pytest.MonkeyPatch, version: str | None, gpus: list[tuple[int, int]]) -> None:
    monkeypatch.setattr(plan_check, "installed_tensorrt", lambda: version)
    monkeypatch.setattr(plan_check, "compute_capabilities", lambda: gpus)


def test_plan_that_fits_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, "11.3.0", [(9, 0)])
    check_plans([model(tmp_path, "net")])
    machine(monkeypatch, None, [])
    check_plans([tmp_path / "net"])


def test_every_plan_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, "11.4.0", [(8, 9)])
    cut, old = model(tmp_path, "cut", size=40), model(tmp_path, "old")
    with pytest.raises(InvalidRequest) as error:
        check_plans([cut, old])
    said = str(error.value)
    assert "cut: engine model.plan: size must be 64 bytes, got 40" in said
    assert "old: the plan must be of TensorRT 11.4.0, got one of 11.3.0" in said
    assert "old: the plan must be for sm89, got one for sm90" in said


def test_version_of_the_library_is_that_of_its_file(tmp_path: Path) -> None:
    assert installed_tensorrt([tmp_path]) is None
    (tmp_path / "libnvinfer.so.11.3.0").touch()
    (tmp_path / "libnvinfer.so.11").touch()
    assert installed_tensorrt([tmp_path]) == "11.3.0"
