"""docker/versions.env is where versions stand: every other file that names one must agree.

Read are the Dockerfile's defaults, compose.yaml, pyproject.toml, requirements.lock, the Helm chart, the
changelog, and each mention of a release in the documents.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from slipway_serving.triton.install.versions import ADVISED, parse_version, versioned_arguments

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = dict(
    line.split("=", 1)
    for line in (ROOT / "docker/versions.env").read_text().splitlines()
    if line and not line.startswith("#")
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What a mention looks like in a document or a chart, and what it must say. `Triton 2.73.0` is NGC's.
MENTIONS = {
    r"tritonserver:(\d\d\.\d\d[\w-]*)": {VERSIONS["TRITON_IMAGE_TAG"]},
    r"nvcr\.io/nvidia/tensorrt:(\d\d\.\d\d[\w-]*)": {VERSIONS["TRITON_IMAGE_TAG"]},
    r"NGC(?:'s)? (?:release )?(\d\d\.\d\d)\b": {VERSIONS["TRITON_IMAGE_TAG"].removesuffix("-py3")},
    r"Triton (\d\.\d+\.\d+)": {VERSIONS["TRITON_VERSION"], VERSIONS["NGC_TRITON_VERSION"]},
    r"TensorRT (\d+\.\d+\.\d+)": {VERSIONS["TENSORRT_VERSION"]},
    r"tensorrt-cu12==(\d[\d.]+)": {VERSIONS["TENSORRT_WHEEL_VERSION"]},
    r"nvidia-pytriton[ =]+(\d+\.\d+\.\d+)": {VERSIONS["PYTRITON_VERSION"]},
    r"python:(3\.\d+[\w.-]*)": {VERSIONS["BASE"].removeprefix("python:")},
    r"slipway/(?:client|gateway|server-cpu|server-gpu|server-torch|export):([\w.]+)": {
        VERSIONS["SLIPWAY_VERSION"]
    },
    r"(prom/prometheus:[\w.]+)": {VERSIONS["PROMETHEUS_IMAGE"]},
    r"(grafana/grafana:[\w.]+)": {VERSIONS["GRAFANA_IMAGE"]},
    r"(postgres:\d[\w.-]*)": {VERSIONS["POSTGRES_IMAGE"]},
    r"(dxflrs/garage:[\w.]+)": {VERSIONS["OBJECT_STORE_IMAGE"]},
    r"(otel/opentelemetry-collector:[\w.]+)": {VERSIONS["COLLECTOR_IMAGE"]},
}


def wrong_mentions(text: str) -> list[str]:
    """Return the versions in a text that are others than ours."""
    return [
        found[0]
        for pattern, right in MENTIONS.items()
        for found in re.finditer(pattern, text)
        if found[1].rstrip(".") not in right
    ]


def pin(requirements: list[str], name: str) -> str:
    """Return the version that a list of requirements pins a distribution to."""
    (version,) = (
        found[1] for line in requirements if (found := re.match(rf"{name}(?:\[\w+\])?==(\S+)", line))
    )
    return str(version)


def test_versions_of_a_release_belong_together_when_read() -> None:
    tag = VERSIONS["TRITON_IMAGE_TAG"]
    assert VERSIONS["TRITON_BASE"] == f"nvcr.io/nvidia/tritonserver:{tag}"
    assert VERSIONS["TENSORRT_BASE"] == f"nvcr.io/nvidia/tensorrt:{tag}"
    assert VERSIONS["BASE"].startswith(f"python:{VERSIONS['PYTHON_VERSION']}-")
    assert (ROOT / ".env").readlink() == Path("docker/versions.env")
    assert VERSIONS["TENSORRT_WHEEL_VERSION"].rpartition(".")[0] == VERSIONS["TENSORRT_VERSION"]


def test_triton_of_the_images_is_one_that_is_advised_and_shares_memory_with_clients() -> None:
    release = parse_version(VERSIONS["NGC_TRITON_VERSION"], "the images")
    assert release >= ADVISED
    assert "--allow-client-shm=true" in [*versioned_arguments(release)]


def test_dockerfile_defaults_agree_when_read() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.M))
    assert defaults.pop("REVISION") == "unknown"
    assert defaults.pop("TORCH_BASE") == "server-cpu"  # a stage of the file
    assert defaults == {
        "BASE": VERSIONS["BASE"],
        "TRITON_BASE": VERSIONS["TRITON_BASE"],
        "EXPORT_BASE": VERSIONS["TENSORRT_BASE"],
        "VERSION": VERSIONS["SLIPWAY_VERSION"],
        "ONNXRUNTIME": VERSIONS["ONNXRUNTIME"],
    }


def test_compose_takes_every_version_from_the_one_place_when_read() -> None:
    text = (ROOT / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    named = [service["image"] for service in services.values()]
    named += [
        value for service in services.values() for value in service.get("build", {}).get("args", {}).values()
    ]
    variables = set(re.findall(r"\$\{(\w+)\}", " ".join(named)))
    assert variables <= set(VERSIONS)
    assert not re.search(r"\d+\.\d+", re.sub(r"\$\{\w+\}", "", " ".join(named)))


def test_packages_agree_when_pyproject_and_lock_are_read() -> None:
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    server = PROJECT["optional-dependencies"]["server"]
    assert PROJECT["version"] == VERSIONS["SLIPWAY_VERSION"]
    assert pin(server, "nvidia-pytriton") == pin(lock, "nvidia-pytriton") == VERSIONS["PYTRITON_VERSION"]
    assert pin(lock, "tritonclient") == VERSIONS["TRITON_VERSION"]
    assert pin(lock, "hatchling") == VERSIONS["HATCHLING_VERSION"]
    for name in ("PYTHON_VERSION", "NGC_PYTHON_VERSION"):
        low, high = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
        assert int(low) <= int(VERSIONS[name].removeprefix("3.")) < int(high)


def test_tensorrt_is_that_of_the_triton_that_serves_its_engines_when_read() -> None:
    extras = PROJECT["optional-dependencies"]
    assert pin(extras["tensorrt"], "tensorrt-cu12") == VERSIONS["TENSORRT_WHEEL_VERSION"]


def test_gpu_build_of_onnx_runtime_has_the_bounds_of_the_one_that_it_replaces_when_read() -> None:
    extras = PROJECT["optional-dependencies"]
    (gpu,) = extras["gpu"]
    for extra in ("export", "server"):
        assert gpu.replace("onnxruntime-gpu", "onnxruntime") in extras[extra]


def test_demo_checkpoints_have_the_pinned_version_when_read() -> None:
    demo = tomllib.loads((ROOT / "training/slipway_demo/pyproject.toml").read_text())["project"]
    assert pin(PROJECT["optional-dependencies"]["demo"], demo["name"]) == demo["version"]


def test_changelog_has_this_version_below_unreleased_ones_when_read() -> None:
    versions = dict(re.findall(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M))
    place = [*versions].index(PROJECT["version"])
    assert {*versions.values()} - {"unreleased"} == {
        date for date in versions.values() if re.fullmatch(r"\d{4}-\d\d-\d\d", date)
    }
    assert [*versions.values()][:place] == ["unreleased"] * place


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document_names_no_other_version_when_read(path: Path) -> None:
    assert wrong_mentions(path.read_text()) == []


def test_chart_names_no_other_version_when_read() -> None:
    chart = ROOT / "helm/slipway"
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert str(about["version"]) == str(about["appVersion"]) == VERSIONS["SLIPWAY_VERSION"]
    values = (chart / "values.yaml").read_text()
    assert wrong_mentions(values) == []
    tensorrt = re.findall(r"^\s*tensorrt(?:Version)?: *\"?(\d+\.\d+\.\d+)\"?", values, re.M)
    assert set(tensorrt) <= {VERSIONS["TENSORRT_VERSION"]}


@pytest.mark.parametrize(
    "text",
    [
        "tritonserver:25.01-py3",
        "Triton 2.50.0",
        "NGC's 24.05",
        "slipway/client:0.0.9",
        "python:3.12-slim-bookworm",
    ],
)
def test_another_version_is_found_when_a_text_names_one(text: str) -> None:
    assert wrong_mentions(f"Run {text}.")
