"""Files of an engine in a version folder: the engine itself, and the JSON file that identifies it.

`model.plan` is an engine of TensorRT and `model.engine` one of TensorRT-RTX; a graph `NAME` of an authored
model has `NAME.plan` or `NAME.engine`. `NAME.engine.json` states what the engine was built from, by what and
for which GPUs. :func:`check_engine` compares the two files, and :func:`check_machine` compares them with the
machine. Neither needs the library or a GPU, so a damaged or a wrong engine is refused by name and never by a
crash.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.runtime.tensorrt.library import Library
from slipway_serving.system.gpu import target_of

MODEL = "model"
"""Graph name of an engine that is a model of its own."""
# An engine begins with four letters, and has its length and the four parts of the library's version at fixed
# places. This was read off engines of TensorRT-RTX 1.7; those of TensorRT begin in the same way.
_MAGIC = {b"vtrt": Library.RTX, b"ftrt": Library.TENSORRT}
_LENGTH_AT, _VERSION_AT, _HEADER_BYTES = 16, 24, 28


@dataclass(frozen=True)
class EngineFacts:
    """Content of `NAME.engine.json`: what an engine was built from, by what and for which GPUs.

    Attributes:
        library: Name of the library (:class:`~.library.Library`).
        version: Version of the library.
        targets: GPUs that it runs on, such as ``sm89``.
        graph: Hash (sha256) of the graph's file.
        options: Options of the builder.
        profiles: Smallest, usual and largest shape of each input, by name of the profile and of the input.
        inputs: Inputs in their order, each with ``name``, ``onnx_type`` (``tensor(float)``) and ``shape``,
        the size
            of each axis or the name of a dynamic one.
        outputs: Outputs in their order, in the same form.
        engine_bytes: Size of the engine's file.
        built: Figures of the builder: its time in seconds, memory in bytes, number of layers.
        stripped: True if the engine has no weights and takes them from the graph beside it when it is loaded.
    """

    library: str
    version: str
    targets: tuple[str, ...]
    graph: str
    options: Mapping[str, Any]
    profiles: Mapping[str, Mapping[str, Sequence[Sequence[int]]]]
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    engine_bytes: int
    built: Mapping[str, Any]
    stripped: bool = False

    @property
    def signature(self) -> Signature:
        """Tensors of the engine, as those of a graph."""
        return Signature(_tensors(self.inputs), {}, _tensors(self.outputs))

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return asdict(self)


@dataclass(frozen=True)
class EngineHeader:
    """Beginning of an engine's file.

    Attributes:
        library: Library that wrote it.
        version: Version of the library, such as ``1.7.1.116``.
        engine_bytes: Size of the whole file.
    """

    library: Library
    version: str
    engine_bytes: int


def facts_file(graph: str = MODEL) -> str:
    """Return the name of the file that identifies an engine."""
    return f"{graph}.engine.json"


def engine_path(folder: Path, facts: EngineFacts, graph: str = MODEL) -> Path:
    """Return the path of an engine in a version folder."""
    return folder / f"{graph}{Library(facts.library).suffix}"


def read_header(path: Path) -> EngineHeader:
    """Read the beginning of an engine's file.

    Raises:
        InvalidRequest: The file is missing, or is no engine.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER_BYTES)
    except OSError as error:
        raise InvalidRequest(f"{path}: must be an engine of TensorRT, got {error.strerror}") from None
    library = _MAGIC.get(start[:4])
    if library is None or len(start) < _HEADER_BYTES:
        raise InvalidRequest(
            f"{path}: must be an engine of TensorRT or TensorRT-RTX, got one that begins with {start[:4]!r}"
        )
    (length,) = struct.unpack_from("<Q", start, _LENGTH_AT)
    version = ".".join(str(part) for part in start[_VERSION_AT:_HEADER_BYTES])
    return EngineHeader(library, version, length)


def check_engine(folder: Path, where: str, graph: str = MODEL) -> EngineFacts:
    """Return the facts of an engine, after a check that its file is complete and the one they describe.

    Args:
        folder: Version folder of the model.
        where: Name of the model, for messages.
        graph: Name of the graph.

    Raises:
        InvalidRequest: A file is missing, cut off or damaged, or belongs to another library or version. The
            message names each such fact.
    """
    facts = read_facts(EngineFacts, folder / facts_file(graph))
    path = engine_path(folder, facts, graph)
    header, size = read_header(path), path.stat().st_size
    problems = []
    if header.library.value != facts.library:
        problems.append(f"library must be {facts.library} as {facts_file(graph)} says, got {header.library}")
    if header.version != facts.version:
        problems.append(f"version must be {facts.version} as {facts_file(graph)} says, got {header.version}")
    if size != facts.engine_bytes or (header.library is Library.RTX and size < header.engine_bytes):
        problems.append(f"size must be {facts.engine_bytes:,} bytes, got {size:,}")
    if facts.stripped and not (folder / f"{graph}.onnx").is_file():
        problems.append(f"{graph}.onnx must be beside an engine without weights, got no such file")
    raise_all(f"{where}: engine {path.name}", problems)
    return facts


def check_machine(
    facts: EngineFacts, where: str, capability: tuple[int, int] | None, version: str | None
) -> None:
    """Refuse an engine that this machine cannot run.

    Args:
        facts: Facts of the engine.
        where: Name of the model, for messages.
        capability: Compute capability of the GPU; None without a GPU.
        version: Version of the library that would run it; None if it is not installed.

    Raises:
        InvalidRequest: The GPU or the library is missing or another one. The message is one line and says
        what
            to do.
    """
    library = Library(facts.library)
    targets, got = ", ".join(facts.targets), None if capability is None else target_of(capability)
    if got is None:
        raise InvalidRequest(
            f"{where}: a {library.full_name} engine for {targets} must run on such a GPU, got a machine"
            " without one; try --engine onnxruntime"
        )
    if got not in facts.targets:
        raise InvalidRequest(
            f"{where}: a {library.full_name} engine for {targets} must run on such a GPU, got {got}; try"
            f" `slipway engines build` with --target {got}"
        )
    if version is None or not _same_version(version, facts.version):
        found = "no such library" if version is None else f"version {version}"
        raise InvalidRequest(
            f"{where}: an engine of {library.full_name} {facts.version} must run with that version, got"
            f" {found}; try `slipway engines build`, or install that version"
        )


def profile_of(facts: EngineFacts, shapes: Mapping[str, Sequence[int]], where: str) -> int:
    """Return the index of the first profile that contains the shapes of all inputs.

    Args:
        facts: Facts of the engine.
        shapes: Shape of each input.
        where: Name of the model, for messages.

    Raises:
        InvalidRequest: No profile contains them. The message names each size outside the widest profile.
    """
    problems: list[str] = []
    for index, (name, ranges) in enumerate(facts.profiles.items()):
        problems = list(_outside(name, ranges, shapes))
        if not problems:
            return index
    raise_all(where, problems)
    raise InvalidRequest(f"{where}: the engine must have a profile, got none")


def _outside(
    profile: str, ranges: Mapping[str, Sequence[Sequence[int]]], shapes: Mapping[str, Sequence[int]]
) -> list[str]:
    """Return a problem for each size that lies outside a profile."""
    return [
        f"dimension {axis} of {name} must be {low} to {high} in profile {profile} of the engine, got {size}"
        for name, (least, _, most) in ranges.items()
        for axis, (low, high, size) in enumerate(zip(least, most, shapes[name], strict=True))
        if not low <= size <= high
    ]


def _same_version(installed: str, built: str) -> bool:
    """Return whether two versions have the same four parts; a wheel's version may have further ones."""
    return installed.split(".")[:4] == built.split(".")[:4]


def _tensors(entries: Sequence[Mapping[str, Any]]) -> dict[str, GraphTensor]:
    return {
        entry["name"]: GraphTensor(entry["name"], entry["onnx_type"], tuple(entry["shape"]))
        for entry in entries
    }
