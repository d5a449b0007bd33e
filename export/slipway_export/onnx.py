"""Turns a component's PyTorch network into an ONNX graph with the component's dynamic shapes.

The network is traced once by `torch.onnx.export(dynamo=True)` at its opt sizes; its dynamic
dimensions are the component's axes, `factor * axis + offset` becoming one derived from the axis.
Weights go to one file of external data beside the graph where protobuf's 2 GB limit is near.
"""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_export import rewrite
from slipway_export.spec import Axis, Component, DType, Engine, Point, Precision, Size, TensorSpec
from slipway_serving.distribution import install_hint
from slipway_serving.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

# From 23 on RMSNorm is one operator: 168 nodes a denoiser block became 68 at opset 20 and 44 at 23.
DEFAULT_OPSET = 23
SMALLEST_OPSET, LARGEST_OPSET = 18, 23
# Protobuf cannot hold 2 GiB; the graph itself needs some of that.
EXTERNAL_DATA_BYTES = int(1.8 * 2**30)


def choose_opset(precision: Precision, asked: int | None, engine: Engine = Engine.ONNXRUNTIME) -> int:
    """Return the opset to export with.

    Args:
        precision: of the graphs.
        asked: by the user; None for the engine's own, which is the lowest for portable graphs.
        engine: that the graphs are for.

    Raises:
        InvalidRequest: the asked one is outside the range that the exporter and the precision allow.
    """
    # Conv and most others accept bfloat16 from opset 22 on.
    smallest = 22 if precision is Precision.BF16 else SMALLEST_OPSET
    default = smallest if engine is Engine.PORTABLE else DEFAULT_OPSET
    opset = default if asked is None else asked
    if not smallest <= opset <= LARGEST_OPSET:
        raise InvalidRequest(
            f"opset-version must be {smallest} to {LARGEST_OPSET} for {precision.value}, got {opset}"
        )
    return opset


def example_inputs(component: Component, point: Point, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Make inputs for a component: normal noise, ones for masks, whole numbers in their range.

    Args:
        component: whose inputs to make.
        point: size of every axis.
        seed: of the noise; the same seed and point give the same arrays.

    Returns:
        Arrays by input name, in the inputs' shapes and dtypes.
    """
    random = np.random.default_rng(seed)
    return {tensor.name: _example(tensor, point, random) for tensor in component.inputs}


def _example(tensor: TensorSpec, point: Point, random: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = tensor.at(point)
    if tensor.ones:
        return np.ones(shape, dtype=tensor.dtype.value)
    if tensor.dtype is DType.INT64 or tensor.values != (0, 2):
        low, high = tensor.values
        return random.integers(low, high, size=shape).astype(tensor.dtype.value)
    return random.standard_normal(shape).astype(tensor.dtype.value)


def export_graph(
    component: Component,
    module: torch.nn.Module,
    path: Path,
    *,
    opset: int,
    engine: Engine = Engine.ONNXRUNTIME,
    simplify: bool = False,
) -> None:
    """Export a network to `path` (and `path` + ``.data`` where it is large).

    Args:
        component: its description.
        module: the network, in eval mode.
        path: of the ``.onnx`` file.
        opset: ONNX operator set version.
        engine: chooses the dialect.
        simplify: run onnxslim over the graph afterwards.

    Raises:
        InvalidRequest: `simplify` is asked for and onnxslim is not installed.
    """
    import torch

    inputs = example_inputs(component, _traced_point(component))
    dialect = _onnxruntime_dialect(component, module) if engine is Engine.ONNXRUNTIME else nullcontext()
    with _quiet(), torch.no_grad(), dialect:
        program = torch.onnx.export(
            module,
            tuple(torch.from_numpy(array) for array in inputs.values()),
            dynamo=True,
            dynamic_shapes=_dynamic_shapes(component, module),
            input_names=[tensor.name for tensor in component.inputs],
            output_names=[tensor.name for tensor in component.outputs],
            opset_version=opset,
            verbose=False,
        )
    if program is None:  # Only without dynamo; the type says so all the same.
        raise InvalidRequest(f"{component.label}: torch.onnx.export gave no program")
    if engine is Engine.ONNXRUNTIME:
        rewrite.drop_reshapes(program.model)
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    program.save(str(path), external_data=size > EXTERNAL_DATA_BYTES)
    if simplify:
        _simplify(path, size)


@contextmanager
def _onnxruntime_dialect(component: Component, module: torch.nn.Module) -> Iterator[None]:
    from slipway_export.lowering import fused_attention

    with fused_attention(), component.lower(module):
        yield


def _traced_point(component: Component) -> Point:
    """Return the opt point with 2 for every varying size of 1, which torch.export would freeze."""
    opt = component.points()["opt"]
    varying = {axis.name for axis in _varying(component.axes)}
    return {name: max(size, 2) if name in varying else size for name, size in opt.items()}


def _dynamic_shapes(component: Component, module: torch.nn.Module) -> dict[str, Any]:
    """Return the dynamic dimensions of each argument of the forward; a ``*args`` takes a tuple of them."""
    from torch.export import Dim

    dims = {axis.name: Dim(axis.name, min=axis.min, max=axis.max) for axis in _varying(component.axes)}
    shapes = (
        {
            i: _derived(dims[size.axis], size)
            for i, size in enumerate(tensor.sizes)
            if isinstance(size, Size) and size.axis in dims
        }
        for tensor in component.inputs
    )
    return dict(inspect.signature(module.forward).bind(*shapes).arguments)


def _derived(dim: Any, size: Size) -> Any:
    """Return `factor * dim + offset`; an operation that changes nothing is one that torch refuses."""
    scaled = size.factor * dim if size.factor != 1 else dim
    return scaled + size.offset if size.offset else scaled


def _varying(axes: tuple[Axis, ...]) -> list[Axis]:
    return [axis for axis in axes if axis.min != axis.max]


def _simplify(path: Path, weight_bytes: int) -> None:
    try:
        import onnxslim
    except ModuleNotFoundError:
        raise InvalidRequest(f"simplify needs onnxslim; try {install_hint('export')}") from None
    import onnx

    slimmed = onnxslim.slim(onnx.load(path))
    data = path.with_name(path.name + ".data")
    data.unlink(missing_ok=True)
    external = weight_bytes > EXTERNAL_DATA_BYTES
    onnx.save(slimmed, path, save_as_external_data=external, location=data.name if external else None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress prints and registry warnings off the terminal.

    Its errors are exceptions and pass; what it prints says nothing that they do not.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
