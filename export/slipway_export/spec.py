"""The description of a component's tensors: the one place from which everything else is derived.

A family states its components as the frozen dataclasses below; `onnx.py` derives the dynamic shapes
of the export from them, `verify.py` the shapes at which the graph is compared with PyTorch,
`repository.py` Triton's `config.pbtxt` and warm-up request. Nothing here imports torch, so that the
light client can list the families.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_serving.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

    from slipway_export.checkpoint import Checkpoint

BATCH = "batch"
"""Name of the axis that Triton may batch over; a graph whose tensors all begin with it is batched."""


class Precision(StrEnum):
    """Number format of a graph's weights and arithmetic; its inputs and outputs stay float32.

    ``int8`` quantizes weights per channel and activations as they come; ``int4`` weights only, in blocks,
    for memory.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def is_integer(self) -> bool:
        """Whether the graph is made by quantizing the float32 one."""
        return self in (Precision.INT8, Precision.INT4)


class Engine(StrEnum):
    """What the graphs are made for.

    ``onnxruntime`` graphs use its fused operators; ``tensorrt`` graphs use the standard ones only. So do
    ``portable`` graphs, which are for any runtime, and have upstream's inputs and outputs where upstream has
    such a file; Triton serves them by ONNX Runtime.
    """

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"
    PORTABLE = "portable"

    @property
    def backend(self) -> str:
        """Name of the Triton backend that runs the graphs."""
        return Engine.ONNXRUNTIME.value if self is Engine.PORTABLE else self.value


class DType(StrEnum):
    """Element type of a tensor, under numpy's name."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT64 = "int64"

    @property
    def triton(self) -> str:
        """Name of the value of Triton's ``DataType`` protobuf enum."""
        return {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "int64": "TYPE_INT64"}[self.value]


@dataclass(frozen=True)
class Axis:
    """A named dimension and the range that it may take.

    Args:
        name: a word, e.g. ``latent_frames``.
        min: smallest size, at least 1.
        opt: the size that is traced, tuned for and warmed up.
        max: largest size.
    """

    name: str
    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max:
            raise InvalidRequest(
                f"axis {self.name} must have 1 <= min <= opt <= max, got {self.min}:{self.opt}:{self.max}"
            )

    def unseen(self, low: bool) -> int:
        """Return a size in the range that is none of min, opt, max where there is one.

        Args:
            low: look between min and opt first, else between opt and max; axes that alternate make
                a point at which no two of them agree by chance.
        """
        below, above = range(self.min + 1, self.opt), range(self.opt + 1, self.max)
        for sizes in (below, above) if low else (above, below):
            if sizes:
                return sizes[len(sizes) // 2]
        return self.opt


@dataclass(frozen=True)
class Size:
    """A dimension as ``factor * axis + offset``, parsed from the text of a tensor's shape."""

    axis: str
    factor: int = 1
    offset: int = 0

    _TEXT = re.compile(r"^(?:(\d+) \* )?([a-z][a-z0-9_]*)(?: \+ (\d+))?$")

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse ``"axis"``, ``"2 * axis"``, ``"axis + 9"`` or ``"2 * axis + 9"``.

        Raises:
            InvalidRequest: the text is none of them.
        """
        if not (found := cls._TEXT.match(text)):
            raise InvalidRequest(f"a dimension must be 'axis' or 'factor * axis + offset', got {text!r}")
        return cls(found.group(2), int(found.group(1) or 1), int(found.group(3) or 0))

    def at(self, point: Point) -> int:
        """Return the dimension with its axis at the point's size."""
        return self.factor * point[self.axis] + self.offset


Point = Mapping[str, int]
"""One size for each axis, by axis name."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Args:
        name: as in the PyTorch forward.
        dtype: element type.
        shape: ints for fixed dimensions, ``"axis"`` or ``"factor * axis + offset"`` for others.
        values: half-open range of verification inputs of integer type.
        ones: the verification input is all ones (masks).
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    values: tuple[int, int] = (0, 2)
    ones: bool = False

    @property
    def sizes(self) -> tuple[int | Size, ...]:
        """The shape with its expressions parsed."""
        return tuple(Size.parse(size) if isinstance(size, str) else size for size in self.shape)

    @property
    def batched(self) -> bool:
        """Whether Triton may batch over the first dimension."""
        return bool(self.shape) and self.shape[0] == BATCH

    def at(self, point: Point) -> tuple[int, ...]:
        """Return the shape with every axis at the point's size."""
        return tuple(size.at(point) if isinstance(size, Size) else size for size in self.sizes)


@dataclass(frozen=True)
class Tolerance:
    """Bounds of a verified graph against PyTorch in float32.

    Args:
        max_abs: largest absolute difference.
        relative_l2: ``|graph - torch| / |torch|`` in the L2 norm.
        cosine: smallest cosine similarity.
    """

    max_abs: float
    relative_l2: float
    cosine: float


def _as_it_is(_: torch.nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Component:
    """One network with one signature, exported to one graph.

    Args:
        name: the served model's name without the family's, e.g. ``denoiser_high``.
        inputs: in the order of the forward's arguments.
        outputs: in the order of the forward's results.
        axes: every axis that the shapes name.
        load: builds the network in a precision, in eval mode; its forward takes and gives the
            tensors as described (float32 at the edges whatever the precision inside).
        tolerance: bounds per precision; in a precision that is missing the graph stays in float32, and
            its manifest says so.
        keep_float: patterns of module paths (``*.proj_out``) whose products integer precisions leave alone.
        lower: a context in which the network is traced for ONNX Runtime: swaps what torch would decompose
            for its operators, and puts it back.
        merge_us: how long Triton may hold a request back to merge it with others of its shape into one
            batch, microseconds; None never merges them. A merged request is rounded differently, which
            is for components whose results need not be the same to the bit.
        graph: file stem of the graph. ``model`` makes a Triton model of its own; any other stem is a
            graph that an authored model of that name runs.
        portable: what engine ``portable`` exports in its place, where upstream's own file has another
            signature; no served model may depend on the difference.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: tuple[Axis, ...]
    load: Callable[[Precision], torch.nn.Module]
    tolerance: Mapping[Precision, Tolerance]
    keep_float: tuple[str, ...] = ()
    lower: Callable[[torch.nn.Module], AbstractContextManager[None]] = _as_it_is
    merge_us: int | None = None
    graph: str = "model"
    portable: Component | None = None

    def __post_init__(self) -> None:
        known = {axis.name for axis in self.axes}
        for tensor in (*self.inputs, *self.outputs):
            for size in tensor.sizes:
                if isinstance(size, Size) and size.axis not in known:
                    raise InvalidRequest(
                        f"{self.label}: {tensor.name} must use axes of the component"
                        f" ({', '.join(sorted(known))}), got {size.axis}"
                    )

    @property
    def label(self) -> str:
        """How reports name the graph: ``denoiser_high`` or ``vae_decoder/next``."""
        return self.name if self.graph == "model" else f"{self.name}/{self.graph}"

    @property
    def batch_axis(self) -> Axis | None:
        """The axis that Triton batches over, if every tensor begins with it."""
        if all(tensor.batched for tensor in (*self.inputs, *self.outputs)):
            return next(axis for axis in self.axes if axis.name == BATCH)
        return None

    def precision(self, asked: Precision) -> Precision:
        """Return the precision of the graph when the user asks for one."""
        return asked if asked in self.tolerance else Precision.FP32

    def points(self) -> dict[str, Point]:
        """Return the points at which the graph is verified, by name.

        ``opt`` is the one that export traces; ``unseen`` is none of the other three.
        """
        return {
            "min": {axis.name: axis.min for axis in self.axes},
            "opt": {axis.name: axis.opt for axis in self.axes},
            "max": {axis.name: axis.max for axis in self.axes},
            "unseen": {axis.name: axis.unseen(low=i % 2 == 0) for i, axis in enumerate(self.axes)},
        }


@dataclass(frozen=True)
class Stepped:
    """A network run step by step: a ``first`` graph once, then a ``next`` graph with carried caches.

    Beyond the parity of each graph, the whole run is verified against the network's own loop.

    Args:
        first: its outputs ``next_X`` become inputs ``X`` of the following step.
        next: takes and gives the caches.
        axis: dimension of the first input and first output along which the steps run.
        steps: number of steps of the verified run.
        reference: the network's own whole run, ``[..., steps, ...]`` in, all outputs joined out.
    """

    first: Component
    next: Component
    axis: int
    steps: int
    reference: Callable[[torch.Tensor], torch.Tensor]


FileContent = Path | bytes | Callable[[], bytes]
"""A file or folder to copy, the bytes of a file, or what makes them."""


@dataclass(frozen=True)
class AuthoredModel:
    """A model of `model_repository/` that is placed beside the exported ones.

    Args:
        name: its folder in the repository.
        files: what export adds to it, by path within the model's folder.
        source: its folder in `model_repository/`, where that has another name.
    """

    name: str
    files: Mapping[str, FileContent] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a checkpoint becomes: its graphs and the authored models around them."""

    components: tuple[Component, ...]
    authored: tuple[AuthoredModel, ...]
    stepped: tuple[Stepped, ...] = ()


@dataclass(frozen=True)
class Variant:
    """Another way to serve a family's checkpoints, chosen at the export.

    Args:
        summary: one line for people.
        plan: as :attr:`Family.plan`.
    """

    summary: str
    plan: Callable[[Checkpoint, Sequence[Axis]], Plan]


@dataclass(frozen=True)
class Preset:
    """A small random checkpoint that a family can write.

    Args:
        summary: one line for people.
        configs: the configuration of each part, by file path within the checkpoint. A checkpoint
            whose files say the same is of this preset.
        axes: ranges to export such a checkpoint with.
        write: writes the checkpoint into a folder, from the configs and a seed.
    """

    summary: str
    configs: Mapping[str, Mapping[str, Any]]
    axes: tuple[Axis, ...]
    write: Callable[[Path, int], None]


@dataclass(frozen=True)
class Family:
    """One family of checkpoints and how it is served.

    Args:
        name: as in commands and model names.
        upstream: the public checkpoint that it stands for.
        summary: one line for people.
        served: names of the models that clients call.
        layout: paths that a checkpoint must have.
        axes: ranges for a checkpoint that is of no preset.
        presets: by name.
        plan: reads a checkpoint's configuration and describes what it becomes.
        variants: other such plans, by name.
        trained: the family of the checkpoints that users train for this one and export by name; None where
            there is no such training.
        files: the layout's paths by role (``conf``, ``ckpt``), where a checkpoint may also be given as files
            of any names and places: all of them, each by the option of its role.
    """

    name: str
    upstream: str
    summary: str
    served: tuple[str, ...]
    layout: tuple[str, ...]
    axes: tuple[Axis, ...]
    presets: Mapping[str, Preset]
    plan: Callable[[Checkpoint, Sequence[Axis]], Plan]
    variants: Mapping[str, Variant] = field(default_factory=dict)
    trained: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
