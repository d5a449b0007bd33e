"""An operator's limits: read once per model, checked on every request by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.limits import Limits, model_limits, read_limits
from slipway_serving.runtime.program import Settings
from slipway_serving.system.server_folder import FOLDER_VARIABLE
from slipway_serving.triton.server import Server, ServerConfig

CONFIG: dict[str, Any] = {
    "input": [
        {"name": "prompt", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "steps", "data_type": "TYPE_INT64", "dims": ["1"]},
        {"name": "frames", "data_type": "TYPE_INT64", "dims": ["1"]},
        {"name": "signal", "data_type": "TYPE_FP32", "dims": ["-1", "3"]},
    ],
    "parameters": {"max_sessions": {"string_value": "8"}, "program": {"string_value": "a:B"}},
}
TEXT = 'sums: {steps: 20, prompt: 5, "frames*steps": 100, signal: 6, max_sessions: 2}\nother: {x: 1}\n'


def number(value: float) -> np.ndarray:
    return np.array([value])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "limits.yaml").write_text(TEXT)
    return tmp_path / "limits.yaml"


@pytest.fixture
def limits(file: Path) -> Limits:
    return model_limits("sums", file, CONFIG)[0]


GOOD = {"steps": number(20), "frames": number(5), "prompt": np.array([b"abcde"], object)}


def test_request_within_limits_passes(limits: Limits) -> None:
    limits.check("sums", GOOD, opening=True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"steps": number(21)}, "steps must be at most 20 on this server, got 21"),
        ({"prompt": np.array(["lake €".encode()], object)}, "prompt must be at most 5 on this server, got 8"),
        ({"frames": number(6)}, r"frames \* steps must be at most 100 on this server, got 120"),
        ({"signal": np.zeros((3, 3), np.float32)}, "signal must be at most 6 on this server, got 9"),
        ({"frames": number(float("nan"))}, r"frames \* steps must be at most 100"),
    ],
)
def test_request_above_a_limit_is_refused_by_name(
    limits: Limits, changes: dict[str, np.ndarray], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"sums: .*{text}"):
        limits.check("sums", GOOD | changes, opening=True)


def test_number_that_has_a_limit_must_be_given_since_its_default_may_be_above_it(limits: Limits) -> None:
    with pytest.raises(InvalidRequest, match="steps must be given on this server, where steps may be at mos"):
        limits.check("sums", {}, opening=True)
    limits.check("sums", {}, opening=False)


def test_parameters_of_a_model_are_replaced(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    arguments = {
        "model_name": "sums",
        "model_repository": "/models/sums",
        "model_version": "1",
        "model_config": json.dumps(CONFIG),
        "model_instance_name": "sums_0_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
    }
    assert Settings.from_triton(arguments).positive_integer("max_sessions") == 8
    monkeypatch.setenv("SLIPWAY_LIMITS", str(file))
    settings = Settings.from_triton({**arguments, "model_instance_name": "sums_0_1"})
    assert settings.positive_integer("max_sessions") == 2
    assert settings.limits.maximums == {"steps": 20, "prompt": 5, "frames * steps": 100, "signal": 6}
    assert Settings.from_triton({**arguments, "model_name": "another"}).limits.maximums == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1", "must map model names to limits"),
        ("sums: 3", "must map model names to limits"),
        ("sums: {steps: many}", "steps must be inputs joined by .*, got 'many'"),
        ("sums: {steps: true}", "got True"),
        ("sums: {steps: -1}", "got -1"),
        ('sums: {"steps + 1": 3}', r"steps \+ 1 must be inputs joined"),
        ("sums: {steps: 3", "must be a YAML file"),
        ("sums: !!python/object/apply:os.system [true]", "must be a YAML file"),
    ],
)
def test_file_that_is_no_limits_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "limits").write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        read_limits(tmp_path / "limits")


def test_limit_of_what_the_model_has_not_is_refused(tmp_path: Path) -> None:
    (tmp_path / "limits").write_text("sums: {stepz: 3, steps: 4, program: 1}")
    with pytest.raises(InvalidRequest, match=r"stepz must be one of .*steps.* program must be one of"):
        model_limits("sums", tmp_path / "limits", CONFIG)


def test_server_refuses_limits_of_models_that_it_does_not_serve(tmp_path: Path) -> None:
    (tmp_path / "models" / "sums").mkdir(parents=True)
    (tmp_path / "limits").write_text(TEXT)
    config = ServerConfig(tmp_path / "models", limits=tmp_path / "limits")
    with pytest.raises(InvalidRequest, match="limits must name models of the repository, got other; try sum"):
        Server(config).start()


def test_compose_gives_both_servers_one_file_which_limits_nothing_by_itself() -> None:
    root = Path(__file__).parents[3]
    services = yaml.safe_load((root / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name in ("triton", "triton-gpu"):
        (volume,) = (each for each in services[name]["volumes"] if "limits" in each)
        assert volume == "${LIMITS:-./docker/limits.yaml}:/limits.yaml:ro"
        assert " --limits /limits.yaml " in services[name]["command"]
    assert read_limits(root / "docker" / "limits.yaml") == {}
