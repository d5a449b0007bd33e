"""`slipway imu` and `slipway imu-recording` without a server: units, files of any name, what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from airimu_fixtures import BOUND, record, small_repository

from slipway_cli.root import run
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.airimu.conf import CONF_FILE, WEIGHTS_FILE
from slipway_export.families.airimu.family import FAMILY

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def repository(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_repository(shared, tmp_path_factory.mktemp("airimu"))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording with ground truth, in a folder without earlier results."""
    monkeypatch.chdir(tmp_path)
    return record(tmp_path)


def test_imu_command_takes_units_that_are_stated(
    repository: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = recorded / "mav0/imu0/data.csv"
    rows = np.loadtxt(data, delimiter=",", comments="#")[1000:1400]
    rows[200:, 0] += 1e9
    other = recorded / "other.csv"
    scaled = np.hstack([rows[:, :1] / 1e3, np.degrees(rows[:, 1:4]), rows[:, 4:] / 9.80665])
    np.savetxt(other, scaled, fmt=["%d"] + ["%.15g"] * 6, delimiter=";")
    command = ["imu", str(other), "--onnx", str(repository / "airimu_codenet/1/model.onnx")]
    output = recorded / "out.csv"
    assert run([*command, "-o", str(output)]) == 2
    refused = capsys.readouterr().err
    for fix in ("--time-unit us, which makes it 200 Hz", "--acceleration-unit g", "--rate-unit"):
        assert fix in refused
    units = ["--time-unit", "us", "--rate-unit", "deg/s", "--acceleration-unit", "g"]
    assert run([*command, "-o", str(output), *units]) == 0
    assert (
        "other.csv: 1 gaps of more than 15 ms, the longest of 1 s after frame 199" in capsys.readouterr().err
    )
    # The network of `tiny` corrects by less than a thousandth.
    np.testing.assert_allclose(np.loadtxt(output, delimiter=",", comments="#")[:, :7], rows, atol=1e-2)


def test_imu_command_compares_with_files_of_any_name(
    repository: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_checkpoint(FAMILY, "tiny") as checkpoint:
        conf, ckpt = recorded / "my experiment.conf", recorded / "best.of.all"
        shutil.copy(checkpoint.path / CONF_FILE, conf)
        shutil.copy(checkpoint.path / WEIGHTS_FILE, ckpt)
    options = ["--onnx", str(repository / "airimu_codenet/1/model.onnx"), "-o", str(recorded / "out.csv")]
    command = ["imu", str(recorded), *options, "--overwrite", "--verbose", "--conf", str(conf)]
    assert run([*command, "--ckpt", str(ckpt)]) == 0
    first = re.search(r"ONNX against PyTorch, max abs difference: acc (\S+) m/s²", capsys.readouterr().out)
    assert first is not None
    assert 0 <= float(first[1]) <= BOUND
    assert run(command) == 2
    assert "--ckpt must be given with --conf, got none" in capsys.readouterr().err


def without_heavy_libraries(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command where nothing is installed but what the extra `signals` brings."""
    missing = (
        "torch",
        "diffusers",
        "transformers",
        "huggingface_hub",
        "onnx",
        "pypose",
        "pyhocon",
        "pytriton",
    )
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from slipway_cli.root import run
sys.exit(run(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_imu_command_by_a_graph_needs_no_export_libraries(repository: Path, recorded: Path) -> None:
    graph = ["--onnx", str(repository / "airimu_codenet/1/model.onnx"), "-o", str(recorded / "out.csv")]
    done = without_heavy_libraries(["imu", str(recorded), *graph, "--plot", str(recorded / "plot.png")])
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    assert "ROE over 200 frames" in done.stdout
    with_checkpoint = ["imu", str(recorded), *graph, "--checkpoint", "tiny", "--verbose", "--overwrite"]
    refused = without_heavy_libraries(with_checkpoint)
    assert refused.returncode == 2
    assert 'which is not installed; try pip install ".[export,signals]" in a checkout' in refused.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--step-size", "2000"], "--step-size must be 1 to the window size, 1000, got 2000"),
        (["--window-size", "0"], "--window-size must be 1 or more, got 0"),
        (["--verbose"], "--verbose and --checkpoint must be given together"),
        (["--conf", "a.conf", "--ckpt", "b.ckpt"], "--verbose and --checkpoint must be given together"),
        (["--verbose", "--checkpoint", "tiny", "--conf", "a.conf"], "must be left out with --conf, got both"),
        (["--onnx", "x.onnx", "--url", "here"], "--onnx and --url must not be given together"),
        (["--output", "nowhere/x.csv"], "--output must end in .csv and be in a folder that exists"),
        (["--plot", "x.txt"], "--plot must end in .png, .svg, .pdf"),
        (["--onnx", "x.onnx"], "onnx must be REPOSITORY/airimu_codenet/1/model.onnx"),
        (["--ground-truth", "none.csv"], "none.csv: must be a CSV of numbers"),
        (["--acceleration-unit", "mg"], "'mg' is not one of 'm/s^2', 'g'"),
    ],
)
def test_imu_command_refuses_bad_options(
    recorded: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert run(["imu", str(recorded), *options]) == 2
    assert problem in capsys.readouterr().err


def test_imu_recording_command_keeps_what_is_there(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["imu-recording", str(recorded)]) == 2
    assert "output must be an empty or new folder" in capsys.readouterr().err
