"""Check that disk and memory suffice for an export before it starts.

Each component is weighed first: its network is built without weights, from the headers of the checkpoint's
files. This checks these files at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from slipway_export.checkpoint.stored_weights import left_out
from slipway_export.progress import in_bytes
from slipway_export.sizing.estimate import PROCESS_BYTES, weights_need
from slipway_export.sizing.memory import available_memory, fits
from slipway_export.spec import Component, Precision
from slipway_serving.protocol.errors import SlipwayError

# Disk space for configurations, tokenizers, manifests and the graphs' own nodes.
_BESIDE_BYTES = 16 * 2**20


class NoRoom(SlipwayError):
    """The machine has too little disk or memory for an export; the repository is unchanged."""

    code = "ROOM"


@dataclass(frozen=True)
class Weight:
    """Disk and memory that a component takes.

    Args:
        parameters: Number of parameters of its network.
        disk_bytes: Size of its graph on disk, in bytes.
        beside_bytes: Size of the files that verification writes beside the graph, in bytes.
        memory_bytes: Memory of this process while the graph is made and verified, without activations, in
            bytes.
    """

    parameters: int
    disk_bytes: int
    beside_bytes: int
    memory_bytes: int


def weigh(component: Component, asked: Precision) -> Weight:
    """Weigh a component, and check the files of its weights.

    Args:
        component: Description of the component.
        asked: Precision that the user asked for.

    Raises:
        InvalidRequest: A file is missing or cut off, or keys or shapes differ.
    """
    precision = component.precision(asked)
    with left_out():
        network = component.load(Precision.FP32 if precision.is_integer else precision)
    parameters = sum(weight.numel() for weight in network.parameters())
    disk, memory = weights_need(component, network, precision)
    # A bfloat16 graph is verified through a float32 copy.
    beside = 4 * parameters if precision is Precision.BF16 else 0
    return Weight(parameters, int(disk), beside, int(memory))


def weigh_torch(component: Component, precision: str) -> Weight:
    """Weigh a component that PyTorch serves, and check the files of its weights.

    Its files are links if the checkpoint is on the repository's file system, so they count as no disk space.

    Args:
        component: Description of the component.
        precision: Precision that it is loaded in.

    Raises:
        InvalidRequest: A file is missing or cut off, or keys or shapes differ.
    """
    with left_out():
        network = component.load(Precision(precision))
    parameters = sum(weight.numel() for weight in network.parameters())
    held = sum(weight.nbytes for weight in network.parameters())
    return Weight(parameters, 0, 0, int(PROCESS_BYTES + held))


def check_disk(repository: Path, weights: Mapping[str, Weight]) -> None:
    """Refuse graphs that do not fit on the file system of a repository.

    Args:
        repository: Repository or file that the graphs are placed in.
        weights: Weights of the graphs that are to be made, by label.

    Raises:
        NoRoom: The file system is too small. The message gives the needed and the free space.
    """
    if not weights:
        return
    needed = sum(weight.disk_bytes + weight.beside_bytes for weight in weights.values()) + _BESIDE_BYTES
    place = next(
        folder for folder in (repository.resolve(), *repository.resolve().parents) if folder.exists()
    )
    free = shutil.disk_usage(place).free
    if needed > free:
        graphs = ", ".join(f"{label} {in_bytes(weight.disk_bytes)}" for label, weight in weights.items())
        raise NoRoom(
            f"{repository}: its file system must have {in_bytes(needed)} free for {graphs}, got"
            f" {in_bytes(free)}; try a repository on another, a smaller --precision, or one --component"
        )


def check_memory(weights: Mapping[str, Weight]) -> None:
    """Refuse components that exceed the memory of this machine or of this process's control group.

    Args:
        weights: Weights of the components that are to be made, by label.

    Raises:
        NoRoom: The memory is too small. The message names each such component, what it needs and what is
            available.
    """
    own = psutil.Process().memory_info().rss
    lacking = {
        label: weight.memory_bytes for label, weight in weights.items() if not fits(weight.memory_bytes - own)
    }
    if lacking:
        needs = " | ".join(
            f"{label}: memory must be at least {in_bytes(needed)} to make and to verify a graph of"
            f" {_in_words(weights[label].parameters)} parameters"
            for label, needed in lacking.items()
        )
        raise NoRoom(
            f"{needs}, got {in_bytes(available_memory() + own)}; try a machine or a container with more, or"
            " --component for those that fit"
        )


@contextlib.contextmanager
def said_when_full(place: Path) -> Iterator[None]:
    """Report a full file system in one sentence.

    Args:
        place: Repository or file that is being made.

    Raises:
        NoRoom: A write in the block found no space.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise NoRoom(
            f"{place}: its file system must have room for what is exported, got {error.strerror!r} on the"
            " way; it is as it was, try again with more space: a model's finished graphs are not made again"
        ) from error


def _in_words(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e8 else f"{count:,}"
