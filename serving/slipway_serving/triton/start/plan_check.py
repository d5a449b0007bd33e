"""Check of TensorRT engines before a start, since Triton's backend reports a wrong one late and by a code.

Triton's own TensorRT backend runs `model.plan`. It runs only engines that the same version of the library
built on the same kind of GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from slipway_serving.protocol.errors import SlipwayError, raise_all
from slipway_serving.runtime.tensorrt.engine_file import EngineFacts, check_engine
from slipway_serving.runtime.tensorrt.library import Library
from slipway_serving.system.gpu import compute_capabilities, target_of

_FACTS = ".engine.json"
_FOLDERS = (
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/local/lib"),
)
_LIBRARY = re.compile(r"libnvinfer\.so\.(\d+\.\d+\.\d+)")


def check_plans(models: Sequence[Path]) -> None:
    """Refuse plans that are damaged, or that the TensorRT and the GPUs of this machine cannot run.

    Args:
        models: Folders of the models.

    Raises:
        InvalidRequest: A plan is damaged or does not fit. The message names each such model and the reason.
    """
    version, gpus = installed_tensorrt(), [target_of(each) for each in compute_capabilities()]
    problems = []
    for path in (path for model in models for path in sorted(model.glob(f"*/*{_FACTS}"))):
        name, graph = path.parent.parent.name, path.name.removesuffix(_FACTS)
        if not path.with_name(f"{graph}{Library.TENSORRT.suffix}").exists():
            continue
        try:
            facts = check_engine(path.parent, name, graph)
        except SlipwayError as error:
            problems.append(str(error))
            continue
        problems += _misfits(facts, name, version, gpus)
    raise_all("server", problems)


def installed_tensorrt(folders: Sequence[Path] = _FOLDERS) -> str | None:
    """Return the version of the installed libnvinfer, such as ``11.3.0``; None if there is none.

    Args:
        folders: Folders with shared libraries.
    """
    paths = (path for folder in folders for path in sorted(folder.glob("libnvinfer.so.*.*.*")))
    found = (_LIBRARY.fullmatch(path.name) for path in paths)
    return next((match[1] for match in found if match), None)


def _misfits(facts: EngineFacts, name: str, version: str | None, gpus: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why this machine cannot run a plan, as far as they are known before the start."""
    built, fix = ".".join(facts.version.split(".")[:3]), "try `slipway engines build`"
    if version is not None and built != version:
        yield f"{name}: the plan must be of TensorRT {version}, got one of {built}; {fix}"
    if gpus and not set(gpus) & set(facts.targets):
        targets = ", ".join(facts.targets)
        yield f"{name}: the plan must be for {', '.join(gpus)}, got one for {targets}; {fix}"
