"""The wheel as a user gets it: what is in it, what the bare install does, and that each extra suffices."""

from __future__ import annotations

import re
import signal
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image
from wheel_environments import ROOT, VARIABLES, Environment, build_wheel, make_environment

from slipway_cli import root

# Of each command that needs an extra: a command line that the bare install gets as far as its first package.
LACKING = {
    "checkpoint": ["checkpoint wakeword --output lacking"],
    "export": [
        f"export {name} --checkpoint tiny --repository r" for name in ("wan_t2v", "wakeword", "airimu")
    ],
    "verify": ["verify some"],
    "engines": ["engines check some.onnx"],
    "plan": ["plan some"],
    "serve": ["serve --repository some"],
    "play": ["play matrix_game --image some.png --actions w --output o.mp4"],
    "imu": ["imu recording"],
    "imu-recording": ["imu-recording lacking"],
    "listen": ["listen some.wav", "listen - --plot heard.png"],
    "train": ["train wakeword --name a --positive some --negative some --backbone tiny"],
    "gateway": ["gateway --data d", "gateway migrate --data d", "gateway keys list --data d"],
    "manage": ["manage --repository r"],
    "studio": ["studio --repository some"],
    "load": ["load --family wan_t2v --url localhost:1"],
    "saturate": ["saturate --family wan_t2v --url localhost:1"],
    "soak": ["soak --repository some"],
    "capacity": ["capacity --service-s 1 --each-s 9 --p95-s 1 --users 4"],
}
# Packages of a checkout that the wheel lacks, and calls of their commands with what the answer names.
CHECKOUT_ONLY = {"slipway_benchmarks", "slipway_recipes"}
REFUSED = {
    "bench": ("bench: the benchmarks", "loadtests"),
    "bench --help": ("bench: the benchmarks", "loadtests"),
    "bench video --rounds 1 -o out": ("bench: the benchmarks", "loadtests"),
    "train weights": ("train weights: the recipes of the demo checkpoints", "training"),
    "train weights airimu --output lacking": (
        "train weights: the recipes of the demo checkpoints",
        "training",
    ),
}
HEAVY = ("torch", "diffusers", "transformers", "onnx", "onnxruntime", "pytriton", "scipy", "matplotlib")

Make = Callable[[str | None], Environment]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes the environment of an extra, or the bare one, once."""
    made: dict[str | None, Environment] = {}

    def make(extra: str | None) -> Environment:
        if extra not in made:
            folder = tmp_path_factory.mktemp(extra or "bare") / "environment"
            made[extra] = make_environment(folder, wheel, extra)
        return made[extra]

    return make


@pytest.fixture(scope="module")
def bare(environment: Make) -> Environment:
    """The bare install, with the files that command lines name."""
    found = environment(None)
    (found.folder / "some/model").mkdir(parents=True)
    recording = found.folder / "recording/mav0/imu0/data.csv"
    recording.parent.mkdir(parents=True)
    recording.write_text("#t,x,y,z,x,y,z\n" + "".join(f"{t}0000000,0,0,0,0,0,9.8\n" for t in range(1, 9)))
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Editable install of this checkout, with the extra that the benchmarks need."""
    editable = build_wheel(tmp_path_factory.mktemp("editable"), editable=True)
    return make_environment(tmp_path_factory.mktemp("checkout") / "environment", editable, "loadtests")


def test_wheel_holds_only_what_has_the_products_name_when_built(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {path.name for path in ROOT.glob("*/slipway_*") if (path / "__init__.py").is_file()}
    # The trained checkpoints are a distribution of their own.
    packages -= {"slipway_demo", *CHECKOUT_ONLY}
    metadata = f"{wheel.name.split('-py3')[0]}.dist-info"
    assert {name.split("/")[0] for name in names} == {*packages, metadata}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    points = zipfile.ZipFile(wheel).read(f"{metadata}/entry_points.txt").decode()
    assert re.findall(r"^\[(\S+)\]\n(\S+) =", points, re.M) == [("console_scripts", "slipway")]


def test_wheel_holds_every_file_of_the_authored_models_when_built(wheel: Path) -> None:
    models = ROOT / "model_repository"
    files = {str(path.relative_to(models)) for path in models.rglob("*") if path.is_file()}
    written = {name for name in files if "__pycache__" not in name}
    assert any(name.endswith("config.pbtxt") for name in written)
    assert written <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.long
def test_demo_wheel_holds_the_trained_checkpoints_whole_when_built(tmp_path: Path) -> None:
    source = ROOT / "training/slipway_demo"
    names = set(zipfile.ZipFile(build_wheel(tmp_path, source)).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "."], capture_output=True, text=True, check=True, cwd=source
    ).stdout.split()
    assert {f"slipway_demo/{name}" for name in tracked if name != "pyproject.toml"} <= names
    assert "slipway_demo/airimu/README.md" in names


def test_bare_install_works_without_a_heavy_library_when_its_commands_run(bare: Environment) -> None:
    assert bare.slipway("--help").returncode == 0
    assert "wan_t2v: " in bare.slipway("families").stdout
    for command in (
        "ready --url localhost:1",
        "drain --metrics localhost:1",
        "generate wan_t2v x --url localhost:1",
    ):
        done = bare.slipway(command)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"error: [^\n]*localhost:1[^\n]*\n", done.stderr)
    done = bare.slipway("continue lacking.slipway --url localhost:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: lacking.slipway: [^\n]+\n", done.stderr)
    code = (
        "import importlib.util, slipway_client; slipway_client.Client\n"
        f"print(*(name for name in {HEAVY} if importlib.util.find_spec(name)))"
    )
    done = bare.run("python", "-c", code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", root.COMMANDS, ids=lambda command: command.name)
def test_bare_install_names_the_one_extra_when_a_command_needs_it(
    bare: Environment, command: root.Command
) -> None:
    if command.extra is None or command.name == "bench":
        assert command.name not in LACKING
        return
    for line in LACKING[command.name]:
        done = bare.slipway(line)
        hint = re.escape(f'try pip install ".[{command.extra}]" in a checkout of Slipway')
        assert done.returncode == 1, done
        assert re.fullmatch(rf"error: [^\n]+{hint}\n", done.stderr), done.stderr


@pytest.mark.parametrize("line", REFUSED)
def test_wheel_says_how_to_get_a_tool_of_developers_when_it_is_called(bare: Environment, line: str) -> None:
    done = bare.slipway(line)
    what, extra = REFUSED[line]
    told = (
        f"error: {what} are installed from a checkout only; clone the repository and run:"
        f" pip install -e '.[{extra}]'\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


def test_wheel_lists_no_tool_of_developers_when_help_is_asked(bare: Environment) -> None:
    listed = bare.slipway("--help").stdout
    assert re.search(r"^  capacity ", listed, re.M)
    assert not re.search(r"\bbench\b", listed)
    listed = bare.slipway("train --help").stdout
    assert re.search(r"^  wakeword ", listed, re.M)
    assert "weights" not in listed


@pytest.mark.long
def test_signals_suffices_when_listening_and_measuring(environment: Make) -> None:
    found = environment("signals")
    soundfile.write(found.folder / "quiet.wav", np.zeros(16_000, np.float32), 16_000)
    assert found.slipway("imu-recording recording --seconds 2").returncode == 0
    refused = found.slipway("imu recording --onnx none.onnx")
    assert refused.returncode == 2 and "got none.onnx" in refused.stderr, refused
    for command in ("imu recording --plot drawn.png", "listen quiet.wav --plot heard.png"):
        done = found.slipway(f"{command} --url localhost:1")
        assert (done.returncode, done.stderr.count("localhost:1: unavailable")) == (1, 1), done
    # What follows an answer.
    code = "import slipway_client.imu.trajectory, slipway_cli.imu.plot, slipway_cli.listen.plot"
    assert found.run("python", "-c", code).returncode == 0
    assert found.run("python", "-c", "import torch").returncode == 1


@pytest.mark.long
def test_play_suffices_when_a_world_is_asked_for(environment: Make) -> None:
    found = environment("play")
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(found.folder / "first.png")
    done = found.slipway("play matrix_game --image first.png --actions w --output o.mp4 --url localhost:1")
    assert (done.returncode, done.stderr.count("localhost:1: unavailable")) == (1, 1), done
    assert found.run("python", "-c", "import av, slipway_cli.play.terminal").returncode == 0
    assert found.run("python", "-c", "import torch").returncode == 1


@pytest.mark.long
def test_capacity_suffices_when_replicas_are_asked_for(environment: Make) -> None:
    done = environment("capacity").slipway(LACKING["capacity"][0])
    assert done.returncode == 0 and "4 users: " in done.stdout, done


@pytest.mark.long
def test_export_suffices_when_a_checkpoint_is_exported(environment: Make) -> None:
    found = environment("export")
    assert found.slipway("checkpoint wakeword --output checkpoint").returncode == 0
    done = found.slipway("export wakeword --checkpoint checkpoint --repository models --quiet")
    assert (done.returncode, (found.folder / "models/wakeword").is_dir()) == (0, True), done


@pytest.mark.long
def test_server_suffices_when_the_bare_client_generates(
    environment: Make, bare: Environment, repository: Path
) -> None:
    found = environment("server")
    ports = "--http-port 0 --grpc-port 0 --metrics-port 0"
    command = [str(found.folder / "bin/slipway"), "serve", "--repository", str(repository), *ports.split()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=VARIABLES
    ) as process:
        try:
            assert process.stdout is not None
            said: dict[str, str] = {}
            while "ready" not in said:
                name, *value = process.stdout.readline().split(maxsplit=1)
                said[name] = re.sub(r"^http://|/metrics$|\n", "", "".join(value))
            assert bare.slipway(f"ready --url {said['http']}").stdout == "ready\n"
            for protocol in ("grpc", "http"):
                size = f"--frames 5 --size 32x32 --steps 2 --output {protocol}.mp4 --protocol {protocol}"
                done = bare.slipway(f"generate wan_t2v lake {size} --url {said[protocol]} --quiet")
                assert (done.returncode, done.stderr) == (0, "")
                assert (bare.folder / f"{protocol}.mp4").stat().st_size > 0
            assert bare.slipway(f"drain --metrics {said['metrics']}").stdout == "idle\n"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, process.communicate()


@pytest.mark.long
def test_training_suffices_when_a_word_is_trained(environment: Make) -> None:
    found = environment("training")
    sounds = np.random.default_rng(0)
    for kind, loudness in (("positive", 0.5), ("negative", 0.05)):
        (found.folder / kind).mkdir()
        for number in range(8):
            samples = loudness * sounds.uniform(-1, 1, 16_000)
            soundfile.write(found.folder / kind / f"{number}.wav", samples.astype(np.float32), 16_000)
    done = found.slipway(
        "train wakeword --name a --positive positive --negative negative --backbone tiny --epochs 1"
        " --variations 1"
    )
    assert done.returncode == 0 and '"onnx_is_current": true' in done.stdout, done


@pytest.mark.long
def test_management_suffices_when_the_api_is_started(environment: Make) -> None:
    found = environment("management")
    command = [str(found.folder / "bin/slipway"), "manage", "--repository", "models", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=found.folder, env=VARIABLES
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            url = re.search(r"http://[^,]+", said)
            assert url is not None, said
            # It listens already, so the call waits for the answer; only then a signal finds a server.
            assert httpx.get(f"{url[0]}/openapi.json", timeout=120).status_code == 200
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.communicate()


@pytest.mark.long
def test_loadtests_suffices_when_a_server_is_soaked(environment: Make) -> None:
    found = environment("loadtests")
    done = found.slipway("soak --repository lacking --requests 1")
    assert done.returncode == 2 and "lacking" in done.stderr, done
    # What follows the traffic.
    assert found.run("python", "-c", "import slipway_loadtests.soak.chart").returncode == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "denoiser --layers 1 --heads 2 --head-dim 24 --ffn-dim 96 --text-dim 32 --text-tokens 16 --size 48x32"
        " --frames 5 --rounds 1 --steps 2 --precision fp32 --no-compile --no-memory",
        "wakeword --clients 2 --rounds 1 --seconds 0.2 --no-int8",
    ],
    ids=lambda line: line.split(maxsplit=1)[0],
)
def test_loadtests_suffices_in_a_checkout_when_a_benchmark_runs(checkout: Environment, line: str) -> None:
    done = checkout.slipway(f"bench {line} --output out --quiet")
    assert done.returncode == 0, done
    assert (checkout.folder / "out" / f"{line.split(maxsplit=1)[0]}.png").is_file()


@pytest.mark.long
def test_checkout_finds_the_recipes_when_a_family_without_one_is_asked_for(checkout: Environment) -> None:
    done = checkout.slipway("train weights none --output lacking")
    assert done.returncode == 2 and "weights: family must be one of airimu, " in done.stderr, done
