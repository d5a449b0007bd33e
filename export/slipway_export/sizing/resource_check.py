"""Check that disk and memory suffice for an export before it starts.

The requirements of each component come from its network, which is built without weights from the headers of
the checkpoint's files. This checks these files at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from slipway_export.progress import format_bytes
from slipway_export.sizing.estimate import PROCESS_BYTES, weights_bytes
from slipway_export.sizing.memory import available_memory, fits
from slipway_export.spec import Component, Loading, Precision
from slipway_serving.protocol.errors import SlipwayError

# Disk space for configurations, tokenizers, manifests and the nodes of the graphs, in addition to weights.
_OTHER_FILES_BYTES = 16 * 2**20


class InsufficientResources(SlipwayError):
    """The machine has too little disk or memory for an export; the repository is unchanged."""

    code = "ROOM"


@dataclass(frozen=True)
class Requirements:
    """Disk space and memory that the export of a component takes.

    Args:
        parameters: Number of parameters of its network.
        disk_bytes: Size of its graph on disk, in bytes.
        verification_bytes: Size of the files that verification writes beside the graph, in bytes.
        memory_bytes: Memory of this process while the graph is exported and verified, without activations, in
            bytes.
    """

    parameters: int
    disk_bytes: int
    verification_bytes: int
    memory_bytes: int


def graph_requirements(component: Component, requested: Precision) -> Requirements:
    """Compute the requirements of a component's graph, and check the files of its weights.

    Args:
        component: Description of the component.
        requested: Precision that the user requested.

    Raises:
        InvalidRequest: A file is missing or cut off, or keys or shapes differ.
    """
    precision = component.precision(requested)
    network = component.load(component.loaded_in(precision), Loading.META)
    parameters = sum(weight.numel() for weight in network.parameters())
    disk, memory = weights_bytes(component, network, precision)
    # A bfloat16 graph is verified through a float32 copy; its quantized weights keep their size.
    widened = 2 * disk if precision.is_quantized else 4 * parameters
    verification_bytes = int(widened) if component.loaded_in(precision) is Precision.BF16 else 0
    return Requirements(parameters, int(disk), verification_bytes, int(memory))


def torch_requirements(component: Component, precision: str) -> Requirements:
    """Compute the requirements of a component that PyTorch serves, and check the files of its weights.

    Its files are links if the checkpoint is on the repository's file system, so they count as no disk space.

    Args:
        component: Description of the component.
        precision: Precision that it is loaded in.

    Raises:
        InvalidRequest: A file is missing or cut off, or keys or shapes differ.
    """
    network = component.load(Precision(precision), Loading.META)
    parameters = sum(weight.numel() for weight in network.parameters())
    weights_bytes = sum(weight.nbytes for weight in network.parameters())
    return Requirements(parameters, 0, 0, int(PROCESS_BYTES + weights_bytes))


def check_disk(repository: Path, requirements: Mapping[str, Requirements]) -> None:
    """Refuse graphs that do not fit on the file system of a repository.

    Args:
        repository: Repository or file that the graphs are placed in.
        requirements: Requirements of the graphs that are to be exported, by label.

    Raises:
        InsufficientResources: The file system is too small. The message gives the needed and the free space.
    """
    if not requirements:
        return
    needed = (
        sum(each.disk_bytes + each.verification_bytes for each in requirements.values()) + _OTHER_FILES_BYTES
    )
    existing = next(
        folder for folder in (repository.resolve(), *repository.resolve().parents) if folder.exists()
    )
    free = shutil.disk_usage(existing).free
    if needed > free:
        graphs = ", ".join(f"{label} {format_bytes(each.disk_bytes)}" for label, each in requirements.items())
        raise InsufficientResources(
            f"{repository}: its file system must have {format_bytes(needed)} free for {graphs}, got"
            f" {format_bytes(free)}; try a repository on another file system,"
            " a smaller --precision, or one --component"
        )


def check_memory(requirements: Mapping[str, Requirements]) -> None:
    """Refuse components that exceed the memory of this machine or of this process's control group.

    Args:
        requirements: Requirements of the components that are to be exported, by label.

    Raises:
        InsufficientResources: The memory is too small. The message names each such component, what it needs
            and what is available.
    """
    own = psutil.Process().memory_info().rss
    lacking = {
        label: each.memory_bytes for label, each in requirements.items() if not fits(each.memory_bytes - own)
    }
    if lacking:
        needs = " | ".join(
            f"{label}: memory must be at least {format_bytes(needed)} to export and verify a graph of"
            f" {_in_words(requirements[label].parameters)} parameters"
            for label, needed in lacking.items()
        )
        raise InsufficientResources(
            f"{needs}, got {format_bytes(available_memory() + own)}; try a machine or a container"
            " with more memory, or --component for those that fit"
        )


@contextlib.contextmanager
def reporting_full_disk(target: Path) -> Iterator[None]:
    """Report a full file system in one sentence.

    Args:
        target: Repository or file that is being written.

    Raises:
        InsufficientResources: A write in the block found no space.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise InsufficientResources(
            f"{target}: the file system became full during the export ({error.strerror}), so nothing was"
            " placed; free some space and run the command again, which reuses the finished graphs of models"
        ) from error


def _in_words(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e8 else f"{count:,}"
