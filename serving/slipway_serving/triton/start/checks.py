"""Checks before the start of a server: repository, shared memory, temporary folder, host and ports.

Each function checks one requirement before anything starts, so that a start fails with a clear message
instead of an error within Triton.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from slipway_serving.protocol.errors import InvalidRequest, NotReady, raise_all
from slipway_serving.runtime.input_sizes import AXES_PARAMETER
from slipway_serving.runtime.limits import read_limits
from slipway_serving.system.server_processes import SHARED_MEMORY
from slipway_serving.triton.start.plan_check import check_plans

_MIB = 1 << 20
_NAME_MARKS = ". _ - + , @ %"
_SAFE_MARKS = f"/ : {_NAME_MARKS}"
_SAFE_PATH = re.compile(r"[\w/.+,:@%-]+", re.ASCII)
_SAFE_NAME = re.compile(r"[\w.+,@%-]+", re.ASCII)
# A stub starts with 1 MiB of shared memory (Triton's default). A response with frames or video has at most
# 3 MiB, and several are in flight at once.
_SHARED_MEMORY_BASE_BYTES = 32 * _MIB
_SHARED_MEMORY_PER_MODEL_BYTES = 2 * _MIB


def check_repository(repository: Path) -> list[Path]:
    """Return the repository's model folders.

    Raises:
        InvalidRequest: The repository does not exist, is not a folder, or contains no model, the name of a
            model has a character that is special to a shell, or a TensorRT engine cannot run here.
    """
    if not repository.exists():
        raise InvalidRequest(f"server: repository must exist, got {repository}; try `slipway export` first")
    if not repository.is_dir():
        raise InvalidRequest(f"server: repository must be a folder of models, got the file {repository}")
    models = sorted(path for path in repository.iterdir() if path.is_dir())
    if not models:
        raise InvalidRequest(
            f"server: repository must contain a model, got the empty folder {repository};"
            " try `slipway export` first"
        )
    raise_all(
        "server",
        [
            f"name of a model must have only characters of A-Z a-z 0-9 {_NAME_MARKS} (Triton passes it to a"
            f" shell), got {model.name!r}; try another name for the folder {model}"
            for model in models
            if not _SAFE_NAME.fullmatch(model.name)
        ],
    )
    check_plans(models)
    return models


def can_use_response_cache(models: Sequence[Path], wanted: bool, warn: Callable[[str], object]) -> bool:
    """Return True if the server may use a response cache; warn about models of earlier exports.

    Args:
        models: Folders of the models.
        wanted: True if the operator wants a response cache.
        warn: Callback that receives a line for each problem.
    """
    if found := models_without_ranges(models):
        warn(
            f"sizes of inputs are not limited for {', '.join(found)}: the configurations have no axis ranges;"
            " export these models again"
        )
    if wanted and (found := models_unsafe_to_cache(models)):
        warn(
            f"the response cache is off: Triton's cache gives wrong answers for {', '.join(found)}, which"
            " enables it for more than one output; export these models again"
        )
        return False
    return wanted


def models_unsafe_to_cache(models: Sequence[Path]) -> list[str]:
    """Return the names of models for which Triton's response cache would give wrong answers.

    The cache key does not include the requested outputs. After a request for one output of several, every
    later request with the same inputs would get that output alone.

    Args:
        models: Folders of the models. Models with an unreadable configuration are skipped, since Triton
            reports them.
    """
    configs = ((model, read_config(model)) for model in models)
    return [
        model.name
        for model, config in configs
        if config is not None and config.response_cache.enable and len(config.output) != 1
    ]


def models_without_ranges(models: Sequence[Path]) -> list[str]:
    """Return the names of exported models whose configuration does not limit the sizes of their inputs.

    Earlier versions of the export wrote the ranges of axes into the manifest only.

    Args:
        models: Folders of the models.
    """
    found = []
    for model in models:
        config = read_config(model)
        if config is None or AXES_PARAMETER in config.parameters:
            continue
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if json.loads((model / "manifest.json").read_text(encoding="utf-8")).get("axes"):
                found.append(model.name)
    return found


def read_config(model: Path) -> model_config_pb2.ModelConfig | None:
    """Return a model's configuration; None if it cannot be read, which Triton itself reports."""
    try:
        text = (model / "config.pbtxt").read_text(encoding="utf-8")
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except (OSError, ValueError, text_format.ParseError):
        return None


def check_limits(limits: Path, models: Sequence[Path] | None) -> None:
    """Refuse a file of limits that is invalid, or that names models which do not check requests.

    Args:
        limits: File of limits.
        models: Folders of the models; None if they are not known before the start.

    Raises:
        InvalidRequest: The file is invalid, or a model is not served, or is an ensemble or a graph, whose
            requests no code of ours checks.
    """
    given = sorted(read_limits(limits))
    if models is None:
        return
    known = {model.name: read_config(model) for model in models}
    if unknown := [name for name in given if name not in known]:
        raise InvalidRequest(
            f"server: limits must name models of the repository, got {', '.join(unknown)};"
            f" try {', '.join(sorted(known))}"
        )
    configs = {name: config for name, config in known.items() if config is not None}
    unchecked = [name for name in given if name in configs and configs[name].backend != "python"]
    if unchecked:
        checking = sorted(name for name, config in configs.items() if config.backend == "python")
        raise InvalidRequest(
            "server: limits must name models that check requests, got ensembles or graphs"
            f" {', '.join(unchecked)}; try {', '.join(checking)}"
        )


def check_shared_memory(models: int) -> None:
    """Raise NotReady if /dev/shm has too little free space for the models' stubs."""
    if not SHARED_MEMORY.is_dir():
        raise NotReady(
            f"server: {SHARED_MEMORY} is missing, which Triton's Python models need; mount a tmpfs there"
        )
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    needed = _SHARED_MEMORY_BASE_BYTES + models * _SHARED_MEMORY_PER_MODEL_BYTES
    if free < needed:
        raise NotReady(
            f"server: {SHARED_MEMORY} must have {needed // _MIB} MiB free for {models} models, "
            f"got {free // _MIB} MiB; try `docker run --shm-size=1g`"
        )


def check_path_is_safe(folder: Path) -> None:
    """Raise NotReady if a folder's path has a character that is special to a shell.

    Triton's Python backend starts its processes from this folder with `bash -c`, without quotes.
    """
    if not _SAFE_PATH.fullmatch(str(folder)):
        raise NotReady(
            f"server: the path of the temporary folder must have only characters of A-Z a-z 0-9 {_SAFE_MARKS}"
            f" (Triton passes it to a shell), got {str(folder)!r}; try another TMPDIR"
        )


def check_programs_run(folder: Path) -> None:
    """Raise NotReady if a folder is on a mount that does not allow programs to run."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise NotReady(
            f"server: {folder} must allow programs to run, since Triton's Python backend starts there, got a"
            " noexec mount; try `docker run --tmpfs /tmp:exec`, or set TMPDIR to another folder"
        )


def free_ports(host: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the ports by name and pick a free port for each 0.

    Args:
        host: Host to listen on.
        wanted: Ports by name; the name is also that of a command line option.

    Raises:
        InvalidRequest: A given port is in use, or the host is not an address of this machine.
    """
    ports: dict[str, int] = {}
    problems: list[str] = []
    where = resolve_address(host)
    with contextlib.ExitStack() as stack:  # all sockets stay open, so that no two ports are the same
        for name, port in wanted.items():
            family = socket.AF_INET6 if ":" in where else socket.AF_INET
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((where, port))
            except OSError as error:
                flag = f"--{name.replace('_', '-')}"
                problems.append(f"{name} must be free on {host}, got {port} ({error.strerror}); try {flag}")
            else:
                ports[name] = listener.getsockname()[1]
    raise_all("server", problems)
    return ports


def resolve_address(host: str) -> str:
    """Return the address that Triton binds to for a host: its IPv4 address if it has one, else IPv6.

    Raises:
        InvalidRequest: The host has neither an IPv4 nor an IPv6 address.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(
            f"server: host must be an IP address or a name that has one, got {host!r}; try 127.0.0.1, or ::1"
        ) from error
