"""Imports between our packages point one way, and the light client needs no heavy library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {path.name: path for path in ROOT.glob("*/slipway_*") if (path / "__init__.py").is_file()}
# Every family's request, which client, export and server share.
REQUESTS = {
    f"slipway_serving.families.{path.parent.name}.request"
    for path in PACKAGES["slipway_serving"].glob("families/*/request.py")
}
# What clients and servers agree on: errors, fields, requests, events.
PROTOCOL = {"slipway_serving.protocol", *REQUESTS}
# What each package may import of the others. The command line's root and the benchmarks may use everything.
ALLOWED = {
    "slipway_models": {"slipway_serving.adapter"},
    "slipway_serving": set(),
    "slipway_client": {
        *PROTOCOL,
        # Events of worlds that the client exports.
        "slipway_serving.video.fragments",
        "slipway_serving.video.jpeg",
    },
    "slipway_export": {
        *PROTOCOL,
        "slipway_models",
        # The trained checkpoints, where they are installed.
        "slipway_demo",
        # Facts that an export writes for the served models.
        "slipway_serving.runtime.json_facts",
        "slipway_serving.families.airimu.facts",
        "slipway_serving.families.framepack_i2v.denoising",
        "slipway_serving.families.framepack_i2v.facts",
        "slipway_serving.families.matrix_game.facts",
        "slipway_serving.families.wan_t2v.facts",
        "slipway_serving.families.wakeword.words",
        "slipway_serving.families.wakeword.audio_limits",
        # An export tries a checkpoint's scheduler as the pipelines will.
        "slipway_serving.families.framepack_i2v.pipeline",
        "slipway_serving.families.wan_t2v.pipeline",
        # A plan has the size of a stopped video's state as the pipelines know it.
        "slipway_serving.diffusion.videos.sizes",
        # A running server loads what was placed.
        "slipway_serving.triton.control",
        "slipway_serving.system.temporary_folders",
        # What PyTorch serves is verified by the very program that serves it.
        "slipway_serving.runtime.torch_engine",
        # An engine is described and checked by the code that loads it.
        "slipway_serving.runtime.tensorrt",
        "slipway_serving.system.gpu",
        "slipway_serving.runtime.graph",
        "slipway_serving.runtime.in_process",
        "slipway_serving.runtime.program",
        # The backend reads sizes, memory and INT8 weights from the configuration that an export writes.
        "slipway_serving.runtime.backends.onnxruntime",
        "slipway_serving.runtime.input_sizes",
        "slipway_serving.runtime.queue_limits",
    },
    # Training reads recordings as `slipway listen` does.
    "slipway_training": {"slipway_client.sound", "slipway_export", "slipway_serving"},
    "slipway_demo": set(),
    # `slipway manage` exports trained models and loads them into a running Triton.
    "slipway_gateway.trained_models": {
        *PROTOCOL,
        "slipway_export",
        "slipway_gateway",
        "slipway_serving.triton.control",
    },
    "slipway_gateway": {
        *PROTOCOL,
        "slipway_client",
        # The families that are installed, and so the request classes of the models that may be served.
        "slipway_export.families",
        # Events of worlds; frames of a model that makes no file.
        "slipway_serving.video.fragments",
        "slipway_serving.video.jpeg",
        "slipway_serving.video.mp4",
        # What a server's metrics and the configuration of a model are called.
        "slipway_serving.runtime.metrics",
        "slipway_serving.runtime.slots.slots",
        "slipway_serving.system.standard_streams",
    },
    "slipway_loadtests": {
        "slipway_cli.files",
        "slipway_cli.server_options",
        "slipway_client",
        # The families that are installed, whose models get sample requests.
        "slipway_export.families",
        "slipway_export.spec",
        "slipway_serving",
    },
    # Recipes measure trajectories as `slipway imu` does, and train on the pictures that load tests send.
    "slipway_recipes": {
        "slipway_client.imu",
        "slipway_export",
        "slipway_loadtests.pictures",
        "slipway_serving",
        "slipway_training",
    },
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def within(module: str, allowed: set[str]) -> bool:
    """Whether a module is an allowed one, part of one, or a package on the way to one."""
    return any(
        module == name or module.startswith(f"{name}.") or name.startswith(f"{module}.") for name in allowed
    )


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_package_imports_only_what_lies_below_it(package: str) -> None:
    root, *folders = package.split(".")
    inner = [name for name in ALLOWED if name.startswith(f"{package}.")]
    wrong = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in PACKAGES[root].joinpath(*folders).rglob("*.py")
        if not any(PACKAGES[root].joinpath(*name.split(".")[1:]) in path.parents for name in inner)
        for module in imports(path)
        if module.split(".")[0] in PACKAGES and not within(module, {package, *ALLOWED[package]})
    }
    assert not wrong


def test_serving_never_imports_triton() -> None:
    # The Python-based backend is Triton's own entry point; everything else is handed the module.
    entry = PACKAGES["slipway_serving"] / "runtime" / "backends" / "onnxruntime" / "model.py"
    wrong = {
        path
        for path in PACKAGES["slipway_serving"].rglob("*.py")
        if path != entry and any("triton_python_backend_utils" in module for module in imports(path))
    }
    assert not wrong


# What may be imported with the bare install: packages, the command line, what it lists, what clients send.
LIGHT = [
    *sorted(PACKAGES),
    *sorted(
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for root in PACKAGES.values()
        for path in root.rglob("*commands.py")
    ),
    "slipway_cli.__main__",
    "slipway_cli.root",
    "slipway_client.async_client",
    "slipway_client.client",
    "slipway_client.imu.windows",
    "slipway_client.listening",
    "slipway_export.families",
    *sorted(REQUESTS),
]
# By the names that are imported: everything that an extra brings.
HEAVY = {
    *(
        "av",
        "diffusers",
        "fastapi",
        "ftfy",
        "litserve",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "PIL",
        "psutil",
        "pyhocon",
    ),
    *("accelerate", "skimage", "torchao"),
    *("pypose", "pytriton", "scipy", "simpy", "soundfile", "soxr", "torch", "transformers", "uvicorn"),
}


def test_light_client_does_not_load_heavy_libraries() -> None:
    code = (
        "import importlib, sys\n"
        f"for module in {LIGHT!r}:\n"
        "    importlib.import_module(module)\n"
        f"    if heavy := {HEAVY!r} & set(sys.modules): sys.exit(f'{{module}} loads {{heavy}}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
