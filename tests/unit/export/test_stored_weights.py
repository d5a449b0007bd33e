"""Networks whose weights stay on disk, and graphs whose tensors are read while they are written."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import save_file

from slipway_export.checkpoint import stored_weights as weights
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.checkpoint.stored_weights import (
    StoredTensor,
    placeholder_folder,
    stored_weights,
)
from slipway_export.families import family_named
from slipway_export.graph import external_weights
from slipway_export.graph.external_weights import Weight
from slipway_export.spec import Component, Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

WAN = family_named("wan_t2v")
HALVES = (Precision.FP32, Precision.FP16, Precision.BF16)


@pytest.fixture(scope="module")
def opened(checkpoint: Path) -> Iterator[Checkpoint]:
    with open_checkpoint(WAN, str(checkpoint)) as found:
        yield found


def component_of(checkpoint: Checkpoint, label: str, variant: str = "") -> Component:
    plan = WAN.variants[variant].plan if variant else WAN.plan
    found = plan(checkpoint, axes_of(WAN, checkpoint, {}))
    return next(component for component in found.components if component.label == label)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("label", ["text_encoder", "denoiser_high", "vae_decoder/next"])
def test_network_is_the_same_but_for_its_weights_when_they_stay_on_disk(
    opened: Checkpoint, label: str, precision: Precision
) -> None:
    component = component_of(opened, label)
    loaded = component.load(precision, Loading.READ)
    empty = component.load(precision, Loading.ON_DISK)
    read, unread = dict(loaded.named_parameters()), dict(empty.named_parameters())
    assert {name: (p.dtype, p.shape) for name, p in read.items()} == {
        name: (p.dtype, p.shape) for name, p in unread.items()
    }
    assert all(not parameter.any() for parameter in unread.values())
    stored = stored_weights(empty)
    assert read.keys() <= stored.keys()
    for name, buffer in loaded.named_buffers():
        assert name in stored or torch.equal(buffer, dict(empty.named_buffers())[name])


@pytest.mark.parametrize("graph", ["head", "tail", "finish"])
def test_weights_are_found_when_a_network_was_cut(opened: Checkpoint, graph: str) -> None:
    empty = component_of(opened, f"denoiser_high/{graph}", "first-block-cache").load(
        Precision.FP32, Loading.ON_DISK
    )
    names = {name for name, _ in empty.named_parameters()}
    assert names
    assert names <= stored_weights(empty).keys()


def test_files_take_no_space_and_can_be_mapped_when_they_stand_in_for_an_experts_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    expert = {
        f"block.{i}": StoredTensor(tmp_path / "w", f"block.{i}", (5120, 13824), torch.bfloat16)
        for i in range(200)
    }
    with placeholder_folder(tmp_path, ("w.safetensors",), expert, lambda _: torch.float32) as folder:
        found = [path.stat() for path in folder.glob("*.safetensors")]
        assert sum(file.st_size for file in found) > 56e9
        assert sum(file.st_blocks * 512 for file in found) < 1e6
        # The kernel refuses to map a file that is larger than all memory.
        assert max(file.st_size for file in found) < 1.1 * 2**30
        index = json.loads((folder / "w.safetensors.index.json").read_text())["weight_map"]
        assert index.keys() == expert.keys()
        assert (folder / "config.json").read_text() == "{}"
    assert not folder.exists()


@pytest.mark.parametrize("perm", [None, (1, 0)])
@pytest.mark.parametrize(
    ("dtype", "wanted"), [(torch.bfloat16, ir.DataType.FLOAT), (torch.float32, ir.DataType.BFLOAT16)]
)
def test_tensor_is_written_whole_when_it_is_read_in_parts(
    perm: tuple[int, int] | None,
    dtype: torch.dtype,
    wanted: ir.DataType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = torch.randn(37, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    save_file({"x": values}, tmp_path / "w.safetensors")
    monkeypatch.setattr(external_weights, "_CHUNK_BYTES", 200)
    weight = Weight(StoredTensor(tmp_path / "w.safetensors", "x", (37, 16), dtype), wanted)
    weight = weight if perm is None else weight.transposed(perm, "turned")
    out = io.BytesIO()
    weight.tofile(out)
    expected = values.to(torch.float32 if wanted is ir.DataType.FLOAT else torch.bfloat16)
    expected = expected if perm is None else expected.permute(perm)
    assert out.getvalue() == weight.tobytes()
    assert out.getvalue() == expected.contiguous().view(torch.uint8).numpy().tobytes()


def test_shard_is_named_when_it_is_cut_short_and_weights_stay_on_disk(
    checkpoint: Path, tmp_path: Path
) -> None:
    import shutil

    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    file = damaged / "transformer/diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with (
        open_checkpoint(WAN, str(damaged)) as found,
        pytest.raises(
            InvalidRequest, match=r"transformer/diffusion_pytorch_model.safetensors must be a complete"
        ),
    ):
        component_of(found, "denoiser_high").load(Precision.FP32, Loading.ON_DISK)


def test_transpose_of_a_weight_is_folded_but_where_it_is_an_output(tmp_path: Path) -> None:
    values = torch.arange(6.0).reshape(2, 3)
    save_file({"x": values}, tmp_path / "w.safetensors")
    held = Weight(
        StoredTensor(tmp_path / "w.safetensors", "x", (2, 3), torch.float32), ir.DataType.FLOAT, name="weight"
    )

    def graph(*, shown: bool) -> ir.Model:
        weight = ir.Value(name="weight", shape=held.shape, const_value=held)
        turned = ir.node("Transpose", [weight], {"perm": [1, 0]})
        product = ir.node("MatMul", [ir.val("input", ir.DataType.FLOAT, [1, 3]), turned.outputs[0]])
        outputs = [*product.outputs, *(turned.outputs if shown else ())]
        nodes = [turned, product]
        made = ir.Graph(
            [product.inputs[0]], outputs, nodes=nodes, initializers=[weight], opset_imports={"": 21}
        )
        return ir.Model(made, ir_version=10)

    folded, kept = graph(shown=False), graph(shown=True)
    for model in (folded, kept):
        external_weights.fold_transposes(model)
    assert [node.op_type for node in folded.graph] == ["MatMul"]
    (only,) = folded.graph.initializers.values()
    assert only.const_value is not None
    assert np.array_equal(only.const_value.numpy(), values.T.numpy())
    assert [node.op_type for node in kept.graph] == ["Transpose", "MatMul"]


def test_network_is_the_same_when_its_empty_weights_are_several_files(
    opened: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_EMPTY_BYTES", 20_000)
    for label in ("text_encoder", "denoiser_high"):
        component = component_of(opened, label)
        empty = component.load(Precision.FP32, Loading.ON_DISK)
        wanted = {
            name: p.shape for name, p in component.load(Precision.FP32, Loading.READ).named_parameters()
        }
        assert {name: p.shape for name, p in empty.named_parameters()} == wanted
        assert not any(parameter.any() for parameter in empty.parameters())
