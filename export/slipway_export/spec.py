"""The description of a component's tensors: the one place from which everything else is derived.

A family states its components as the frozen dataclasses below; `onnx.py` derives the dynamic shapes
of the export from them, `verify.py` the shapes at which the graph is compared with PyTorch,
`repository.py` Triton's `config.pbtxt` and warm-up request. Nothing here imports torch, so that the
light client can list the families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_serving.errors import InvalidRequest
from slipway_serving.size import Point, Size

if TYPE_CHECKING:
    import numpy as np
    import torch

    from slipway_export.checkpoint import Checkpoint
    from slipway_serving.events import Event
    from slipway_serving.requests import Request

BATCH = "batch"
"""Name of the axis that Triton may batch over; a graph whose tensors all begin with it is batched."""

DEFAULT_BUDGET = 300.0
"""Seconds that the verification of an export may take on the machine that exports."""

CARRIED_PREFIX = "next_"
"""An output ``next_X`` is what a step leaves for the input ``X`` of the following one."""


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


# Conv and most others accept bfloat16 from 22 on; below 17 nothing has been tried.
LOWEST_OPSET = {precision: 22 if precision is Precision.BF16 else 17 for precision in Precision}


class Engine(StrEnum):
    """What runs a component, and what its graph is made for where it has one.

    ``onnxruntime`` graphs use its fused operators; ``tensorrt`` graphs use the standard ones only. So do
    ``portable`` graphs, which are for any runtime, and have upstream's inputs and outputs where upstream has
    such a file; Triton serves them by ONNX Runtime. ``torch`` has no graph: PyTorch runs the checkpoint's own
    network.
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
        """Whether its values are rounded numbers."""
        return self in (DType.FLOAT32, DType.FLOAT16)

    @property
    def values(self) -> tuple[int, int]:
        """Half-open range of what a tensor of whole numbers or truth values is verified with."""
        return (0, 256) if self is DType.UINT8 else (0, 2)


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

    def around(self, size: int) -> Axis:
        """Return the axis traced at another size, its range no larger than it takes."""
        return Axis(self.name, min(self.min, size), size, max(self.max, size))

    @property
    def fixed(self) -> Axis:
        """The axis with the one size that is traced."""
        return Axis(self.name, self.opt, self.opt, self.opt)

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
class TensorSpec:
    """One input or output of a graph.

    Args:
        name: as in the PyTorch forward.
        dtype: element type.
        shape: ints for fixed dimensions; for others an axis or a sum of products of axes, such as
            ``"4 * frames - 3"`` or ``"height * width + text_tokens"`` (:class:`slipway_serving.size.Size`).
        values: half-open range of the whole numbers that an input is verified with; for None normal
            noise of a float type, 0 and 1 of another, all of uint8.
        ones: the verification input is all ones (masks).
        initial: what fills the input before the first step of a :class:`Stepped`; None where a graph of
            its own gives the first.
        exact: the output must equal PyTorch's in every element, whatever the precision (labels, indices).
        example: makes what an input is verified with, of a shape, where random values are not what a served
            network sees (token ids of real texts).
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
        row_cosine: smallest cosine similarity of a row along the last dimension, such as a token's embedding:
            one that is lost hardly shows in the whole tensor. None where rows mean nothing.
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
        name: the served model's name without the family's, e.g. ``denoiser_high``.
        inputs: in the order of the forward's arguments.
        outputs: in the order of the forward's results.
        axes: every axis that the shapes name.
        load: builds the network in a precision, in eval mode; its forward takes and gives the
            tensors as described (float32 at the edges whatever the precision inside). For tracing it is
            called where `Checkpoint.load` leaves the weights on disk: nothing may be computed from them
            before the forward.
        tolerance: bounds per precision; in a precision that is missing the graph stays in float32, and
            its manifest says so.
        keep_float: patterns of module paths (``*.proj_out``) whose products integer precisions leave alone.
        outliers: patterns of module paths whose products have inputs with outliers: integer precisions
            leave these in float32, and int8 gives the weights 8 bits in blocks. Engine ``portable``, which
            has no operator for that, leaves the products alone.
        lower: a context in which the network is traced for ONNX Runtime: swaps what torch would decompose
            for its operators, and puts it back.
        merge_us: how long Triton may hold a request back to merge it with others of its shape into one
            batch, microseconds; None never merges them. A merged request is rounded differently, which
            is for components whose results need not be the same to the bit.
        merge_rows: rows that a batch of merged requests has at most; None is as many as the batch axis. One
            request may have more.
        queue_limit: requests that may wait for the model, those beyond are refused; None is any number.
        queue_limit_with: models whose waiting requests count too.
        rows: Fewest and most rows that the models around it send in one request; None where none sends any.
            An export that places these models must allow both.
        cached: Triton answers a request that comes again from its response cache. Only for one output: the
            key of that cache leaves out which outputs a request asks for.
        graph: file stem of the graph. ``model`` makes a Triton model of its own; any other stem is a
            graph that an authored model of that name runs.
        lowest_opset: the lowest ONNX operator set that the graph can be written in, by precision.
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
        """How reports name the graph: ``denoiser_high`` or ``vae_decoder/next``."""
        return self.name if self.graph == "model" else f"{self.name}/{self.graph}"

    @property
    def rows_axis(self) -> Axis | None:
        """The axis that every tensor begins with, if there is one: its size is the rows of a request."""
        if all(tensor.batched for tensor in (*self.inputs, *self.outputs)):
            return next(axis for axis in self.axes if axis.name == BATCH)
        return None

    @property
    def batch_axis(self) -> Axis | None:
        """The axis that Triton batches over: that of the rows, if it varies.

        Triton's backends batch only graphs whose first dimension is dynamic. Where it has one size, the model
        is served without batching and its dimensions include the rows, so requests have the same shapes.
        """
        axis = self.rows_axis
        return None if axis is None or axis.min == axis.max else axis

    def keeps_float(self, path: str) -> bool:
        """Whether integer precisions leave a module's product alone: its path, or one around it, is named."""
        names = path.split(".")
        paths = [".".join(names[: i + 1]) for i in range(len(names))]
        return any(fnmatchcase(each, pattern) for each in paths for pattern in self.keep_float)

    def varying(self, tensor: TensorSpec) -> tuple[Size | int, ...]:
        """Return a tensor's dimensions as its graph has them: with the axes of one size only put in."""
        fixed = {axis.name: axis.opt for axis in self.axes if axis.min == axis.max}
        return tuple(size.given(fixed) if isinstance(size, Size) else size for size in tensor.sizes)

    def precision(self, asked: Precision) -> Precision:
        """Return the precision of the graph when the user asks for one."""
        return asked if asked in self.tolerance else Precision.FP32

    def for_portable(self) -> Component:
        """Return the component that takes this one's place for engine ``portable``.

        It lacks the integer precisions where inputs with outliers would leave every product in float32.
        """
        chosen = self.portable or self
        if "*" not in chosen.outliers:
            return chosen
        able = {precision: bound for precision, bound in chosen.tolerance.items() if not precision.is_integer}
        return replace(chosen, tolerance=able)

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
class StepInput:
    """An input of a :class:`Stepped` that is new at each step.

    Args:
        axis: dimension along which the tensor of a whole run is cut into those of its steps; None where a
            whole run has one tensor for each step, joined along a new first dimension.
        overlap: how many places along the axis a step shares with the step before.
        each_run: new at each run of a step too; else the same in all runs of a step.
        make: gives the tensor of a step, counted from 0, where it follows from the step (positions), or one
            that spreads over its shape (one position for a batch); None for an example as its
            :class:`TensorSpec` describes it.
        committed: the value that fills it in the run that commits (a timestep of 0); None for one like the
            others'.
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
    """A network run step by step: outputs ``next_X`` of a step become inputs ``X`` of the following one.

    A step may be several runs of the same places, as a denoiser's runs on one block of frames are: each
    begins with what the step before carried on, and only what the last run gives is carried on; that
    one commits. Inputs that are neither carried nor in `inputs` are the same at every step.

    Beyond the parity of each graph, the steps are verified against the network's own whole run.

    Args:
        next: the graph of every step, or of every step but the first.
        inputs: what is new at each step, by input name.
        outputs: dimension along which a whole run's output is made of those of the steps, for every
            output that is not carried; None as for :class:`StepInput`.
        steps: number of steps of the verified run.
        reference: the network's own whole run over any number of steps, in float32 and on the device of
            its inputs: takes those that are not carried by name, joined over the steps, and gives the
            outputs so.
        first: the graph of the first step, which has nothing to carry on; None where `next` starts from
            what its inputs' ``initial`` says.
        runs: how many times each step is run; the last run commits.

    Raises:
        InvalidRequest: the graphs' tensors do not fit together as the words above say.
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
        """The inputs that a step takes from the step before."""
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
"""A file or folder to copy, the bytes of a file, or what makes them."""


@dataclass(frozen=True)
class AuthoredModel:
    """A model of `model_repository/` that is placed beside the exported ones.

    Args:
        name: its folder in the repository.
        files: what export adds to it, by path within the model's folder.
        source: its folder in `model_repository/`, where that has another name; a path where it lies
            elsewhere, as that of a family in another distribution does.
        request: what it takes: the inputs of its `config.pbtxt`.
        events: what it answers with: the outputs; by default those of the request.
        usual: Values of the request's fields that the exported axes are tuned for. Its configuration tells
            them, so that whoever does not know the checkpoint can ask for what it can make.
    """

    name: str
    files: Mapping[str, FileContent] = field(default_factory=dict)
    source: str | Path | None = None
    request: type[Request] | None = None
    events: tuple[type[Event], ...] = ()
    usual: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What a checkpoint becomes: its graphs and the authored models around them."""

    components: tuple[Component, ...]
    authored: tuple[AuthoredModel, ...]
    stepped: tuple[Stepped, ...] = ()


@dataclass(frozen=True)
class Preset:
    """A checkpoint that a family can write: of random weights, or one that was trained.

    Args:
        summary: one line for people.
        configs: the configuration of each part, by file path within the checkpoint. A checkpoint
            whose files say the same is of this preset.
        axes: ranges to export such a checkpoint with.
        write: writes the checkpoint into a folder, from the configs and a seed; of a trained one, 0.
    """

    summary: str
    configs: Mapping[str, Mapping[str, Any]]
    axes: tuple[Axis, ...]
    write: Callable[[Path, int], None]


@dataclass(frozen=True)
class Part:
    """A folder of a checkpoint, which may also lie in a place of its own (``--part NAME=DIR|HUB_ID``).

    Args:
        name: of the folder, e.g. ``text_encoder``.
        files: paths within the folder that must be there.
        optional: a checkpoint may lack it.
        components: names of those that are made of this part alone, so that it may also be given by itself
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
        path: within the layout.
        default: where it lies when its option is left out; None where that must be given.
        leads_to: finds what else of a layout the file goes with: where that lies, by paths within the layout.
    """

    path: str
    default: Path | None = None
    leads_to: Callable[[Path], Mapping[str, Path]] | None = None


@dataclass(frozen=True)
class GraphFile:
    """The one graph that upstream's own exporter makes, for an export into a file.

    Args:
        label: of the component that the file holds where none is named.
        path: of the file where checkpoint files are given, and neither a file nor a repository.
        opset: ONNX operator set of that graph in a file, where its precision allows it.
    """

    label: str
    path: Path
    opset: int


@dataclass(frozen=True)
class Variant:
    """Another way to serve a family's checkpoints, chosen at the export (``--variant``, ``--mode``).

    It may be of other files than the family's own plan: a mode whose weights are a file beside others'.

    Args:
        summary: one line for people.
        plan: as :attr:`Family.plan`.
        layout: as :attr:`Family.layout`; that one when None.
        files: as :attr:`Family.files`; those when None.
        graph_file: as :attr:`Family.graph_file`; that one when None.
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
        name: as in commands and model names.
        upstream: the public checkpoint that it stands for.
        summary: one line for people.
        served: names of the models that clients call.
        layout: what a checkpoint must have: files by their paths, and the folders of its parts.
        axes: ranges for a checkpoint that is of no preset.
        presets: by name.
        plan: reads a checkpoint's configuration and describes what it becomes.
        variants: other such plans, by name, each perhaps of other files.
        requests: what clients ask for: `slipway generate` has a command for each.
        trained: the family of the checkpoints that users train for this one and export by name; None where
            there is no such training.
        files: what of the layout has an option of its own, by role (``conf``, ``ckpt``), where a checkpoint
            may also be given as files of any names and places: by all the options without a default.
        sizes: axes by the options that upstream has for the sizes of a trace (``batch-size``).
        graph_file: what an export into a file makes where no component is named; None where one must be.
        former_names: what another exporter calls components (``--model-type``), and the names here.
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
        """Return the family as a variant has it: its plan, and the files that this takes.

        Args:
            name: of the variant; None for the family itself.

        Raises:
            InvalidRequest: there is none of that name.
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
        """Return a component's name here, where another exporter has its own for it.

        Raises:
            InvalidRequest: that name is of several components here.
        """
        here = self.former_names.get(name, (name,))
        if len(here) > 1:
            raise InvalidRequest(
                f"export: component must be {' or '.join(here)} for {self.name}, got {name}; try"
                f" --component {here[0]}"
            )
        return here[0]
