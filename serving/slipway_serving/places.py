"""Where a server may run: its repository, the machine's shared memory and temporary folder, its ports.

Each function checks one of them before anything is started, so that a start fails in words rather than in
Triton.
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

from slipway_serving.errors import InvalidRequest, NotReady, raise_all
from slipway_serving.input_sizes import PARAMETER
from slipway_serving.limits import read_limits
from slipway_serving.triton_process import SHARED_MEMORY

_MIB = 1 << 20
_NAME_MARKS = ". _ - + , @ %"
_SAFE_MARKS = f"/ : {_NAME_MARKS}"
_SAFE_PATH = re.compile(r"[\w/.+,:@%-]+", re.ASCII)
_SAFE_NAME = re.compile(r"[\w.+,@%-]+", re.ASCII)
# A stub starts with 1 MiB of shared memory (Triton's default); a response of frames or video is at most
# 3 MiB and several are under way at once.
_SHARED_MEMORY_BASE_BYTES = 32 * _MIB
_SHARED_MEMORY_PER_MODEL_BYTES = 2 * _MIB


def check_repository(repository: Path) -> list[Path]:
    """Return the repository's model folders.

    Raises:
        InvalidRequest: it does not exist, is not a folder, or holds no model, or the name of a model has a
            character that a shell would take for more than a character.
    """
    if not repository.exists():
        raise InvalidRequest(f"server: repository must exist, got {repository}; try `slipway export` first")
    if not repository.is_dir():
        raise InvalidRequest(f"server: repository must be a folder of models, got the file {repository}")
    models = sorted(path for path in repository.iterdir() if path.is_dir())
    if not models:
        raise InvalidRequest(
            f"server: repository must hold a model, got the empty {repository}; try `slipway export` first"
        )
    raise_all(
        "server",
        [
            f"name of a model must have only characters of A-Z a-z 0-9 {_NAME_MARKS} (Triton hands it to a"
            f" shell), got {model.name!r}; try another name for the folder {model}"
            for model in models
            if not _SAFE_NAME.fullmatch(model.name)
        ],
    )
    return models


def may_cache(models: Sequence[Path], wanted: bool, warn: Callable[[str], object]) -> bool:
    """Return whether a server of models may have a response cache; say what an earlier export lacks.

    Args:
        models: Folders of the models.
        wanted: Whether the operator wants a response cache.
        warn: Takes a line for each lack.
    """
    if found := without_ranges(models):
        warn(
            f"sizes of inputs are not limited for {', '.join(found)}: their configurations have no ranges of"
            " axes; export them again"
        )
    if wanted and (found := wrongly_cached(models)):
        warn(
            f"no response cache: {', '.join(found)} has a response_cache and more than one output, whose"
            " answers one request could spoil for all others; export it again"
        )
        return False
    return wanted


def wrongly_cached(models: Sequence[Path]) -> list[str]:
    """Return the names of models that Triton's response cache must not serve.

    The key of that cache leaves out which outputs a request asks for. After a request for one output of
    several, every later request of the same inputs would get that output alone.

    Args:
        models: Folders of the models; one whose configuration cannot be read is left to Triton.
    """
    configs = ((model, _config(model)) for model in models)
    return [
        model.name
        for model, config in configs
        if config is not None and config.response_cache.enable and len(config.output) != 1
    ]


def without_ranges(models: Sequence[Path]) -> list[str]:
    """Return the names of exported models whose configuration does not limit the sizes of their inputs.

    Exports of earlier versions wrote the ranges of axes into the manifest only.

    Args:
        models: Folders of the models.
    """
    found = []
    for model in models:
        config = _config(model)
        if config is None or PARAMETER in config.parameters:
            continue
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if json.loads((model / "manifest.json").read_text(encoding="utf-8")).get("axes"):
                found.append(model.name)
    return found


def _config(model: Path) -> model_config_pb2.ModelConfig | None:
    """Read a model's configuration; None where it cannot be read, which Triton says itself."""
    try:
        text = (model / "config.pbtxt").read_text(encoding="utf-8")
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except (OSError, ValueError, text_format.ParseError):
        return None


def check_limits(limits: Path, models: Sequence[Path]) -> None:
    """Raise InvalidRequest where a file of limits is none, or is of models that are not served."""
    known = {model.name for model in models}
    if unknown := sorted(set(read_limits(limits)) - known):
        raise InvalidRequest(
            f"server: limits must be of models of the repository, got {', '.join(unknown)};"
            f" try {', '.join(sorted(known))}"
        )


def check_shared_memory(models: int) -> None:
    """Raise NotReady where /dev/shm has too little room for the models' stubs."""
    if not SHARED_MEMORY.is_dir():
        raise NotReady(f"server: {SHARED_MEMORY} must exist for Triton's Python models, got none")
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    needed = _SHARED_MEMORY_BASE_BYTES + models * _SHARED_MEMORY_PER_MODEL_BYTES
    if free < needed:
        raise NotReady(
            f"server: {SHARED_MEMORY} must have {needed // _MIB} MiB free for {models} models, "
            f"got {free // _MIB} MiB; try `docker run --shm-size=1g`"
        )


def check_path_is_safe(folder: Path) -> None:
    """Raise NotReady where a shell would take a character of a folder's path for more than a character.

    Triton's Python backend starts its processes from this folder through `bash -c` without quotes.
    """
    if not _SAFE_PATH.fullmatch(str(folder)):
        raise NotReady(
            f"server: the path of the temporary folder must have only characters of A-Z a-z 0-9 {_SAFE_MARKS}"
            f" (Triton hands it to a shell), got {str(folder)!r}; try another folder by TMPDIR"
        )


def check_programs_run(folder: Path) -> None:
    """Raise NotReady where a folder's mount lets no program run."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise NotReady(
            f"server: {folder} must let programs run (Triton's Python backend is laid out there), got a"
            " noexec mount; try `docker run --tmpfs /tmp:exec`, or another folder by TMPDIR"
        )


def free_ports(host: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return ports by name, with free ones for ports 0.

    Args:
        host: to listen on.
        wanted: by name, which is that of an option too.

    Raises:
        InvalidRequest: a given port is in use, or the host is not an address of this machine.
    """
    ports: dict[str, int] = {}
    problems: list[str] = []
    where = address(host)
    with contextlib.ExitStack() as held:  # held together, so that no two are the same
        for name, port in wanted.items():
            family = socket.AF_INET6 if ":" in where else socket.AF_INET
            listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
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


def address(host: str) -> str:
    """Return the address of a host, which is what Triton binds to: its IPv4 address, where it has one.

    Raises:
        InvalidRequest: It has neither an IPv4 nor an IPv6 address.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(
            f"server: host must be an IP address or a name that has one, got {host!r}; try 127.0.0.1, or ::1"
        ) from error
