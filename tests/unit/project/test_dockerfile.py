"""docker/ as text: what must hold of it on a machine without an engine, a GPU and NGC's images too."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "docker/Dockerfile"
TARGETS = {"client", "load", "gateway", "server-cpu", "export", "server-gpu"}
# Joined lines: an instruction each.
INSTRUCTIONS = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M)).splitlines()


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage by its name."""
    found: dict[str, list[str]] = {}
    name = "arguments"
    for line in INSTRUCTIONS:
        if started := re.match(r"FROM \S+ AS (\S+)", line):
            name = started[1]
        elif line.strip():
            found.setdefault(name, []).append(line)
    return found


def sources() -> set[str]:
    """Return what the build takes from the context."""
    copied = {path for line in INSTRUCTIONS if line.startswith("COPY ") for path in line.split()[1:-1]}
    mounts = re.findall(r"--mount=type=bind,(\S+)", DOCKERFILE.read_text())
    options = [dict(pair.split("=") for pair in mount.split(",")) for mount in mounts]
    return copied | {mount["source"] for mount in options if "from" not in mount}


def lint(text: str, tmp_path: Path) -> list[dict[str, object]]:
    """Return hadolint's findings."""
    hadolint = Path(sys.prefix) / "bin/hadolint"
    (tmp_path / "Dockerfile").write_text(text)
    found = shutil.which(str(hadolint)) or shutil.which("hadolint")
    assert found, "hadolint must be installed; try make check, which installs it"
    done = subprocess.run(
        [found, "--format", "json", str(tmp_path / "Dockerfile")], capture_output=True, text=True, check=False
    )
    findings: list[dict[str, object]] = json.loads(done.stdout)
    return findings


def test_dockerfile_has_no_finding_when_linted(tmp_path: Path) -> None:
    assert lint(DOCKERFILE.read_text(), tmp_path) == []


def test_linter_finds_what_is_wrong_when_there_is_something(tmp_path: Path) -> None:
    codes = {found["code"] for found in lint("FROM debian\nRUN cd /x && pip install torch\n", tmp_path)}
    assert {"DL3003", "DL3006", "DL3013"} <= codes


def test_every_source_exists_and_reaches_the_build_when_listed() -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    assert "*" in patterns
    for source in sources():
        assert (ROOT / source).exists(), f"{source} is missing"
        assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in), f"{source} is kept out"
    assert let_in == sources()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_target_is_confined_and_labelled_when_read(target: str) -> None:
    lines = stages()[target]
    users = [line for line in lines if line.startswith("USER ")]
    assert users[-1] == "USER 1000:1000"
    assert lines.index(users[-1]) > max(i for i, line in enumerate(lines) if line.startswith("RUN "))
    assert any(f'image.title="slipway/{target}"' in line for line in lines)
    assert any(line.startswith("ENTRYPOINT [") for line in lines)
    assert any(line.startswith("HEALTHCHECK ") for line in lines) == (target != "client")


def test_torch_target_is_a_server_and_more_when_read() -> None:
    lines = stages()["server-torch"]
    assert lines[0] == "USER 0:0"
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 1000:1000"
    assert any('image.title="slipway/server-torch"' in line for line in lines)
    # How it starts, and when it is healthy, it has from the server that it is made of.
    assert not any(line.startswith(("ENTRYPOINT", "CMD", "HEALTHCHECK")) for line in lines)


def test_no_build_reaches_the_network_when_read() -> None:
    text = DOCKERFILE.read_text() + (ROOT / "docker/install.sh").read_text()
    assert "--no-index" in text
    assert not re.search(r"\b(curl|wget|apt-get|git clone)\b|^# syntax=", text, re.M)


@pytest.mark.parametrize("script", sorted((ROOT / "docker").glob("*.sh")), ids=lambda path: path.name)
def test_script_is_a_program_that_parses_when_read(script: Path) -> None:
    shell = script.read_text().partition("\n")[0].removeprefix("#!").split()[-1].rpartition("/")[2]
    subprocess.run([shell, "-n", script], check=True)
    assert script.stat().st_mode & 0o111


def requirements(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docker/requirements.py", ROOT / "pyproject.toml", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_requirements_are_those_of_pyproject_when_an_image_leaves_some_out() -> None:
    lines = requirements("server", "--without", "soxr", "--instead", "onnxruntime=onnxruntime-gpu").stdout
    names = {re.match(r"[\w.-]+", line)[0] for line in lines.splitlines()}
    assert {"typer", "torch", "nvidia-pytriton", "onnxruntime-gpu"} <= names
    assert not {"soxr", "fastapi", "onnxruntime", "onnx"} & names


def test_requirements_are_those_of_named_extras_when_an_extra_names_others() -> None:
    own, exporting = (set(requirements(extra).stdout.splitlines()) for extra in ("management", "export"))
    assert exporting < own and any(line.startswith("fastapi") for line in own)
    assert not any(line.startswith("slipway") for line in own)


def installed_extras() -> list[list[str]]:
    """Return the arguments of each install of packages in the Dockerfile, and of each list of wheels."""
    texts = [line.partition("install.sh packages ")[2] for line in INSTRUCTIONS]
    wheels = re.sub(r"\\\n", " ", (ROOT / "docker/wheels.sh").read_text())
    texts += [
        line.partition("pyproject.toml ")[2] for line in wheels.splitlines() if "requirements.py" in line
    ]
    words = [re.split(r"[>&]", text)[0].replace('"', "").split() for text in texts if text]
    return [[word.replace("${ONNXRUNTIME}", "onnxruntime-gpu") for word in each] for each in words]


def test_no_image_and_no_lock_contains_proprietary_wheels_of_tensorrt_when_read() -> None:
    installs = installed_extras()
    assert len(installs) == 7 + 4  # the Dockerfile's, and those of wheels.sh
    lists = [requirements(*each) for each in installs]
    assert [each.stderr for each in lists if each.returncode] == []
    names = [each.stdout for each in lists] + [path.read_text() for path in ROOT.glob("requirements*.lock")]
    assert [text for text in names if re.search("tensorrt", text)] == []
    # The extras themselves are found by this.
    assert all("tensorrt" in requirements(extra).stdout for extra in ("tensorrt", "tensorrt-rtx"))


@pytest.mark.parametrize("arguments", [["nope"], ["server", "--without", "nope"], ["--instead", "torch=x"]])
def test_requirements_are_refused_when_a_name_is_unknown(arguments: list[str]) -> None:
    done = requirements(*arguments)
    assert (
        done.returncode == 1 and done.stderr.startswith("requirements: ") and "Traceback" not in done.stderr
    )
