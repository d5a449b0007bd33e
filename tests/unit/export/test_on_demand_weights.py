"""Networks that read their weights from the checkpoint's files when an operator asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.on_demand_weights import OnDemand, read_on_demand
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.graph.onnx import example_inputs
from slipway_export.spec import Component, Loading, Precision

WAN = family_named("wan_t2v")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def opened(checkpoint: Path) -> Iterator[Checkpoint]:
    with open_checkpoint(WAN, str(checkpoint)) as found:
        yield found


def component_of(checkpoint: Checkpoint, label: str) -> Component:
    found = WAN.plan(checkpoint, axes_of(WAN, checkpoint, {}))
    return next(component for component in found.components if component.label == label)


def left(component: Component, device: torch.device = CPU) -> torch.nn.Module:
    return read_on_demand(component.load(Precision.FP32, Loading.ON_DISK), device)


@pytest.mark.parametrize("label", ["text_encoder", "denoiser_high", "vae_decoder/next"])
def test_network_gives_the_same_bytes_when_its_weights_are_read_on_demand(
    opened: Checkpoint, label: str
) -> None:
    component = component_of(opened, label)
    inputs = example_inputs(component, component.points()["min"])
    given = [torch.from_numpy(array) for array in inputs.values()]
    with torch.no_grad():
        wanted, found = component.load(Precision.FP32, Loading.READ)(*given), left(component)(*given)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (wanted, found)), strict=True):
        assert type(b) is torch.Tensor
        assert torch.equal(a, b)


@pytest.mark.parametrize("label", ["text_encoder", "denoiser_high", "vae_decoder/next"])
def test_network_holds_no_weight_when_it_reads_them_on_demand(opened: Checkpoint, label: str) -> None:
    module = left(component_of(opened, label))
    parameters = list(module.parameters())
    assert parameters
    assert all(isinstance(parameter, OnDemand) for parameter in parameters)
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    # A module asks its weights for their type and place before it uses them.
    assert {parameter.device for parameter in parameters} == {CPU}


def test_network_computes_on_another_device_when_told(opened: Checkpoint) -> None:
    # The meta device stands for a GPU: tensors of two devices do not meet there either.
    component = component_of(opened, "denoiser_high")
    inputs = example_inputs(component, component.points()["min"]).values()
    meta = torch.device("meta")
    with torch.no_grad():
        out = left(component, meta)(*(torch.from_numpy(array).to(meta) for array in inputs))
    assert out.device == meta


def test_rows_of_a_table_are_widened_when_they_are_looked_up(opened: Checkpoint) -> None:
    component = component_of(opened, "text_encoder")
    module = left(component)
    table = next(p for name, p in module.named_parameters() if name.endswith("shared.weight"))
    assert isinstance(table, OnDemand)
    rows = torch.nn.functional.embedding(torch.tensor([[3, 1]]), table)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, table.values()[torch.tensor([[3, 1]])])
