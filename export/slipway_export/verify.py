"""Compares an exported graph with its PyTorch network, and says by how much they differ.

Every output is compared at every point of the component (min, opt, max, and sizes that export never
saw), with the network in float32 as the reference whatever the graph's precision. A stepped network
is compared once more over a whole run (`verify_steps.py`). The rows become the parity table of the
manifest; a row that is outside its bounds keeps the component out of the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_export.onnx import example_inputs
from slipway_export.size import Point
from slipway_export.spec import Component, Precision, TensorSpec, Tolerance
from slipway_serving.errors import InvalidRequest, SlipwayError

if TYPE_CHECKING:
    import onnxruntime
    import torch

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], dict[str, Array]]

EXACT = Tolerance(max_abs=0.0, relative_l2=0.0, cosine=1.0)
"""The bounds of an output that must be equal."""


class ParityFailed(SlipwayError):
    """An exported graph differs from PyTorch by more than its bounds; nothing was placed."""

    code = "PARITY"


@dataclass(frozen=True)
class ParityRow:
    """How far one output is from PyTorch at one point.

    Args:
        graph: label of the component.
        output: name of the tensor.
        point: name of the point and the sizes of its axes.
        shape: of the output.
        max_abs: largest absolute difference.
        relative_l2: ``|graph - torch| / |torch|``.
        cosine: cosine similarity of the flattened outputs.
        bound: the tolerance that applies.
        verified_on: runtime and device, and what of the graph's arithmetic they do not carry.
        row_cosine: smallest cosine similarity of a row along the last dimension; None where no bound asks
            for it.
    """

    graph: str
    output: str
    point: str
    shape: tuple[int, ...]
    max_abs: float
    relative_l2: float
    cosine: float
    bound: Tolerance
    verified_on: str
    row_cosine: float | None = None

    @property
    def failures(self) -> list[str]:
        """The bounds that the row breaks, in words. Not-a-number breaks every one."""
        bound = self.bound
        checks = [
            ("max abs", self.max_abs, "<=", bound.max_abs, self.max_abs <= bound.max_abs),
            ("relative L2", self.relative_l2, "<=", bound.relative_l2, self.relative_l2 <= bound.relative_l2),
            ("cosine", self.cosine, ">=", bound.cosine, self.cosine >= bound.cosine),
        ]
        if bound.row_cosine is not None and self.row_cosine is not None:
            kept = self.row_cosine >= bound.row_cosine
            checks.append(("cosine of the worst row", self.row_cosine, ">=", bound.row_cosine, kept))
        return [
            f"{name} must be {sign} {limit:g}, got {value:.3g}"
            for name, value, sign, limit, ok in checks
            if not ok
        ]


@dataclass(frozen=True)
class Reference:
    """Inputs and PyTorch's float32 outputs of a component, by name of the point."""

    inputs: Mapping[str, Mapping[str, Array]]
    outputs: Mapping[str, Mapping[str, Array]]


def compute_reference(component: Component, module: torch.nn.Module) -> Reference:
    """Run the float32 network at every point of its component.

    Raises:
        InvalidRequest: an output is not of the shape and dtype that the component says.
    """
    import torch

    inputs = {name: example_inputs(component, point, seed=1) for name, point in component.points().items()}
    outputs: dict[str, dict[str, Array]] = {}
    with torch.no_grad():
        for name, arrays in inputs.items():
            result = module(*(torch.from_numpy(array) for array in arrays.values()))
            tensors = result if isinstance(result, tuple) else (result,)
            outputs[name] = {
                spec.name: tensor.numpy() for spec, tensor in zip(component.outputs, tensors, strict=True)
            }
    check_described(component, outputs)
    return Reference(inputs, outputs)


def check_described(component: Component, outputs: Mapping[str, Mapping[str, Array]]) -> None:
    """Refuse a description whose outputs are not those of the network.

    Args:
        component: the description.
        outputs: of the network, by name of the point and of the tensor.

    Raises:
        InvalidRequest: names every output that has another shape or dtype, and the point.
    """
    points = component.points()
    problems = [
        f"{spec.name} at {point_text(name, points[name])} must be {spec.dtype.value} {list(wanted)} as"
        f" described, got {array.dtype} {list(array.shape)}"
        for name, arrays in outputs.items()
        for spec in component.outputs
        if (array := arrays[spec.name]).shape != (wanted := spec.at(points[name]))
        or array.dtype != spec.dtype.value
    ]
    if problems:
        raise InvalidRequest(f"{component.label}: " + " | ".join(problems))


def verify(component: Component, path: Path, reference: Reference, precision: Precision) -> list[ParityRow]:
    """Run a graph in ONNX Runtime at every point and compare each output with PyTorch's.

    Args:
        component: its description.
        path: of the graph.
        reference: from :func:`compute_reference`.
        precision: that the user asked for; chooses the bounds.
    """
    precision = component.precision(precision)
    run, verified_on = load_graph(component, path, precision)
    rows = []
    for name, point in component.points().items():
        actual = run_at(component, run, reference.inputs[name], point_text(name, point))
        for output in component.outputs:
            rows.append(
                compare(
                    component, output.name, point_text(name, point), actual[output.name],
                    reference.outputs[name][output.name], bound_of(component, output, precision), verified_on,
                )
            )  # fmt: skip
    return rows


def bound_of(component: Component, output: TensorSpec, precision: Precision) -> Tolerance:
    """Return the bounds of an output in a precision that its component has."""
    return EXACT if output.exact else component.tolerance[precision]


def run_at(component: Component, run: Run, inputs: Mapping[str, Array], point: str) -> dict[str, Array]:
    """Run a graph at a point.

    Raises:
        ParityFailed: ONNX Runtime refuses the shapes of the point.
    """
    try:
        return run(inputs)
    except Exception as error:  # ONNX Runtime's own have no common base
        raise ParityFailed(
            f"{component.label}: the graph must run at {point}, got {_reason(error)}; nothing was placed"
        ) from error


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def load_graph(component: Component, path: Path, precision: Precision) -> tuple[Run, str]:
    """Load a graph in ONNX Runtime.

    A bfloat16 graph is widened to float32 for the CPU, which has no kernels for it: that verifies the
    graph and the rounding of its weights, not its arithmetic, and the second result says so.

    Returns:
        A function from inputs to outputs by name, and where it runs.

    Raises:
        ParityFailed: ONNX Runtime refuses the graph.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    device, model = "ONNX Runtime CPU", str(path)
    if precision is Precision.BF16:
        device += ", bfloat16 widened to float32"
        model = widen_bfloat16(path)
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own have no common base
        raise ParityFailed(
            f"{component.label}: the graph must load in ONNX Runtime, got {_reason(error)};"
            " nothing was placed"
        ) from error
    names = [tensor.name for tensor in component.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, _run(session, names, inputs), strict=True))

    return run, device


def _run(
    session: onnxruntime.InferenceSession, names: Sequence[str], inputs: Mapping[str, Array]
) -> list[Array]:
    outputs: list[Array] = session.run(list(names), dict(inputs))
    return outputs


def widen_bfloat16(path: Path) -> str:
    """Write a copy of a graph with every bfloat16 as float32, and return its path.

    The copy lies beside the graph as ``<stem>.widened``; weights keep the values that bfloat16
    rounded them to.
    """
    import onnx
    from onnx import TensorProto, numpy_helper

    model = onnx.load(path)

    def widen(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.BFLOAT16:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    for tensor in model.graph.initializer:
        widen(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                widen(attribute.t)
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
    del model.graph.value_info[:]
    target = path.with_suffix(".widened")
    onnx.save(model, target, save_as_external_data=True, location=f"{target.name}.data")
    return str(target)


def compare(
    component: Component,
    output: str,
    point: str,
    actual: Array,
    expected: Array,
    bound: Tolerance,
    verified_on: str,
) -> ParityRow:
    """Measure one output against PyTorch's; whole numbers and truth values without rounding.

    Raises:
        ParityFailed: the shapes or dtypes differ.
    """
    if actual.shape != expected.shape:
        raise ParityFailed(
            f"{component.label}: {output} at {point} must have shape {list(expected.shape)},"
            f" got {list(actual.shape)}"
        )
    if actual.dtype != expected.dtype:
        raise ParityFailed(
            f"{component.label}: {output} at {point} must be {expected.dtype}, got {actual.dtype}"
        )
    a, e = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    norm_a, norm_e = float(np.linalg.norm(a)), float(np.linalg.norm(e))
    error = float(np.linalg.norm(a - e))
    cosine = float(a @ e) / (norm_a * norm_e) if norm_a and norm_e else float(norm_a == norm_e)
    return ParityRow(
        graph=component.label,
        output=output,
        point=point,
        shape=tuple(expected.shape),
        max_abs=_largest_difference(actual, expected),
        relative_l2=error / norm_e if norm_e else error,
        cosine=1.0 if np.array_equal(actual, expected) else cosine,
        bound=bound,
        verified_on=verified_on,
        row_cosine=None if bound.row_cosine is None else _smallest_row_cosine(actual, expected),
    )


def _smallest_row_cosine(actual: Array, expected: Array) -> float:
    """Return the cosine similarity of the rows along the last dimension that are least alike."""
    a, e = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (actual, expected))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(e, axis=1)
    same = np.all(a == e, axis=1)
    # A row of zeros is like another only.
    cosines = np.where(same, 1.0, np.einsum("ij,ij->i", a, e) / np.where(norms == 0, np.inf, norms))
    return float(cosines.min(initial=1.0))


def _largest_difference(actual: Array, expected: Array) -> float:
    if not actual.size:
        return 0.0
    if actual.dtype.kind in "bui":
        # float64 cannot tell whole numbers above 2**53 apart, and their own type may overflow.
        high, low = np.maximum(actual, expected), np.minimum(actual, expected)
        return float(np.max(high.astype(np.uint64) - low.astype(np.uint64)))
    return float(np.max(np.abs(actual.astype(np.float64) - expected.astype(np.float64))))


def check(rows: Sequence[ParityRow]) -> None:
    """Refuse outputs that are outside their bounds.

    Raises:
        ParityFailed: names every failing output, its point, and by how much it fails.
    """
    failed = [
        f"{row.graph}: {row.output} at {row.point}: {', '.join(row.failures)}" for row in rows if row.failures
    ]
    if failed:
        raise ParityFailed("parity with PyTorch failed, nothing was placed: " + " | ".join(failed))


def point_text(name: str, point: Point) -> str:
    """Return how a row names a point: its name and the sizes of its axes."""
    return f"{name} ({', '.join(f'{axis}={size}' for axis, size in point.items())})"
