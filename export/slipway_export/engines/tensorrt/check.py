"""Check of ONNX files by the real parser and builder: those of an export, of a repository, or any other.

The sizes of dynamic dimensions come from the report that an export writes beside a graph, from the manifest
of a placed model, or from the user (``--axis``). A graph is built once with all profiles, and once with each
profile if there are several, which gives the memory of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway_export.engines.tensorrt.build import build_engine
from slipway_export.engines.tensorrt.choice import EngineChoice
from slipway_export.engines.tensorrt.plan import EnginePlan, points_of, profiles_at
from slipway_export.engines.tensorrt.report import BuildReport
from slipway_export.engines.tensorrt.staged_engine import tensor_problems
from slipway_export.repository.load_check import file_signature
from slipway_export.repository.publish import MANIFEST
from slipway_export.spec import Axis
from slipway_serving.protocol.axis_expressions import Size
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature


@dataclass(frozen=True)
class CheckedGraph:
    """Result of a check of one graph.

    Args:
        graph: Path of the ONNX file.
        plan: Plan of its engine.
        report: Report of the build with all profiles.
        differences: Problems of tensors that differ from those of the file.
        attention: Number of attention operations in the graph.
        memory: Memory of the activations with each profile, in bytes, by name of the profile.
    """

    graph: Path
    plan: EnginePlan
    report: BuildReport
    differences: tuple[str, ...]
    attention: int
    memory: Mapping[str, int]

    @property
    def passed(self) -> bool:
        """Whether the graph was parsed and built, with the tensors of its file."""
        return self.report.built and not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        return {
            "graph": str(self.graph),
            "targets": list(self.plan.targets),
            "command": self.plan.command,
            "differences": list(self.differences),
            "attention": self.attention,
            "memory": dict(self.memory),
            **self.report.to_json(),
        }


def graphs_to_check(path: Path) -> list[Path]:
    """Return the ONNX files of a path: the file itself, or those of all models of a repository.

    Raises:
        InvalidRequest: There is no such file, or the repository has no graph.
    """
    if path.is_file() and path.suffix == ".onnx":
        return [path]
    found = sorted(path.glob("*/*/*.onnx")) if path.is_dir() else []
    if not found:
        raise InvalidRequest(f"engines: {path} must be an .onnx file or a repository with graphs, got none")
    return found


def check_graph(graph: Path, choice: EngineChoice, axes: Sequence[Axis] = ()) -> CheckedGraph:
    """Parse and build a graph, and compare its tensors with those of its file.

    Args:
        graph: Path of the ONNX file.
        choice: Choice of how the engine is built.
        axes: Ranges of axes from the user, which replace the recorded ones.

    Raises:
        InvalidRequest: The file is not ONNX, or a dynamic dimension has no range.
    """
    plan = plan_of_graph(graph, choice, axes)
    signature = file_signature(graph)
    report = build_engine(plan)
    memory = {profile.name: report.activation_bytes for profile in plan.profiles}
    if report.built and len(plan.profiles) > 1:
        for profile in plan.profiles:
            alone = EnginePlan(plan.library, graph, None, plan.targets, (profile,), plan.options)
            memory[profile.name] = build_engine(alone).activation_bytes
    differences = tuple(tensor_problems(report, signature)) if report.parsed else ()
    return CheckedGraph(graph, plan, report, differences, attention_operations(graph), memory)


def plan_of_graph(
    graph: Path, choice: EngineChoice, axes: Sequence[Axis] = (), engine: Path | None = None
) -> EnginePlan:
    """Return the plan of a graph's engine from its file.

    Args:
        graph: Path of the ONNX file.
        choice: Choice of how the engine is built.
        axes: Ranges of axes from the user, which replace the recorded ones.
        engine: File to write; None to write none.

    Raises:
        InvalidRequest: The file is not ONNX, or a dynamic dimension has no range.
    """
    shapes = _shapes(_signature(graph))
    known = {axis.name: axis for axis in _recorded_axes(graph)} | {axis.name: axis for axis in axes}
    needed = sorted({axis for sizes in shapes.values() for axis in _axes_of(sizes)})
    if missing := [axis for axis in needed if axis not in known]:
        raise InvalidRequest(
            f"{graph}: axis must be given for each dynamic dimension of the inputs, got none for"
            f" {', '.join(missing)}; try --axis {missing[0]}=MIN:OPT:MAX"
        )
    points = points_of(list(known.values()))
    profiles = profiles_at(shapes, *points, choice.profiles)
    return EnginePlan(choice.library, graph, engine, choice.targets, profiles, choice.options)


def attention_operations(graph: Path) -> int:
    """Return how many attentions a graph has: the operator, or a softmax whose result is multiplied."""
    import onnx

    nodes = onnx.load(graph, load_external_data=False).graph.node
    users: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            users.setdefault(name, []).append(node)
    return sum(
        node.op_type == "Attention" or (node.op_type == "Softmax" and _is_multiplied(node.output[0], users))
        for node in nodes
    )


def _is_multiplied(name: str, users: Mapping[str, Sequence[Any]], depth: int = 3) -> bool:
    """Return whether a value is multiplied by a matrix, at once or after casts and masks."""
    found = users.get(name, ())
    return any(node.op_type == "MatMul" for node in found) or any(
        node.op_type in ("Cast", "Where") and depth > 0 and _is_multiplied(node.output[0], users, depth - 1)
        for node in found
    )


def _signature(graph: Path) -> Signature:
    from google.protobuf.message import DecodeError

    try:
        return file_signature(graph)
    except (DecodeError, OSError) as error:
        raise InvalidRequest(f"{graph}: must be an ONNX file, got {error}") from None


def _shapes(signature: Signature) -> dict[str, list[int | Size]]:
    return {
        name: [_size(tensor, index) for index in range(len(tensor.shape))]
        for name, tensor in signature.inputs.items()
    }


def _size(tensor: GraphTensor, index: int) -> int | Size:
    """Return a dimension of an input; one without a name is an axis ``input.index``."""
    size = tensor.shape[index]
    if isinstance(size, int) and size > 0:
        return size
    text = str(size or "").replace("*", " * ")
    try:
        return Size.parse(text)
    except InvalidRequest:
        return Size((((text or f"{tensor.name}.{index}",), 1),))


def _axes_of(sizes: Sequence[int | Size]) -> Iterator[str]:
    for size in sizes:
        if isinstance(size, Size):
            yield from size.axes


def _recorded_axes(graph: Path) -> list[Axis]:
    """Return the axes in the report beside a graph, or in the manifest of its model; none without either."""
    for path in (graph.with_name(f"{graph.name}.json"), graph.parent.parent / MANIFEST):
        try:
            axes = json.loads(path.read_text(encoding="utf-8"))["axes"]
            return [Axis(name, *sizes) for name, sizes in axes.items()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return []
