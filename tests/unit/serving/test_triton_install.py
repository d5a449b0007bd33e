"""Which Triton is started, what it must have, and which models run inside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from installed_triton import add_library_backend, install_triton

from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.system import server_processes
from slipway_serving.system.server_processes import ServerResources
from slipway_serving.triton import server_log
from slipway_serving.triton.command_line import server_arguments
from slipway_serving.triton.config import ServerConfig
from slipway_serving.triton.graph_parameters import ignored_parameters
from slipway_serving.triton.install import locate
from slipway_serving.triton.install.locate import TRITON_DIR_VARIABLE, TritonInstall, find_triton
from slipway_serving.triton.install.setup import TritonSetup, runs_inside
from slipway_serving.triton.termination import models_inside


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return install_triton(tmp_path / "tritonserver")


@pytest.fixture(autouse=True)
def _no_other_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRITON_DIR_VARIABLE, raising=False)


def test_triton_is_found_by_option_variable_and_place(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "pytriton" in str(find_triton().binary)
    assert find_triton(installed).binary == installed / "bin/tritonserver"
    monkeypatch.setenv(TRITON_DIR_VARIABLE, str(installed))
    assert find_triton().folder == installed
    monkeypatch.delenv(TRITON_DIR_VARIABLE)
    monkeypatch.setattr(locate, "NGC_FOLDER", installed)
    assert find_triton().folder == installed
    assert find_triton().release == (2, 51)


@pytest.mark.parametrize(
    ("lacking", "text"),
    [
        ("bin/tritonserver", "triton-dir must contain bin/tritonserver, got none in"),
        ("backends/python/libtriton_python.so", "must have the Python backend, .* got none of libtriton_pyt"),
        ("backends/python/triton_python_backend_stub", "got none of triton_python_backend_stub in"),
        ("TRITON_VERSION", "triton-dir must have the file TRITON_VERSION, got none in"),
    ],
)
def test_triton_is_refused_by_what_it_lacks(
    installed: Path, monkeypatch: pytest.MonkeyPatch, lacking: str, text: str
) -> None:
    monkeypatch.delenv("TRITON_SERVER_VERSION", raising=False)
    (installed / lacking).unlink()
    with pytest.raises(NotReady, match=text):
        find_triton(installed)


def test_version_is_that_of_the_environment_when_no_file_has_it(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "TRITON_VERSION").unlink()
    monkeypatch.setenv("TRITON_SERVER_VERSION", "2.73.0")
    assert find_triton(installed).release == (2, 73)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("2.50.0", r"must be 2\.51 or later, got 2\.50\.0"),
        ("26.09", None),
        ("next", r"must be like 2\.73\.0, got 'next'"),
        ("", r"must be like 2\.73\.0, got ''"),
    ],
)
def test_version_is_refused_when_it_is_too_low_or_none(
    installed: Path, version: str, text: str | None
) -> None:
    (installed / "TRITON_VERSION").write_text(version)
    if text is None:
        assert find_triton(installed).release == (26, 9)
        return
    with pytest.raises(NotReady, match=text):
        find_triton(installed)


def test_stub_of_another_python_is_refused(installed: Path) -> None:
    stub = installed / "backends/python/triton_python_backend_stub"
    stub.write_bytes(b"\x7fELF libpython3.99.so.1.0 libc.so.6")
    with pytest.raises(NotReady, match=r"must be for Python 3\.\d+, which runs slipway, got 3\.99"):
        find_triton(installed)


@pytest.mark.parametrize(
    ("version", "added"),
    [("2.67.0", []), ("2.68.0", ["--allow-client-shm=true"]), ("2.73.0", ["--allow-client-shm=true"])],
)
def test_arguments_follow_the_version(installed: Path, version: str, added: list[str]) -> None:
    def arguments(install: TritonInstall) -> list[str]:
        config = ServerConfig(Path("models"))
        return list(server_arguments(config, "id", Path("f"), install, use_response_cache=False))

    old = arguments(find_triton(installed))
    (installed / "TRITON_VERSION").write_text(version)
    new = arguments(find_triton(installed))
    assert [each for each in new if each not in old] == added


def test_repository_by_url_is_read_by_triton_itself(installed: Path) -> None:
    config = ServerConfig("s3://models/slipway")
    given = list(server_arguments(config, "id", Path("f"), find_triton(installed), use_response_cache=False))
    assert "--model-repository=s3://models/slipway" in given
    with pytest.raises(InvalidRequest, match="begins with s3, gs, as and ://, got ftp://models"):
        ServerConfig("ftp://models")


def test_graphs_run_in_the_c_backend_where_there_is_one(installed: Path, tmp_path: Path) -> None:
    without = find_triton(installed)
    assert not TritonSetup.choose(without, None).native
    with pytest.raises(NotReady, match=r"must be python with the Triton in .*, got native"):
        TritonSetup.choose(without, "native")
    for name in ("onnxruntime", "tensorrt"):
        add_library_backend(installed, name)
    native, ours = (TritonSetup.choose(find_triton(installed), each) for each in (None, "python"))
    assert native.library_backends == {"onnxruntime", "tensorrt"}
    assert ours.library_backends == {"tensorrt"}
    assert "its C++ backend runs ONNX graphs" in native.summary
    for name, setup in (("native", native), ("python", ours)):
        setup.lay_out(tmp_path / name, os.environ)
        backends = tmp_path / name / "backends"
        assert sorted(path.name for path in backends.iterdir()) == ["onnxruntime", "python", "tensorrt"]
        assert (backends / "onnxruntime/model.py").is_file() == (name == "python")
        # Triton refuses a library whose resolved path is outside of the backend's folder.
        assert not (backends / "python/libtriton_python.so").is_symlink()


@pytest.mark.parametrize(
    ("backend", "runtime", "inside"),
    [
        ("", "", True),
        ("python", "", False),
        ("onnxruntime", "", True),
        ("pytorch", "", True),
        ("pytorch", "model.py", False),
        ("vllm", "", False),
    ],
)
def test_models_of_libraries_run_inside_the_server(backend: str, runtime: str, inside: bool) -> None:
    assert runs_inside(backend, runtime, {"onnxruntime", "pytorch"}) is inside


def test_parameters_without_effect_are_named_with_the_consequence(tmp_path: Path) -> None:
    for name, parameters in {
        "features": {"axes": "batch=1:4", "queue_limit": "32", "export_engine": "onnxruntime"},
        "backbone": {"axes": "batch=1:4", "session.intra_op.allow_spinning": "1", "speed": "11"},
    }.items():
        (tmp_path / name).mkdir()
        lines = [
            f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items()
        ]
        (tmp_path / name / "config.pbtxt").write_text('backend: "onnxruntime"\n' + "\n".join(lines))
    models = sorted(tmp_path.iterdir())
    native = list(ignored_parameters(models, native=True))
    assert [line.split(" has no effect in ")[0] for line in native] == [
        "parameter axes of backbone, features",
        "parameter queue_limit of features",
        "parameter session.intra_op.allow_spinning of backbone",
        "parameter speed of backbone",
    ]
    assert "code INTERNAL" in native[0]
    assert "--onnxruntime-backend python obeys it" in native[0]
    assert list(ignored_parameters(models, native=False)) == [
        "parameter speed of backbone has no effect in Slipway's Python backend: neither backend of ONNX"
        " graphs reads it"
    ]
    shutil.rmtree(tmp_path / "features")


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (("/tmp/slipway-1/models/net/1/model.py", "region", "1", "336", "net_0_0", "DEFAULT"), "net"),
        # Triton copies a model from a URL into a folder of another name.
        (("/tmp/folderX1/1/model.py", "region", "1", "336", "net_2_0_1", "DEFAULT"), "net_2"),
        (("/tmp/folderX1/1/model.py", "region"), "folderX1"),
    ],
)
def test_process_of_a_model_is_known_by_its_command_line(arguments: tuple[str, ...], model: str) -> None:
    assert server_processes._model_of(("stub", *arguments)) == model


def test_models_that_were_unloaded_are_known_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    facts = ("id", str(tmp_path), 0, 1.0, str(log), False)
    # A server that does not answer finishes no request.
    (tmp_path / "models" / "net").mkdir(parents=True)
    assert models_inside(ServerResources(*facts, ["onnxruntime"], "127.0.0.1:9")) == set()
    record = "I1126 10:34:18.837739 9232 model_lifecycle.cc:624] \"successfully unloaded '{}' version 1\"\n"
    log.write_text(record.format("early"))
    size = log.stat().st_size
    with log.open("a") as out:
        out.write(record.format("net"))
    assert server_log.unloaded_models(log, size) == {"net"}
    assert server_log.unloaded_models(log, 10 * size) == {"early", "net"}
    assert server_log.unloaded_models(tmp_path / "none", 0) == set()
