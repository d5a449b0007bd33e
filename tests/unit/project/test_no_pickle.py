"""Nothing of ours runs what a file says: no pickle, no code in YAML, no remote code of a checkpoint."""

from __future__ import annotations

import ast
import io
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from slipway_cli.root import run
from slipway_export.checkpoint.torch_file import read_torch_file
from slipway_serving.protocol.errors import InvalidRequest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = sorted(path.parent for path in ROOT.glob("*/slipway_*/__init__.py"))
# Each runs code of what it reads.
FORBIDDEN_MODULES = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "pickle"}
# Whose name of an error is needed, and who speaks to instances of the same model by a socket in the server's
# own folder, which no other user may enter; and what writes networks to compare them, and reads none.
ALLOWED = {
    ("slipway_export/checkpoint/torch_file.py", "pickle"),
    ("slipway_export/graph/traces.py", "pickle"),
    ("slipway_serving/runtime/backends/onnxruntime/sharing.py", "multiprocessing.connection"),
}


def findings(source: str) -> Iterator[str]:
    """Say what in a program runs code of what it reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"{name.name}" for name in node.names if name.name in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            root = node.module.partition(".")[0]
            if root in FORBIDDEN_MODULES or node.module == "multiprocessing.connection":
                yield node.module
        elif isinstance(node, ast.Call):
            yield from of_call(node)


def of_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in ("eval", "exec", "pickle.load", "pickle.loads", "torch.jit.load", "torch.hub.load"):
        yield name
    if name.endswith("torch.load") and given.get("weights_only") != "True":
        yield f"{name} without weights_only=True"
    if given.get("allow_pickle", "False") != "False":
        yield f"{name} with allow_pickle"
    if given.get("trust_remote_code", "False") != "False":
        yield f"{name} with trust_remote_code"
    if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load") and given.get("Loader") != "_OnceLoader":
        yield name


def test_no_package_runs_what_a_file_says() -> None:
    assert len(PACKAGES) >= 8
    found = {
        (str(path.relative_to(package.parent)), what)
        for package in PACKAGES
        for path in package.rglob("*.py")
        for what in findings(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import joblib",
        "from dill import loads",
        "import torch; torch.load(path)",
        "import torch; torch.load(path, weights_only=False)",
        "import numpy as np; np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "import yaml; yaml.load(text, Loader=yaml.Loader)",
        "eval(text)",
    ],
)
def test_each_way_of_running_a_file_is_found(line: str) -> None:
    assert list(findings(line))


def test_yaml_loader_of_ours_is_a_safe_one() -> None:
    import yaml

    from slipway_export.commands.config_file import _OnceLoader

    assert issubclass(_OnceLoader, yaml.SafeLoader)


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self.mark, "run")


def malicious(path: Path, mark: Path, form: str) -> Path:
    content = {"weight": torch.zeros(2), "more": Payload(mark)}
    if form == "pickle":
        path.write_bytes(pickle.dumps({"weight": Payload(mark)}))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    return path


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_malicious_checkpoint_is_refused_and_not_run(tmp_path: Path, form: str, suffix: str) -> None:
    mark = tmp_path / "mark"
    path = malicious(tmp_path / f"model{suffix}", mark, form)
    for mapped in (False, True):
        with pytest.raises(InvalidRequest, match="was not run"):
            read_torch_file(path, "model", mapped=mapped)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists(), "the payload does nothing"


def test_malicious_checkpoint_ends_an_export_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, checkpoint = tmp_path / "mark", tmp_path / "checkpoint"
    assert run(["checkpoint", "airimu", "--output", str(checkpoint)]) == 0
    weights = [path for path in checkpoint.rglob("*") if path.suffix in (".pt", ".ckpt", ".pth", ".bin")]
    assert weights
    for path in weights:
        malicious(path, mark, "zip")
    asked = ["export", "airimu", "--checkpoint", str(checkpoint), "--repository", str(tmp_path / "models")]
    assert run(asked) != 0
    assert "it was not run" in capsys.readouterr().err
    assert not mark.exists()
    assert not list((tmp_path / "models").glob("airimu*"))


def test_malicious_array_of_actions_is_refused_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, file = tmp_path / "mark", tmp_path / "actions.npy"
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(mark)], object), allow_pickle=True)
    file.write_bytes(buffer.getvalue())
    (tmp_path / "picture.png").write_bytes(b"")
    asked = ["generate", "matrix_game_universal", "--keyboard-cond", str(file), "--mouse-cond", str(file)]
    assert run([*asked, "--image", str(tmp_path / "picture.png")]) == 2
    assert "error" in capsys.readouterr().err.lower()
    assert not mark.exists()


def test_archive_with_a_name_that_leaves_its_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("../../escaped", "x")
    with pytest.raises(InvalidRequest, match="must be a file of torch.save"):
        read_torch_file(tmp_path / "model.pt", "model")
    assert not (tmp_path.parent.parent / "escaped").exists()
