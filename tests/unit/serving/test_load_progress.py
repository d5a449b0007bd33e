"""What a starting server says of its models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_serving.system.server_processes import ID_VARIABLE
from slipway_serving.triton.start.load_progress import LoadProgress

BEGUN = 'I1120 22:20:10.567780 4696 model_lifecycle.cc:472] "loading: {}:1"\n'
LOADED = "I1120 22:23:45.645758 5559 model_lifecycle.cc:839] \"successfully loaded '{}'\"\n"


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Models of 2 and 200 MB."""
    for name, size in {"small": 2_000_000, "large": 200_000_000}.items():
        version = tmp_path / name / "1"
        version.mkdir(parents=True)
        with (version / "model.onnx").open("wb") as file:
            file.truncate(size)
    return [tmp_path / "large", tmp_path / "small"]


@pytest.fixture
def stub() -> Iterator[str]:
    """The id of a server with a process that is told the name of an instance of `large`."""
    command = [sys.executable, "-c", "input()", "large_0_1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={ID_VARIABLE: "slipway-loading-"}) as process:
        yield "slipway-loading-"
        process.communicate(b"\n", timeout=60)


def test_loading_says_each_begin_and_end_once(folders: list[Path]) -> None:
    said: list[str] = []
    now = iter([0.0, 0.0, 1.0, 2.5, 3.0])
    loading = LoadProgress(folders, "none-", said.append, clock=lambda: next(now))
    log = BEGUN.format("large")
    for more in ("", BEGUN.format("small"), LOADED.format("small"), LOADED.format("large")):
        log += more
        loading.update(log)
    assert said == [
        "loading large (1 of 2, 0.2 GB on disk)",
        "loading small (2 of 2, 2.0 MB on disk)",
        "loaded small (1 of 2, after 1.5 s)",
        "loaded large (2 of 2, after 3.0 s)",
    ]


def test_loading_says_how_far_a_model_is_when_it_takes_long(folders: list[Path], stub: str) -> None:
    said: list[str] = []
    now = iter([0.0, 0.0, 2.0, 6.0, 7.0])
    loading = LoadProgress(folders, stub, said.append, clock=lambda: next(now))
    for _ in range(4):
        loading.update(BEGUN.format("large"))
    first, later = said
    assert first == "loading large (1 of 2, 0.2 GB on disk)"
    assert later.startswith("0 of 2 loaded; loading large for 6 s, ")
    assert later.endswith(" MB in memory")
    assert " 0.0 MB in memory" not in later


def test_loading_says_nothing_of_how_far_when_a_load_has_failed(folders: list[Path]) -> None:
    said: list[str] = []
    now = iter([0.0, 0.0, 60.0])
    loading = LoadProgress(folders, "none-", said.append, clock=lambda: next(now))
    log = BEGUN.format("large")
    loading.update(log)
    loading.update(log + "I1120 22:21:35.7 4884 model_lifecycle.cc:777] \"failed to load 'large'\"\n")
    assert said == ["loading large (1 of 2, 0.2 GB on disk)"]
