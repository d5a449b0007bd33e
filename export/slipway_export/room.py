"""Whether an export has room: what its graphs take on disk and in memory, against what there is.

Components are weighed before any work: their networks are built without weights, from the headers of the
checkpoint's files, which checks those files on the way.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from slipway_export.memory import available_memory, fits
from slipway_export.progress import in_bytes
from slipway_export.sizing import PROCESS_BYTES, weights_need
from slipway_export.spec import Component, Precision
from slipway_export.weights import left_out
from slipway_serving.errors import SlipwayError

# Configurations, tokenizers, manifests and the graphs' own nodes.
_BESIDE_BYTES = 16 * 2**20


class NoRoom(SlipwayError):
    """The machine has too little disk or memory for an export; the repository is as it was."""

    code = "ROOM"


@dataclass(frozen=True)
class Weight:
    """What a component weighs.

    Args:
        parameters: of its network.
        disk_bytes: of its graph.
        beside_bytes: of what verification writes beside it.
        memory_bytes: of this process while it is made and verified, without what activations take.
    """

    parameters: int
    disk_bytes: int
    beside_bytes: int
    memory_bytes: int


def weigh(component: Component, asked: Precision) -> Weight:
    """Weigh a component, and check the files that its weights come from.

    Args:
        component: its description.
        asked: the precision that the user asked for.

    Raises:
        InvalidRequest: a file is missing or cut off, or keys or shapes differ.
    """
    precision = component.precision(asked)
    with left_out():
        network = component.load(Precision.FP32 if precision.is_integer else precision)
    parameters = sum(weight.numel() for weight in network.parameters())
    disk, memory = weights_need(component, network, precision)
    # A bfloat16 graph is verified by a float32 one.
    beside = 4 * parameters if precision is Precision.BF16 else 0
    return Weight(parameters, int(disk), beside, int(memory))


def weigh_torch(component: Component, precision: str) -> Weight:
    """Weigh a component that PyTorch serves, and check the files that its weights come from.

    Its files are links where the checkpoint is on the repository's file system, so they count as nothing.

    Args:
        component: its description.
        precision: that it is loaded in.

    Raises:
        InvalidRequest: a file is missing or cut off, or keys or shapes differ.
    """
    with left_out():
        network = component.load(Precision(precision))
    parameters = sum(weight.numel() for weight in network.parameters())
    held = sum(weight.nbytes for weight in network.parameters())
    return Weight(parameters, 0, 0, int(PROCESS_BYTES + held))


def check_disk(repository: Path, weights: Mapping[str, Weight]) -> None:
    """Refuse graphs that the file system of a repository has no room for.

    Args:
        repository: that they are placed in, or the file.
        weights: of the graphs that are to be made, by label.

    Raises:
        NoRoom: says how much they take and how much is free.
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
    """Refuse components that this machine, or the limit of this process's control group, has no memory for.

    Args:
        weights: of the components that are to be made, by label.

    Raises:
        NoRoom: names each such component, what it takes and what there is.
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
    """Say in one sentence that a file system is full.

    Args:
        place: the repository or the file that was being made.

    Raises:
        NoRoom: a write in the block found no space.
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
