"""Declarative description of a family's components and their tensors, from which everything else is derived.

A family states its components as the frozen dataclasses below. From them, `graph/onnx.py` derives the dynamic
shapes of the export, `verification/comparison.py` the shapes at which the graph is compared with PyTorch, and
`repository/publish.py` Triton's `config.pbtxt` and the warm-up request. Nothing here imports torch, so that
the light client can list the families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_serving.protocol.axis_expressions import Point, Size
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    import torch

    from slipway_export.checkpoint.checkpoint import Checkpoint
    from slipway_serving.protocol.events import Event
    from slipway_serving.protocol.requests import Request

BATCH = "batch"
"""Name of the axis that Triton may batch over. A graph is batched if all its tensors begin with this axis."""

DEFAULT_BUDGET = 300.0
"""Default limit for the verification of an export on the exporting machine, in seconds."""

CARRIED_PREFIX = "next_"
"""Prefix of carried outputs: a step's output ``next_X`` becomes the input ``X`` of the next step."""


class Precision(StrEnum):
    """Number format of a graph's weights and arithmetic; its inputs and outputs stay float32.

    ``int8`` quantizes weights per channel and activations dynamically. ``int4`` quantizes only the weights,
    in blocks, to save memory.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def is_integer(self) -> bool:
        """Whether the graph is made by quantizing the float32 graph."""
        return self in (Precision.INT8, Precision.INT4)


# Conv and most other operators accept bfloat16 from opset 22 on. No opset below 17 has been tried.
LOWEST_OPSET = {precision: 22 if precision is Precision.BF16 else 17 for precision in Precision}


class Engine(StrEnum):
    """Runtime that executes a component, and for which its graph is made if it has one.

    ``onnxruntime`` graphs use ONNX Runtime's fused operators; ``tensorrt`` graphs use only the standard ones.
    ``portable`` graphs also use only the standard ones and are for any runtime. They have upstream's inputs
    and outputs where upstream has such a file, and Triton serves them with ONNX Runtime. ``torch`` has no
    graph: PyTorch runs the checkpoint's own network.
    """

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"
    PORTABLE = "portable"
    TORCH = "torch"

    @property
    def backend(self) -> str:
        """Name of the Triton backend that runs the component."""
        return _BACKENDS.get(self, self.value)


_BACKENDS = {Engine.PORTABLE: "onnxruntime", Engine.TORCH: "python"}


class DType(StrEnum):
    """Element type of a tensor, under numpy's name."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT64 = "int64"
    INT32 = "int32"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def triton(self) -> str:
        """Name of the value of Triton's ``DataType`` protobuf enum."""
        return f"TYPE_{self.value.upper().replace('FLOAT', 'FP')}"

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type."""
        return self in (DType.FLOAT32, DType.FLOAT16)

    @property
    def values(self) -> tuple[int, int]:
        """Half-open range of the values with which a tensor of integers or booleans is verified."""
        return (0, 256) if self is DType.UINT8 else (0, 2)


@dataclass(frozen=True)
class Axis:
    """A named dimension and the range that it may take.

    Args:
        name: Word that names the axis, e.g. ``latent_frames``.
        min: Smallest size, at least 1.
        opt: Size that the export traces, tunes for and warms up with.
        max: Largest size.
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

    def around(self, size: int) -> Axis:
        """Return the axis traced at another size, with its range extended to include that size."""
        return Axis(self.name, min(self.min, size), size, max(self.max, size))

    @property
    def fixed(self) -> Axis:
        """The axis with the traced size as its only size."""
        return Axis(self.name, self.opt, self.opt, self.opt)

    def unseen(self, low: bool) -> int:
        """Return a size within the range that is none of min, opt and max, or opt if there is no other.

        Args:
            low: True to look between min and opt first, False to look between opt and max first. Alternate it
                from axis to axis to get a point at which no two axes agree by chance.
        """
        below, above = range(self.min + 1, self.opt), range(self.opt + 1, self.max)
        for sizes in (below, above) if low else (above, below):
            if sizes:
                return sizes[len(sizes) // 2]
        return self.opt


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Args:
        name: Name of the tensor in the PyTorch forward.
        dtype: Element type.
        shape: Dimensions: an int for a fixed one; otherwise an axis or a sum of products of axes, such as
            ``"4 * frames - 3"`` or ``"height * width + text_tokens"``
            (:class:`slipway_serving.protocol.axis_expressions.Size`).
        values: Half-open range of the integers with which an input is verified. With None, a float type gets
            normal noise, uint8 its whole range, and any other type 0 and 1.
        ones: True if the verification input is all ones (masks).
        initial: Value that fills the input before the first step of a :class:`Stepped`; None if a separate
            graph produces the first value.
        exact: True if every element of the output must equal PyTorch's in any precision (labels, indices).
        example: Function that makes the verification input of a given shape, for inputs where random values
            are not what a served network sees (token ids of real texts).
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    values: tuple[int, int] | None = None
    ones: bool = False
    initial: float | None = None
    exact: bool = False
    example: Callable[[tuple[int, ...]], np.ndarray[Any, Any]] | None = None

    def __post_init__(self) -> None:
        low, high = self.values or self.dtype.values
        limit = {DType.UINT8: 256, DType.BOOL: 2}.get(self.dtype)
        if not (low < high and (limit is None or (low >= 0 and high <= limit))):
            raise InvalidRequest(
                f"tensor {self.name} must have values of {self.dtype.value} in a range that is not empty,"
                f" got {low} to {high - 1}"
            )

    @property
    def sizes(self) -> tuple[int | Size, ...]:
        """Dimensions with the expressions parsed."""
        return tuple(Size.parse(size) if isinstance(size, str) else size for size in self.shape)

    @property
    def batched(self) -> bool:
        """Whether Triton may batch over the first dimension."""
        return bool(self.shape) and self.shape[0] == BATCH

    def at(self, point: Point) -> tuple[int, ...]:
        """Return the shape at a point, which gives the size of every axis."""
        return tuple(size.at(point) if isinstance(size, Size) else size for size in self.sizes)


@dataclass(frozen=True)
class Tolerance:
    """Bounds of a verified graph against PyTorch in float32.

    Args:
        max_abs: Largest absolute difference.
        relative_l2: ``|graph - torch| / |torch|`` in the L2 norm.
        cosine: Smallest cosine similarity.
        row_cosine: Smallest cosine similarity of a row along the last dimension, such as a token's embedding.
            The loss of one row hardly shows in the whole tensor. None if the rows have no meaning of their
            own.
    """

    max_abs: float
    relative_l2: float
    cosine: float
    row_cosine: float | None = None


def _as_it_is(_: torch.nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Component:
    """One network with one signature, exported to one graph.

    Args:
        name: Name of the served model without the family's prefix, e.g. ``denoiser_high``.
        inputs: Input tensors, in the order of the forward's arguments.
        outputs: Output tensors, in the order of the forward's results.
        axes: All axes that the shapes name.
        load: Function that builds the network in a precision, in eval mode. The network's forward takes and
            returns the tensors as described (float32 at the edges, whatever the precision inside). For
            tracing, this function is called where `Checkpoint.load` leaves the weights on disk, so it must
            not compute anything from them before the forward.
        tolerance: Bounds per precision. In a precision that is missing, the graph stays in float32 and its
            manifest says so.
        keep_float: Patterns of module paths (``*.proj_out``) whose products integer precisions leave alone.
        outliers: Patterns of module paths whose products have inputs with outliers. Integer precisions keep
            these inputs in float32, and int8 stores the weights with 8 bits in blocks. Engine ``portable``,
            which has no operator for that, leaves the products alone.
        lower: Context manager in which the network is traced for ONNX Runtime. It replaces operations that
            torch would decompose by ONNX Runtime's operators, and restores them afterwards.
        merge_us: Longest time that Triton may delay a request to merge it with others of its shape into one
            batch, in microseconds; None never merges requests. A merged request is rounded differently, so
            set this only for components whose results need not be identical to the bit.
        merge_rows: Largest number of rows in a batch of merged requests; None allows as many as the batch
            axis. A single request may have more.
        queue_limit: Largest number of requests that may wait for the model; further ones are refused. None
            sets no limit.
        queue_limit_with: Names of other models whose waiting requests count too.
        rows: Fewest and most rows that the surrounding models send in one request; None if none sends any. An
            export that places these models must allow both.
        cached: True if Triton answers a repeated request from its response cache. The component must have a
            single output, because the cache key does not include which outputs a request asks for.
        graph: File stem of the graph. ``model`` makes a Triton model of its own; any other stem is a graph
            that an authored model of that name runs.
        lowest_opset: Lowest ONNX operator set that the graph can be written in, by precision.
        portable: Component that engine ``portable`` exports in place of this one, if upstream's own file has
            another signature. No served model may depend on the difference.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: tuple[Axis, ...]
    load: Callable[[Precision], torch.nn.Module]
    tolerance: Mapping[Precision, Tolerance]
    keep_float: tuple[str, ...] = ()
    outliers: tuple[str, ...] = ()
    lower: Callable[[torch.nn.Module], AbstractContextManager[None]] = _as_it_is
    merge_us: int | None = None
    merge_rows: int | None = None
    queue_limit: int | None = None
    queue_limit_with: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None
    cached: bool = False
    graph: str = "model"
    lowest_opset: Mapping[Precision, int] = field(default_factory=lambda: dict(LOWEST_OPSET))
    portable: Component | None = None

    def __post_init__(self) -> None:
        if self.cached and len(self.outputs) != 1:
            raise InvalidRequest(
                f"{self.label}: a component that is cached must have one output, got {len(self.outputs)}"
            )
        known = {axis.name for axis in self.axes}
        for tensor in (*self.inputs, *self.outputs):
            for size in tensor.sizes:
                if isinstance(size, Size) and (unknown := size.axes - known):
                    raise InvalidRequest(
                        f"{self.label}: {tensor.name} must use axes of the component"
                        f" ({', '.join(sorted(known))}), got {', '.join(sorted(unknown))}"
                    )
            for name, point in self.points().items():
                if any(size < 1 for size in tensor.at(point)):
                    sizes = ", ".join(f"{axis}={size}" for axis, size in point.items())
                    raise InvalidRequest(
                        f"{self.label}: {tensor.name} must have sizes of at least 1 in the range of its axes,"
                        f" got {list(tensor.at(point))} at {name} ({sizes})"
                    )

    @property
    def label(self) -> str:
        """Name of the graph in reports: ``denoiser_high`` or ``vae_decoder/next``."""
        return self.name if self.graph == "model" else f"{self.name}/{self.graph}"

    @property
    def rows_axis(self) -> Axis | None:
        """The axis that every tensor begins with, if there is one. Its size is the row count of a request."""
        if all(tensor.batched for tensor in (*self.inputs, *self.outputs)):
            return next(axis for axis in self.axes if axis.name == BATCH)
        return None

    @property
    def batch_axis(self) -> Axis | None:
        """The axis that Triton batches over: the axis of the rows, if its size varies.

        Triton's backends batch only graphs whose first dimension is dynamic. If the axis has a single size,
        the model is served without batching and its dimensions include the rows, so requests have the same
        shapes.
        """
        axis = self.rows_axis
        return None if axis is None or axis.min == axis.max else axis

    def keeps_float(self, path: str) -> bool:
        """Return whether `keep_float` names a module's path, or that of a module that contains it."""
        names = path.split(".")
        paths = [".".join(names[: i + 1]) for i in range(len(names))]
        return any(fnmatchcase(each, pattern) for each in paths for pattern in self.keep_float)

    def varying(self, tensor: TensorSpec) -> tuple[Size | int, ...]:
        """Return a tensor's dimensions as the graph has them, with the size of each fixed axis filled in."""
        fixed = {axis.name: axis.opt for axis in self.axes if axis.min == axis.max}
        return tuple(size.given(fixed) if isinstance(size, Size) else size for size in tensor.sizes)

    def precision(self, asked: Precision) -> Precision:
        """Return the precision that the graph gets when the user asks for one."""
        return asked if asked in self.tolerance else Precision.FP32

    def for_portable(self) -> Component:
        """Return the component that takes this one's place for engine ``portable``.

        It lacks the integer precisions if inputs with outliers would leave every product in float32.
        """
        chosen = self.portable or self
        if "*" not in chosen.outliers:
            return chosen
        able = {precision: bound for precision, bound in chosen.tolerance.items() if not precision.is_integer}
        return replace(chosen, tolerance=able)

    def points(self) -> dict[str, Point]:
        """Return the points at which the graph is verified, by name.

        ``opt`` is the point that the export traces. ``unseen`` is none of the other three.
        """
        return {
            "min": {axis.name: axis.min for axis in self.axes},
            "opt": {axis.name: axis.opt for axis in self.axes},
            "max": {axis.name: axis.max for axis in self.axes},
            "unseen": {axis.name: axis.unseen(low=i % 2 == 0) for i, axis in enumerate(self.axes)},
        }


@dataclass(frozen=True)
class StepInput:
    """An input of a :class:`Stepped` that is new at each step.

    Args:
        axis: Dimension along which the tensor of a whole run is cut into those of its steps; None if a whole
            run has one tensor for each step, joined along a new first dimension.
        overlap: Number of places along the axis that a step shares with the step before.
        each_run: True if the input is also new at each run of a step, False if it is the same in all runs of
            a step.
        make: Function that returns the tensor of a step, counted from 0, if it follows from the step
            (positions). The tensor may be one that broadcasts to the shape (one position for a batch). None
            uses an example as its :class:`TensorSpec` describes it.
        committed: Value that fills the input in the run that commits (a timestep of 0); None uses a tensor
            like those of the other runs.
    """

    axis: int | None = None
    overlap: int = 0
    each_run: bool = False
    make: Callable[[int], np.ndarray[Any, Any]] | None = None
    committed: float | None = None

    def __post_init__(self) -> None:
        if self.overlap < 0 or (self.overlap and self.axis is None):
            raise InvalidRequest(
                f"a step's input must be cut along an axis to overlap by at least 0, got axis {self.axis} and"
                f" overlap {self.overlap}"
            )


WholeRun = Callable[[Mapping[str, "torch.Tensor"]], Mapping[str, "torch.Tensor"]]


@dataclass(frozen=True)
class Stepped:
    """A network run step by step: the outputs ``next_X`` of a step become the inputs ``X`` of the next one.

    A step may consist of several runs of the same places, as a denoiser's runs on one block of frames do.
    Each run begins with the values carried over from the previous step, and only the results of the last run
    are carried over; that run commits. Inputs that are neither carried nor in `inputs` are the same at every
    step.

    In addition to the parity of each graph, the steps are verified against the network's own whole run.

    Args:
        next: Graph of every step, or of every step but the first.
        inputs: Inputs that are new at each step, by name.
        outputs: Dimension along which the outputs of the steps are joined into that of a whole run, for every
            output that is not carried; None as for :class:`StepInput`.
        steps: Number of steps of the verified run.
        reference: The network's own whole run over any number of steps, in float32 and on the device of its
            inputs. It takes the inputs that are not carried by name, joined over the steps, and returns the
            outputs in the same form.
        first: Graph of the first step, which has no carried inputs; None if `next` starts from the
            ``initial`` values of its inputs.
        runs: Number of times each step is run; the last run commits.

    Raises:
        InvalidRequest: The tensors of the graphs do not fit together as described above.
    """

    next: Component
    inputs: Mapping[str, StepInput]
    outputs: Mapping[str, int | None]
    steps: int
    reference: WholeRun
    first: Component | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        problems = [*self._carry_problems(), *self._name_problems()]
        if self.steps < 1 or self.runs < 1:
            problems.append(f"steps and runs must be at least 1, got {self.steps} and {self.runs}")
        if problems:
            raise InvalidRequest(f"{self.next.label}: " + " | ".join(problems))

    @property
    def carried(self) -> tuple[TensorSpec, ...]:
        """The inputs that a step receives from the step before."""
        given = {tensor.name for tensor in self.next.outputs}
        return tuple(tensor for tensor in self.next.inputs if CARRIED_PREFIX + tensor.name in given)

    @property
    def constants(self) -> tuple[TensorSpec, ...]:
        """The inputs that are the same at every step."""
        carried = {tensor.name for tensor in self.carried}
        return tuple(t for t in self.next.inputs if t.name not in carried and t.name not in self.inputs)

    def _carry_problems(self) -> list[str]:
        wanted = {CARRIED_PREFIX + t.name: (t.dtype, t.sizes) for t in self.carried}
        problems = [
            f"{tensor.name} must have an initial value where there is no first graph, got none"
            for tensor in self.carried
            if self.first is None and tensor.initial is None
        ]
        for graph in (self.next,) if self.first is None else (self.first, self.next):
            given = {t.name: (t.dtype, t.sizes) for t in graph.outputs if t.name.startswith(CARRIED_PREFIX)}
            problems += [
                f"output {name} of {graph.label} must be an input {name.removeprefix(CARRIED_PREFIX)} of the"
                " same shape and dtype, got another or none"
                for name in sorted(given.keys() | wanted.keys())
                if given.get(name) != wanted.get(name)
            ]
        return problems

    def _name_problems(self) -> list[str]:
        carried = {tensor.name for tensor in self.carried}
        inputs = {tensor.name for tensor in self.next.inputs} - carried
        plain = {tensor.name for tensor in self.next.outputs} - {CARRIED_PREFIX + name for name in carried}
        problems = []
        if unknown := sorted(self.inputs.keys() - inputs):
            problems.append(f"inputs new at each step must be inputs that are not carried, got {unknown}")
        if self.outputs.keys() != plain:
            problems.append(
                f"outputs must be those that are not carried, {sorted(plain)}, got {sorted(self.outputs)}"
            )
        if self.first is not None:
            if extra := sorted({tensor.name for tensor in self.first.inputs} - inputs):
                problems.append(f"{self.first.label} must take inputs of {self.next.label}, got {extra}")
            if missing := sorted(plain - {tensor.name for tensor in self.first.outputs}):
                problems.append(f"{self.first.label} must give {missing} too, got none")
        return problems


FileContent = Path | bytes | Callable[[], bytes]
"""File or folder to copy, content of a file in bytes, or function that makes the content."""


@dataclass(frozen=True)
class AuthoredModel:
    """A model of `model_repository/` that is placed beside the exported ones.

    Args:
        name: Name of its folder in the repository.
        files: Files that the export adds to it, by path within the model's folder.
        source: Name of its folder in `model_repository/`, if that differs; a path if the folder is elsewhere,
            as for a family in another distribution.
        request: Type of its requests, which gives the inputs of its `config.pbtxt`.
        events: Types of its answers, which give the outputs; by default those of the request.
        usual: Values of the request's fields that the exported axes are tuned for. The model's configuration
            includes them, so that a client that does not know the checkpoint can ask for what it can make.
    """

    name: str
    files: Mapping[str, FileContent] = field(default_factory=dict)
    source: str | Path | None = None
    request: type[Request] | None = None
    events: tuple[type[Event], ...] = ()
    usual: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Plan of a checkpoint: its graphs and the authored models around them."""

    components: tuple[Component, ...]
    authored: tuple[AuthoredModel, ...]
    stepped: tuple[Stepped, ...] = ()


@dataclass(frozen=True)
class Preset:
    """A checkpoint that a family can write, with random weights or trained ones.

    Args:
        summary: Description for people, one line.
        configs: Configuration of each part, by file path within the checkpoint. A checkpoint whose files say
            the same is of this preset.
        axes: Ranges to export such a checkpoint with.
        write: Function that writes the checkpoint into a folder, from the configs and a seed; the seed of a
            trained checkpoint is 0.
    """

    summary: str
    configs: Mapping[str, Mapping[str, Any]]
    axes: tuple[Axis, ...]
    write: Callable[[Path, int], None]


@dataclass(frozen=True)
class Part:
    """A folder of a checkpoint, which may also lie in a place of its own (``--part NAME=DIR|HUB_ID``).

    Args:
        name: Name of the folder, e.g. ``text_encoder``.
        files: Paths of the required files within the folder.
        optional: True if a checkpoint may lack the part.
        components: Names of the components made of this part alone, so that it may also be given by itself
            (``--model-path``).
    """

    name: str
    files: tuple[str, ...] = ()
    optional: bool = False
    components: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedFile:
    """A file of a checkpoint that may be given by an option of its own, under any name.

    Args:
        path: Path within the layout.
        default: Path of the file if its option is left out; None if the option is required.
        leads_to: Function that finds the other files of a layout that belong to the file; it returns their
            places by path within the layout.
    """

    path: str
    default: Path | None = None
    leads_to: Callable[[Path], Mapping[str, Path]] | None = None


@dataclass(frozen=True)
class GraphFile:
    """The one graph that upstream's own exporter makes, for an export into a file.

    Args:
        label: Label of the component that the file contains if the user names none.
        path: Path of the file if checkpoint files are given, and neither a file nor a repository.
        opset: ONNX operator set of that graph in a file, if its precision allows it.
    """

    label: str
    path: Path
    opset: int


@dataclass(frozen=True)
class Variant:
    """Another way to serve a family's checkpoints, chosen at the export (``--variant``, ``--mode``).

    It may require other files than the family's own plan, such as a mode whose weights are in an additional
    file.

    Args:
        summary: Description for people, one line.
        plan: Function as :attr:`Family.plan`.
        layout: Layout as :attr:`Family.layout`; the family's when None.
        files: Files as :attr:`Family.files`; the family's when None.
        graph_file: Graph file as :attr:`Family.graph_file`; the family's when None.
    """

    summary: str
    plan: Callable[[Checkpoint, Sequence[Axis]], Plan]
    layout: tuple[str | Part, ...] | None = None
    files: Mapping[str, NamedFile] | None = None
    graph_file: GraphFile | None = None


@dataclass(frozen=True)
class Family:
    """One family of checkpoints and how it is served.

    Args:
        name: Name in commands and model names.
        upstream: Public checkpoint that the family represents.
        summary: Description for people, one line.
        served: Names of the models that clients call.
        layout: Required content of a checkpoint: files by their paths, and the folders of its parts.
        axes: Ranges for a checkpoint that is of no preset.
        presets: Presets, by name.
        plan: Function that reads a checkpoint's configuration and describes what it becomes.
        variants: Alternative plans, by name, each possibly for other files.
        requests: Types of the clients' requests; `slipway generate` has a command for each.
        trained: Family of the checkpoints that users train for this one and export by name; None if there is
            no such training.
        files: Files of the layout that have an option of their own, by role (``conf``, ``ckpt``). Such a
            checkpoint may also be given as files of any names and places, by all the options without a
            default.
        sizes: Names of axes, by the options that upstream has for the sizes of a trace (``batch-size``).
        graph_file: Graph that an export into a file makes if the user names no component; None if one must be
            named.
        former_names: Names of components in this project, by the name that another exporter uses
            (``--model-type``).
    """

    name: str
    upstream: str
    summary: str
    served: tuple[str, ...]
    layout: tuple[str | Part, ...]
    axes: tuple[Axis, ...]
    presets: Mapping[str, Preset]
    plan: Callable[[Checkpoint, Sequence[Axis]], Plan]
    variants: Mapping[str, Variant] = field(default_factory=dict)
    requests: tuple[type[Request], ...] = ()
    trained: str | None = None
    files: Mapping[str, NamedFile] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    graph_file: GraphFile | None = None
    former_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def variant(self, name: str | None) -> Family:
        """Return the family with the plan and the files of one of its variants.

        Args:
            name: Name of the variant; None for the family itself.

        Raises:
            InvalidRequest: The family has no variant of that name.
        """
        if name is None:
            return self
        if name not in self.variants:
            known = ", ".join(self.variants) or f"left out for {self.name}, which has none"
            raise InvalidRequest(f"variant must be {known}, got {name!r}")
        chosen = self.variants[name]
        return replace(
            self,
            plan=chosen.plan,
            layout=self.layout if chosen.layout is None else chosen.layout,
            files=self.files if chosen.files is None else chosen.files,
            graph_file=self.graph_file if chosen.graph_file is None else chosen.graph_file,
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of a checkpoint that may lie in places of their own."""
        return tuple(entry for entry in self.layout if isinstance(entry, Part))

    @property
    def parts_alone(self) -> tuple[str, ...]:
        """Names of the components whose part may be given by itself."""
        return tuple(name for part in self.parts for name in part.components)

    def component_named(self, name: str) -> str:
        """Return this project's name of a component, given the name that another exporter uses.

        Raises:
            InvalidRequest: The name stands for several components here.
        """
        here = self.former_names.get(name, (name,))
        if len(here) > 1:
            raise InvalidRequest(
                f"export: component must be {' or '.join(here)} for {self.name}, got {name}; try"
                f" --component {here[0]}"
            )
        return here[0]
