"""Comparison of an exported graph with its PyTorch network.

Every output is compared at every chosen point (min, opt, max, and sizes that the export never saw;
`sizing/budget.py` chooses them). The reference is the network in float32, whatever the precision of the graph
or of the checkpoint. A stepped network is also compared over a whole run (`steps.py`). The rows become the
parity table of the manifest. A row outside its bounds keeps the component out of the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_export.engines.device import Device
from slipway_export.graph.onnx import example_inputs
from slipway_export.spec import Component, Loading, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime
    import torch

Array = np.ndarray[Any, Any]
RunGraph = Callable[[Mapping[str, Array]], dict[str, Array]]

EXACT = Tolerance(max_abs=0.0, relative_l2=0.0, cosine=1.0)
"""Bounds of an output that must be equal."""


class ParityFailed(SlipwayError):
    """An exported graph differs from PyTorch by more than its bounds; nothing was placed."""

    code = "PARITY"


@dataclass(frozen=True)
class ParityRow:
    """Difference between one output and PyTorch's at one point.

    Args:
        graph: Label of the component.
        output: Name of the tensor.
        point: Name of the point and the sizes of its axes.
        shape: Shape of the output.
        max_abs: Largest absolute difference.
        relative_l2: ``|graph - torch| / |torch|``.
        cosine: Cosine similarity of the flattened outputs.
        bound: Tolerance that applies.
        verified_on: Runtime and device, and any difference between their arithmetic and the graph's.
        row_cosine: Smallest cosine similarity of a row along the last dimension; None if no bound needs it.
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
        """Messages about the bounds that the row breaks. Not-a-number breaks every bound."""
        bound = self.bound
        checks = [
            ("max abs", self.max_abs, "<=", bound.max_abs, self.max_abs <= bound.max_abs),
            ("relative L2", self.relative_l2, "<=", bound.relative_l2, self.relative_l2 <= bound.relative_l2),
            ("cosine", self.cosine, ">=", bound.cosine, self.cosine >= bound.cosine),
        ]
        if bound.row_cosine is not None and self.row_cosine is not None:
            passes = self.row_cosine >= bound.row_cosine
            checks.append(("cosine of the worst row", self.row_cosine, ">=", bound.row_cosine, passes))
        return [
            f"{name} must be {sign} {limit:g}, got {value:.3g}"
            for name, value, sign, limit, ok in checks
            if not ok
        ]


@dataclass(frozen=True)
class Reference:
    """Inputs and PyTorch's float32 outputs of a component, by name of the point."""

    points: Mapping[str, Point]
    inputs: Mapping[str, Mapping[str, Array]]
    outputs: Mapping[str, Mapping[str, Array]]


def load_reference(component: Component, device: Device = Device.CPU) -> torch.nn.Module:
    """Load a component's network in float32 for :func:`compute_reference`; its weights stay on disk."""
    import torch

    from slipway_export.checkpoint.on_demand_weights import read_on_demand

    module = component.load(Precision.FP32, Loading.ON_DISK)
    # TF32 would round the mantissa to 10 bits; the reference needs all 23.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return read_on_demand(module, device.torch)


def compute_reference(
    component: Component,
    module: torch.nn.Module,
    points: Mapping[str, Point] | None = None,
    device: Device = Device.CPU,
) -> Reference:
    """Run the float32 network at points of its component.

    Args:
        component: Description of the component.
        module: Network of the component, on the device.
        points: Points by name; all of the component's when None.
        device: Device to compute on.

    Raises:
        InvalidRequest: An output does not have the described shape and dtype.
    """
    import torch

    points = component.points() if points is None else points
    inputs = {name: example_inputs(component, point, seed=1) for name, point in points.items()}
    outputs: dict[str, dict[str, Array]] = {}
    with torch.no_grad():
        for name, arrays in inputs.items():
            result = module(*(torch.from_numpy(array).to(device.torch) for array in arrays.values()))
            tensors = result if isinstance(result, tuple) else (result,)
            outputs[name] = {
                spec.name: tensor.cpu().numpy()
                for spec, tensor in zip(component.outputs, tensors, strict=True)
            }
    check_described(component, points, outputs)
    return Reference(points, inputs, outputs)


def check_described(
    component: Component, points: Mapping[str, Point], outputs: Mapping[str, Mapping[str, Array]]
) -> None:
    """Refuse a component whose described outputs differ from those of the network.

    Args:
        component: Description of the component.
        points: Points by name.
        outputs: Outputs of the network, by name of the point and of the tensor.

    Raises:
        InvalidRequest: An output has another shape or dtype. The message names every such output and the
            point.
    """
    problems = [
        f"{spec.name} at {format_point(name, points[name])} must be {spec.dtype.value} {list(described)} as"
        f" described, got {array.dtype} {list(array.shape)}"
        for name, arrays in outputs.items()
        for spec in component.outputs
        if (array := arrays[spec.name]).shape != (described := spec.at(points[name]))
        or array.dtype != spec.dtype.value
    ]
    if problems:
        raise InvalidRequest(f"{component.label}: " + " | ".join(problems))


def verify(
    component: Component,
    path: Path,
    reference: Reference,
    precision: Precision,
    device: Device = Device.CPU,
    scratch: Path | None = None,
) -> list[ParityRow]:
    """Run a graph in ONNX Runtime at the reference's points and compare each output with PyTorch's.

    Args:
        component: Description of the component.
        path: Path of the graph.
        reference: Reference from :func:`compute_reference`.
        precision: Precision that the user requested, which selects the bounds.
        device: Device to run on.
        scratch: Folder for a copy of the graph, if one is needed; the graph's own when None.
    """
    precision = component.precision(precision)
    run, verified_on = load_graph(component, path, precision, device, scratch)
    return parity_rows(
        component, run, reference, verified_on, lambda output: output_tolerance(component, output, precision)
    )


def parity_rows(
    component: Component,
    run: RunGraph,
    reference: Reference,
    verified_on: str,
    bound: Callable[[TensorSpec], Tolerance],
) -> list[ParityRow]:
    """Run the served form of a component at the reference's points and compare each output with PyTorch's.

    Args:
        component: Description of the component.
        run: Function from inputs to outputs by name.
        reference: Reference from :func:`compute_reference`.
        verified_on: Name of the run in the rows.
        bound: Function that returns the bounds of an output.
    """
    rows = []
    for name, point in reference.points.items():
        actual = run_at(component, run, reference.inputs[name], format_point(name, point))
        for output in component.outputs:
            rows.append(
                compare(
                    component, output.name, format_point(name, point), actual[output.name],
                    reference.outputs[name][output.name], bound(output), verified_on,
                )
            )  # fmt: skip
    return rows


def output_tolerance(component: Component, output: TensorSpec, precision: Precision) -> Tolerance:
    """Return the bounds of an output in one of its component's precisions."""
    return EXACT if output.exact else component.tolerance[precision]


def run_at(component: Component, run: RunGraph, inputs: Mapping[str, Array], point: str) -> dict[str, Array]:
    """Run a graph at a point.

    Raises:
        ParityFailed: ONNX Runtime refuses the shapes of the point.
    """
    try:
        return run(inputs)
    except Exception as error:  # ONNX Runtime's exceptions have no common base.
        raise ParityFailed(
            f"{component.label}: the graph failed in ONNX Runtime at {point}: {_reason(error)};"
            " nothing was placed"
        ) from error


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def load_graph(
    component: Component,
    path: Path,
    precision: Precision,
    device: Device = Device.CPU,
    scratch: Path | None = None,
) -> tuple[RunGraph, str]:
    """Load a graph in ONNX Runtime.

    On the CPU, which has no bfloat16 kernels, a bfloat16 graph is widened to float32. This verifies the graph
    and the rounding of its weights, but not its arithmetic; the second result says so.

    Returns:
        A function from inputs to outputs by name, and the runtime and device that it uses.

    Raises:
        ParityFailed: ONNX Runtime refuses the graph, or does not run it on the device.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    place, model = f"ONNX Runtime {device.value.upper()}", str(path)
    if component.loaded_in(precision) is Precision.BF16 and device is Device.CPU:
        place += ", bfloat16 widened to float32"
        model = widen_bfloat16(path, scratch or path.parent)
    try:
        session = onnxruntime.InferenceSession(
            model, options, providers=device.providers, disabled_optimizers=_disabled(precision)
        )
    except Exception as error:  # ONNX Runtime's exceptions have no common base.
        raise ParityFailed(
            f"{component.label}: ONNX Runtime could not load the graph: {_reason(error)}; nothing was placed"
        ) from error
    required = device.providers[0][0]
    if required not in session.get_providers():
        # ONNX Runtime continues without a provider that it cannot start, so that must be checked.
        raise ParityFailed(
            f"{component.label}: the graph must run with {required}, got {', '.join(session.get_providers())}"
            "; nothing was placed"
        )
    names = [tensor.name for tensor in component.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, _run(session, names, inputs), strict=True))

    return run, place


def _disabled(precision: Precision) -> list[str]:
    """Return the optimizers of ONNX Runtime that would change the arithmetic of a graph.

    This one fuses products between DequantizeLinear and QuantizeLinear. The fused products of release 1.31 do
    not accept float8, and saturate on processors without VNNI. Graphs made for ONNX Runtime do not have the
    pattern.
    """
    return ["QDQSelectorActionTransformer"] if precision.is_quantized else []


def _run(
    session: onnxruntime.InferenceSession, names: Sequence[str], inputs: Mapping[str, Array]
) -> list[Array]:
    outputs: list[Array] = session.run(list(names), dict(inputs))
    return outputs


def widen_bfloat16(path: Path, folder: Path) -> str:
    """Write a copy of a graph with every bfloat16 as float32, and return its path.

    The copy is ``<stem>.widened`` in the folder. Its weights keep the values that bfloat16 rounded them to,
    and are widened one at a time.
    """
    import onnx_ir as ir

    model = ir.load(path)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value = _widened(value.const_value)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for carried in (*node.inputs, *node.outputs):
            if carried is not None and carried.dtype is ir.DataType.BFLOAT16:
                carried.dtype = ir.DataType.FLOAT
        for name, attribute in list(node.attributes.items()):
            if attribute.type is ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
            elif name in ("to", "dtype") and attribute.as_int() == ir.DataType.BFLOAT16:
                node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)
    target = folder / f"{path.stem}.widened"
    ir.save(model, target, external_data=f"{target.name}.data", size_threshold_bytes=1024)
    return str(target)


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    import onnx_ir as ir

    if tensor.dtype is not ir.DataType.BFLOAT16:
        return tensor

    def widen() -> ir.TensorProtocol:
        return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)

    return ir.LazyTensor(widen, ir.DataType.FLOAT, ir.Shape(tensor.shape.numpy()), name=tensor.name)


def compare(
    component: Component,
    output: str,
    point: str,
    actual: Array,
    expected: Array,
    bound: Tolerance,
    verified_on: str,
) -> ParityRow:
    """Measure one output against PyTorch's; integers and booleans are compared without rounding.

    Raises:
        ParityFailed: The shapes or dtypes differ.
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
    """Return the smallest cosine similarity of corresponding rows along the last dimension."""
    a, e = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (actual, expected))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(e, axis=1)
    same = np.all(a == e, axis=1)
    # A row of zeros equals only another row of zeros; its similarity to any other row counts as 0.
    cosines = np.where(same, 1.0, np.einsum("ij,ij->i", a, e) / np.where(norms == 0, np.inf, norms))
    return float(cosines.min(initial=1.0))


def _largest_difference(actual: Array, expected: Array) -> float:
    if not actual.size:
        return 0.0
    if actual.dtype.kind in "bui":
        # float64 cannot distinguish integers above 2**53, and a difference may overflow their own type.
        high, low = np.maximum(actual, expected), np.minimum(actual, expected)
        return float(np.max(high.astype(np.uint64) - low.astype(np.uint64)))
    return float(np.max(np.abs(actual.astype(np.float64) - expected.astype(np.float64))))


def check_parity(rows: Sequence[ParityRow]) -> None:
    """Refuse outputs that are outside their bounds.

    Raises:
        ParityFailed: Outputs are outside their bounds. The message names each, its point and the difference.
    """
    failed = [
        f"{row.graph}: {row.output} at {row.point}: {', '.join(row.failures)}" for row in rows if row.failures
    ]
    if failed:
        raise ParityFailed("parity with PyTorch failed, nothing was placed: " + " | ".join(failed))


def format_point(name: str, point: Point) -> str:
    """Return the text for a point in a row: its name and the sizes of its axes."""
    return f"{name} ({', '.join(f'{axis}={size}' for axis, size in point.items())})"
