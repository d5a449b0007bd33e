"""Small networks with every kind of dimension and element type, through a real export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import tritonclient.grpc as triton
from server_fixtures import any_port, infer
from torch import Tensor, nn
from torch.nn import functional
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

from slipway_export.graph.onnx import ExportFailed, example_inputs, export_graph
from slipway_export.repository.config import config_text, model_config
from slipway_export.repository.load_check import check_loadable
from slipway_export.spec import Axis, Component, DType, Engine, Loading, Precision, TensorSpec, Tolerance
from slipway_export.verification.comparison import (
    ParityFailed,
    ParityRow,
    check_parity,
    compute_reference,
    verify,
)
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

BOUND = {Precision.FP32: Tolerance(1e-5, 1e-5, 0.999999)}
BATCH, FRAMES = Axis("batch", 1, 2, 3), Axis("frames", 1, 3, 9)
HEIGHT, WIDTH = Axis("height", 1, 4, 8), Axis("width", 1, 5, 9)
WIDE = 8


def floats(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, shape)


def described(
    module: nn.Module, inputs: list[TensorSpec], outputs: list[TensorSpec], *axes: Axis
) -> Component:
    return Component(
        "net", tuple(inputs), tuple(outputs), axes, lambda *_: module.eval().requires_grad_(False), BOUND
    )


def exported(
    component: Component, path: Path, engine: Engine = Engine.ONNXRUNTIME, opset: int = 23
) -> list[ParityRow]:
    """Export a component as `slipway export` does, and return its parity."""
    reference = compute_reference(component, component.load(Precision.FP32, Loading.READ))
    export_graph(component, component.load(Precision.FP32, Loading.READ), path, opset=opset, engine=engine)
    rows = verify(component, path, reference, Precision.FP32)
    check_parity(rows)
    return rows


def dimensions(path: Path) -> dict[str, list[str | int]]:
    graph = onnx.load(path).graph
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }


class Window(nn.Module):
    """Attends from a block of frames to a window of earlier places and itself, and moves the window on."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDE, WIDE)

    def forward(self, latents: Tensor, valid: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        batch, _, frames, height, width = latents.shape
        tokens = self.project(latents.flatten(2).transpose(1, 2))
        window = valid.shape[1]
        # Only where the cache is known to have so many places can it be seen frame by frame.
        past = cache.view(batch, window, height, width, WIDE) * valid[:, :, None, None, None]
        keys = torch.cat([past.flatten(1, 3), tokens], dim=1)
        mixed = functional.scaled_dot_product_attention(tokens[:, None], keys[:, None], keys[:, None])[:, 0]
        return mixed.view(batch, frames, height, width, WIDE), keys[:, frames * height * width :]


def window() -> Component:
    places = ("batch", "window * height * width", WIDE)
    return described(
        Window(),
        [
            floats("latents", "batch", WIDE, "frames", "height", "width"),
            TensorSpec("valid", DType.FLOAT32, ("batch", "window"), values=(0, 2)),
            floats("cache", *places),
        ],
        [floats("sample", "batch", "frames", "height", "width", WIDE), floats("next_cache", *places)],
        *(BATCH, FRAMES, HEIGHT, WIDTH, Axis("window", 1, 6, 7)),
    )


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME, Engine.TENSORRT])
def test_product_of_axes_that_other_inputs_carry_is_exported_in_both_dialects(
    tmp_path: Path, engine: Engine
) -> None:
    rows = exported(window(), tmp_path / "g.onnx", engine)
    assert {row.shape for row in rows if row.output == "next_cache"} == {
        window().outputs[1].at(point) for point in window().points().values()
    }  # fmt: skip
    assert dimensions(tmp_path / "g.onnx")["cache"] == ["batch", "height*width*window", WIDE]
    assert dimensions(tmp_path / "g.onnx")["next_cache"] == ["batch", "height*width*window", WIDE]


def test_trace_leaves_the_network_as_it_was(tmp_path: Path) -> None:
    component = window()
    module = component.load(Precision.FP32, Loading.READ)
    export_graph(component, module, tmp_path / "g.onnx", opset=23)
    assert "forward" not in vars(module)


class Joined(nn.Module):
    """Adds a position to each of the tokens of an image and of a text, which lie one after the other."""

    def forward(self, image: Tensor, text: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([image.flatten(1, 2), text], dim=1) + positions


def test_sum_of_product_and_axis_is_exported(tmp_path: Path) -> None:
    component = described(
        Joined(),
        [
            floats("image", "batch", "height", "width", WIDE),
            floats("text", "batch", "text_tokens", WIDE),
            floats("positions", "height * width + text_tokens", WIDE),
        ],
        [floats("tokens", "batch", "height * width + text_tokens", WIDE)],
        *(BATCH, HEIGHT, WIDTH, Axis("text_tokens", 1, 3, 12)),
    )
    exported(component, tmp_path / "g.onnx")
    assert dimensions(tmp_path / "g.onnx")["positions"] == ["height*width + text_tokens", WIDE]


class Strided(nn.Module):
    """Gives every fourth of a row of samples, from which others count their frames too."""

    def forward(self, samples: Tensor, actions: Tensor) -> Tensor:
        return samples[:, ::4] + actions.view(actions.shape[0], -1, 6).sum(-1)


def test_dimension_of_an_axis_that_no_input_has_alone_is_exported(tmp_path: Path) -> None:
    """`frames` is known by `4 * frames - 3` only, and the product of another input is computed from it."""
    component = described(
        Strided(),
        [floats("samples", "batch", "4 * frames - 3"), floats("actions", "batch", "6 * frames")],
        [floats("sums", "batch", "frames")],
        *(BATCH, FRAMES),
    )
    exported(component, tmp_path / "g.onnx")
    names = dimensions(tmp_path / "g.onnx")
    assert (names["samples"], names["sums"]) == (["batch", "4*frames - 3"], ["batch", "frames"])


def test_product_that_follows_from_an_axis_within_an_expression_is_exported(tmp_path: Path) -> None:
    class Grid(nn.Module):
        def forward(self, samples: Tensor, row: Tensor, grid: Tensor) -> Tensor:
            return grid.view(-1, samples[:, ::4].shape[1], row.shape[1]) * row[:, None]

    component = described(
        Grid(),
        [
            floats("samples", "batch", "4 * frames - 3"),
            floats("row", "batch", "width"),
            floats("grid", "batch", "2 * frames * width - frames * width"),
        ],
        [floats("scaled", "batch", "frames", "width")],
        *(BATCH, FRAMES, WIDTH),
    )
    exported(component, tmp_path / "g.onnx")


def test_product_that_no_input_carries_in_parts_is_one_dimension_of_its_own(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return tokens * mask[..., None]

    component = described(
        Both(),
        [floats("tokens", "batch", "height * width", WIDE), floats("mask", "batch", "width * height")],
        [floats("masked", "batch", "height * width", WIDE)],
        *(BATCH, HEIGHT, WIDTH),
    )
    exported(component, tmp_path / "g.onnx")


def test_axis_of_one_size_is_put_into_products(tmp_path: Path) -> None:
    """With one width only, `height * width` is a multiple of the height, and `width * width` a number."""

    class Rows(nn.Module):
        def forward(self, image: Tensor, kernel: Tensor) -> Tensor:
            return image.unflatten(1, (-1, 5)) @ kernel.view(5, 5)

    component = described(
        Rows(),
        [floats("image", "batch", "height * width"), floats("kernel", "width * width")],
        [floats("out", "batch", "height", "width")],
        *(BATCH, HEIGHT, Axis("width", 5, 5, 5)),
    )
    exported(component, tmp_path / "g.onnx")
    assert dimensions(tmp_path / "g.onnx")["kernel"] == [25]


class Kinds(nn.Module):
    """An image of bytes, a mask of truth values and 32-bit indices to outputs of each type."""

    def forward(self, image: Tensor, keep: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        brightness = image.to(torch.float32).mean(-1)
        bright = (brightness > 128) & keep
        inverted = 255 - image
        picked = row + bright.flatten(1).sum(1, dtype=torch.int32)
        return brightness, bright, inverted, picked.to(torch.int32), row.to(torch.int64) * 2**40


def kinds() -> Component:
    plane = ("batch", "height", "width")
    return described(
        Kinds(),
        [
            TensorSpec("image", DType.UINT8, (*plane, 3)),
            TensorSpec("keep", DType.BOOL, plane),
            TensorSpec("row", DType.INT32, ("batch",), values=(-5, 900)),
        ],
        [
            floats("brightness", *plane),
            TensorSpec("bright", DType.BOOL, plane, exact=True),
            TensorSpec("inverted", DType.UINT8, (*plane, 3), exact=True),
            TensorSpec("picked", DType.INT32, ("batch",), exact=True),
            TensorSpec("large", DType.INT64, ("batch",), exact=True),
        ],
        *(BATCH, HEIGHT, WIDTH),
    )


@pytest.mark.parametrize("opset", [17, 23])
def test_bytes_truth_values_and_whole_numbers_are_verified_exactly_and_served(
    tmp_path: Path, opset: int
) -> None:
    component = kinds()
    version = tmp_path / "kinds" / "1"
    version.mkdir(parents=True)
    rows = exported(component, version / "model.onnx", opset=opset)
    assert onnx.load(version / "model.onnx").opset_import[0].version == opset
    for name in ("bright", "inverted", "picked", "large"):
        assert {(row.max_abs, row.bound.max_abs) for row in rows if row.output == name} == {(0.0, 0.0)}
    config = model_config(component, "kinds", Engine.ONNXRUNTIME)
    (version.parent / "config.pbtxt").write_text(config_text(config))
    names = [model_config_pb2.DataType.Name(entry.data_type) for entry in (*config.input, *config.output)]
    assert names[:3] == ["TYPE_UINT8", "TYPE_BOOL", "TYPE_INT32"]
    assert names[3:] == ["TYPE_FP32", "TYPE_BOOL", "TYPE_UINT8", "TYPE_INT32", "TYPE_INT64"]
    inputs = example_inputs(component, {"batch": 3, "height": 2, "width": 7}, seed=5)
    assert inputs["image"].max() > 128
    assert set(np.unique(inputs["keep"])) == {False, True}
    row = {**inputs, "row": inputs["row"][:, None]}
    names = [tensor.name for tensor in component.outputs]
    in_process = InProcessModels(tmp_path, threads=1).call("kinds", row, names)
    with Server(any_port(tmp_path)) as running:  # Its warm-up request has each of the types too.
        by_triton = infer(triton.InferenceServerClient(running.grpc_url), "kinds", **row)
    with torch.no_grad():
        expected = Kinds()(*(torch.from_numpy(array) for array in inputs.values()))
    for answer in (in_process, by_triton):
        for name, tensor in zip(names[1:], expected[1:], strict=True):
            assert answer[name].dtype == tensor.numpy().dtype
            assert np.array_equal(answer[name].reshape(tensor.shape), tensor.numpy())


@pytest.mark.python_graphs
def test_graphs_of_fixed_rows_and_sizes_are_served_with_the_shapes_of_batched_ones(tmp_path: Path) -> None:
    fixed = {
        "one_row": replace(kinds(), axes=(Axis("batch", 1, 1, 1), HEIGHT, WIDTH)),
        "three_rows": replace(kinds(), axes=(Axis("batch", 3, 3, 3), HEIGHT, WIDTH)),
        "all_fixed": replace(kinds(), axes=(BATCH.fixed, HEIGHT.fixed, WIDTH.fixed)),
    }
    for name, component in fixed.items():
        (tmp_path / name / "1").mkdir(parents=True)
        exported(component, tmp_path / name / "1" / "model.onnx")
        config = model_config(component, name, Engine.ONNXRUNTIME)
        assert config.max_batch_size == 0
        (tmp_path / name / "config.pbtxt").write_text(config_text(config))
    check_loadable(tmp_path, list(fixed), tmp_path)
    models = InProcessModels(tmp_path, threads=1)
    with Server(any_port(tmp_path)) as running, triton.InferenceServerClient(running.grpc_url) as client:
        for name, component in fixed.items():
            inputs = example_inputs(component, component.points()["opt"], seed=5)
            rows = len(inputs["row"])
            given = {**inputs, "row": inputs["row"][:, None]}
            served = infer(client, name, **given)
            assert (served["picked"].shape, served["large"].shape) == ((rows, 1), (rows, 1))
            with torch.no_grad():
                expected = Kinds()(*(torch.from_numpy(array) for array in inputs.values()))
            outputs = [tensor.name for tensor in component.outputs]
            for answer in (served, models.call(name, given, outputs)):
                for output, tensor in zip(outputs[1:], expected[1:], strict=True):
                    assert np.array_equal(answer[output].reshape(tensor.shape), tensor.numpy())
        beyond = example_inputs(fixed["one_row"], {"batch": 1, "height": 9, "width": 5})
        with pytest.raises(InferenceServerException) as refusal:
            infer(client, "one_row", **{**beyond, "row": beyond["row"][:, None]})
    assert refusal.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "one_row: image must have 1 to 8 for height, the exported range, got 9" in str(refusal.value)


def test_network_that_branches_on_values_is_refused_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    tensor = floats("x", "batch", "width")
    component = described(Branching(), [tensor], [tensor], BATCH, WIDTH)
    with pytest.raises(
        ExportFailed, match="net: the network must be one that torch.export can trace"
    ) as failed:
        export_graph(component, component.load(Precision.FP32, Loading.READ), tmp_path / "g.onnx", opset=23)
    assert "dynamic batch, width" in str(failed.value)
    assert "data-dependent" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert "def forward" not in "".join(capfd.readouterr())


def test_network_that_freezes_an_axis_is_refused_by_point(tmp_path: Path) -> None:
    class Frozen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + (torch.zeros(5) if torch.onnx.is_in_onnx_export() else 0)

    x, y = floats("x", "batch", "width"), floats("y", "batch", "width")
    with pytest.raises(
        ParityFailed, match=r"net: the graph failed in ONNX Runtime at min \(batch=1, width=1\)"
    ) as failed:
        exported(described(Frozen(), [x], [y], BATCH, WIDTH), tmp_path / "g.onnx")
    assert "\n" not in str(failed.value)


def test_graph_that_onnx_runtime_cannot_load_is_refused_by_name(tmp_path: Path) -> None:
    both = floats("x", "batch", "width")
    component = described(nn.ReLU(), [both], [both], BATCH, WIDTH)
    with pytest.raises(ParityFailed, match=r"net: ONNX Runtime could not load the graph: .*Duplicate"):
        exported(component, tmp_path / "g.onnx")


def test_description_that_the_network_contradicts_is_refused_by_output_and_point() -> None:
    component = described(
        nn.Identity(), [floats("x", "batch", "width")], [floats("y", "batch", "width + 1")], BATCH, WIDTH
    )
    with pytest.raises(InvalidRequest, match=r"net: y at min \(batch=1, width=1\) must be float32 \[1, 2\]"):
        compute_reference(component, component.load(Precision.FP32, Loading.READ))


def test_dimension_that_is_never_above_one_is_refused_by_name(tmp_path: Path) -> None:
    component = described(
        nn.Identity(),
        [floats("x", "batch", "width * width - 2 * width + 2")],
        [floats("y", "batch", "width * width - 2 * width + 2")],
        *(BATCH, Axis("width", 1, 1, 2)),
    )
    export_graph(component, component.load(Precision.FP32, Loading.READ), tmp_path / "g.onnx", opset=23)
    never = described(
        nn.Identity(),
        [floats("x", "batch", "width * width - 3 * width + 3")],
        [floats("y", "batch", "width * width - 3 * width + 3")],
        *(BATCH, Axis("width", 1, 1, 2)),
    )
    with pytest.raises(InvalidRequest, match=r"net: x must have a dimension width\*width .* that reaches 2"):
        export_graph(never, never.load(Precision.FP32, Loading.READ), tmp_path / "g.onnx", opset=23)


def test_axes_of_one_size_are_numbers_in_the_configuration_when_others_vary() -> None:
    component = replace(kinds(), axes=(BATCH, Axis("height", 5, 5, 5), WIDTH))
    config = model_config(component, "kinds", Engine.ONNXRUNTIME)
    dims = {tensor.name: list(tensor.dims) for tensor in (*config.input, *config.output)}
    assert (dims["image"], dims["keep"], dims["inverted"]) == ([5, -1, 3], [5, -1], [5, -1, 3])
    assert (dims["row"], dims["picked"]) == ([1], [1])
