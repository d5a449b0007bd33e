"""Imports between our packages point one way, and the light client needs no heavy library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {path.name: path for path in ROOT.glob("*/slipway_*") if (path / "__init__.py").is_file()}
# Every family's request, which client, export and server share.
REQUESTS = {
    f"slipway_serving.{path.parent.name}.request" for path in PACKAGES["slipway_serving"].glob("*/request.py")
}
# What each package may import of the others. The command line's root and the load tests may use everything.
ALLOWED = {
    "slipway_models": {"slipway_serving.adapter"},
    "slipway_serving": set(),
    "slipway_client": {
        "slipway_serving.command_output",
        "slipway_serving.distribution",
        "slipway_serving.durations",
        "slipway_serving.errors",
        "slipway_serving.events",
        "slipway_serving.fields",
        "slipway_serving.identity",
        "slipway_serving.proxies",
        "slipway_serving.requests",
        # Pictures are converted here into the form that servers accept.
        "slipway_serving.images",
        "slipway_serving.texts",
        # `slipway ready --processes` looks at the server's own processes.
        "slipway_serving.footprints",
        "slipway_serving.server_folder",
        "slipway_serving.triton_process",
        "slipway_serving.snapshots.parts",
        "slipway_serving.snapshots.requests",
        "slipway_serving.turns",
        *REQUESTS,
        # `slipway play` turns keys into actions, and frames into a file.
        "slipway_serving.matrix_game.keys",
        "slipway_serving.video.mp4",
        # `slipway imu` compares what is served with the graph and the checkpoint.
        "slipway_export.airimu_local",
    },
    # Training hears what serving hears; a running server is told of what was placed.
    "slipway_export": {
        "slipway_models",
        # The trained checkpoints, where they are installed.
        "slipway_demo",
        "slipway_serving.command_output",
        "slipway_serving.distribution",
        "slipway_serving.errors",
        "slipway_serving.events",
        "slipway_serving.fields",
        "slipway_serving.requests",
        *REQUESTS,
        "slipway_serving.diffusion.requests",
        "slipway_serving.video.requests",
        "slipway_serving.airimu.facts",
        "slipway_serving.framepack_i2v.denoising",
        "slipway_serving.framepack_i2v.facts",
        "slipway_serving.matrix_game.facts",
        # An export tries a checkpoint's scheduler as the pipelines will.
        "slipway_serving.framepack_i2v.pipeline",
        "slipway_serving.wan_t2v.pipeline",
        "slipway_serving.control",
        "slipway_serving.temporary_folders",
        # An export makes INT8 weights that the backend will load on the same machine.
        "slipway_serving.int8_products",
        # What PyTorch serves is verified by the very program that serves it.
        "slipway_serving.torch_engine",
        "slipway_serving.graph",
        "slipway_serving.backends.onnxruntime.signature",
        # What a configuration says of sizes and memory is read by the backend that heeds it.
        "slipway_serving.backends.onnxruntime.arena",
        "slipway_serving.backends.onnxruntime.session",
        "slipway_serving.input_sizes",
        "slipway_serving.size",
        "slipway_serving.facts",
        "slipway_serving.models",
        "slipway_serving.program",
        "slipway_serving.waiting",
        "slipway_serving.wakeword.words",
        "slipway_serving.wakeword.hearing",
    },
    # Training measures trajectories as `slipway imu` does, and reads recordings as `slipway listen` does.
    "slipway_training": {"slipway_client.imu", "slipway_client.sound", "slipway_export", "slipway_serving"},
    "slipway_demo": set(),
    "slipway_management": {"slipway_export", "slipway_serving"},
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
    wrong = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in PACKAGES[package].rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in PACKAGES and not within(module, {package, *ALLOWED[package]})
    }
    assert not wrong


def test_serving_never_imports_triton() -> None:
    # The Python-based backend is Triton's own entry point; everything else is handed the module.
    entry = PACKAGES["slipway_serving"] / "backends" / "onnxruntime" / "model.py"
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
    "slipway_client.aio",
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
    *("accelerate", "torchao"),
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
