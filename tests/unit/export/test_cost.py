"""The arithmetic of components, counted without weights, and the speed of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import families, family_named
from slipway_export.sizing.cost import Work, counted, seconds, served_seconds
from slipway_export.sizing.machine import Speed, check_device, measured_speed
from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import InvalidRequest

BOUND = {Precision.FP32: Tolerance(max_abs=1.0, relative_l2=1.0, cosine=0.0)}
AXES = (Axis("batch", 1, 2, 4), Axis("tokens", 1, 8, 200_000))


class Attention(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = hidden.unflatten(2, (4, -1)).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return out.transpose(1, 2).flatten(2)


class First(nn.Module):
    """Gives the outputs of a recurrent layer without its states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(hidden)[0]
        return outputs


def operations(component: Component, points: Sequence[Point]) -> list[float]:
    return [work.operations for work in counted(component, points)]


def component(build: Callable[[], nn.Module], width: int, out: int) -> Component:
    return Component(
        name="known",
        inputs=(TensorSpec("hidden", DType.FLOAT32, ("batch", "tokens", width)),),
        outputs=(TensorSpec("out", DType.FLOAT32, ("batch", "tokens", out)),),
        axes=AXES,
        load=lambda *_: build().eval().requires_grad_(False),
        tolerance=BOUND,
    )


KNOWN = {
    "linear": (lambda: nn.Linear(16, 24), 24, lambda batch, tokens: 2 * 16 * 24 * batch * tokens),
    "attention": (Attention, 16, lambda batch, tokens: 4 * tokens**2 * 16 * batch),
    "gru": (
        lambda: First(nn.GRU(16, 24, 2, batch_first=True)),
        24,
        lambda batch, tokens: 2 * batch * tokens * 3 * 24 * (16 + 24 + 24 + 24),
    ),
    "lstm": (
        lambda: First(nn.LSTM(16, 24, bidirectional=True, batch_first=True)),
        48,
        lambda batch, tokens: 2 * 2 * batch * tokens * 4 * 24 * (16 + 24),
    ),
}


@pytest.mark.parametrize("network", KNOWN)
def test_operations_are_those_of_the_formula_when_the_network_is_known(network: str) -> None:
    build, out, formula = KNOWN[network]
    points = [{"batch": 1, "tokens": 3}, {"batch": 2, "tokens": 134_400}]
    assert operations(component(build, 16, out), points) == [formula(**point) for point in points]


def test_operations_leave_recurrent_layers_as_they_were_when_counted() -> None:
    layer = First(nn.GRU(16, 24, batch_first=True)).eval()
    operations(component(lambda: layer, 16, 24), [{"batch": 1, "tokens": 3}])
    assert layer(torch.ones(1, 5, 16)).shape == (1, 5, 24)


@pytest.mark.parametrize("family", [family.name for family in families()])
def test_work_grows_from_point_to_point_when_the_family_is_tiny(family: str, checkpoint: Path) -> None:
    chosen = family_named(family)
    source = str(checkpoint) if family == "wan_t2v" else "tiny"
    with open_checkpoint(chosen, source) as opened:
        for each in chosen.plan(opened, axes_of(chosen, opened, {})).components:
            points = each.points()
            least, most = counted(each, [points["min"], points["max"]])
            # A network that multiplies element by element alone has no operations, and writes.
            multiplies = least.operations > 0
            few, many = (least.operations, most.operations) if multiplies else (least.written, most.written)
            if any(axis.min < axis.max for axis in each.axes):
                assert 0 < few < many, each.label
            else:
                assert 0 < few == many, each.label
            assert multiplies or each.label.endswith("/rebase"), each.label


def test_operations_count_attention_when_the_denoiser_is_wans(checkpoint: Path) -> None:
    wan = family_named("wan_t2v")
    with open_checkpoint(wan, str(checkpoint)) as opened:
        plan = wan.plan(opened, axes_of(wan, opened, {}))
        denoiser = next(each for each in plan.components if each.name == "denoiser_high")
        config = opened.config("transformer/config.json")
        width = config["num_attention_heads"] * config["attention_head_dim"]
        sizes = [
            {"batch": 1, "latent_frames": 1, "token_height": side, "token_width": side}
            for side in (50, 100, 200)
        ]
        few, more, most = operations(denoiser, sizes)
    # Of f(n) = a + b n + c n², the part that grows as tokens squared.
    squared = (most - 4 * more - (more - 4 * few)) / (40_000**2 - 5 * 10_000**2 + 4 * 2_500**2)
    assert squared == pytest.approx(4 * width * config["num_layers"], rel=0.01)


def test_speed_is_positive_when_measured_on_this_machine() -> None:
    speed = measured_speed()
    assert speed.pytorch > 1e8
    assert speed.onnxruntime > 1e8


def test_written_bytes_are_those_of_results_when_no_view_is_counted() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 24, bias=False), nn.Unflatten(2, (4, 6)), nn.Flatten(2), nn.ReLU())

    (work,) = counted(component(build, 16, 24), [{"batch": 2, "tokens": 5}])
    # The input, the product and the ReLU's.
    assert work.written == 4 * 2 * 5 * (16 + 24 + 24)


def test_seconds_are_those_of_both_programs_when_run_once_each() -> None:
    slow, fast = Speed("cpu", pytorch=2e9, onnxruntime=3e9), Speed("cpu", pytorch=4e9, onnxruntime=3e9)
    work = Work(operations=6e9, calls=10, bytes=100, written=1000)
    served = served_seconds(work, slow)
    assert served > 0
    assert seconds(work, slow) - served == pytest.approx(2 * (seconds(work, fast) - served))


@pytest.mark.parametrize("more", [{"operations": 12e9}, {"written": 2_000_000_000}, {"calls": 20}])
def test_seconds_are_more_when_there_is_more_of_any_work(more: dict[str, int]) -> None:
    speed, work = Speed("cpu", pytorch=2e9, onnxruntime=3e9), Work(6e9, 10, 100, 1000)
    assert served_seconds(replace(work, **more), speed) > served_seconds(work, speed)
    assert seconds(replace(work, **more), speed) > seconds(work, speed)


def test_device_is_refused_by_name_when_unknown() -> None:
    with pytest.raises(InvalidRequest, match="device must be one of cpu, cuda, got 'tpu'"):
        check_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_device_is_refused_with_the_programs_that_lack_it_when_there_is_no_gpu() -> None:
    with pytest.raises(InvalidRequest, match="cuda, which PyTorch and ONNX Runtime cannot here"):
        check_device("cuda")


def test_gpu_is_refused_when_both_builds_of_onnx_runtime_are_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipway_serving.protocol.distribution.version", lambda name: "1.31.1")
    check_device("cpu")
    with pytest.raises(
        InvalidRequest, match="device cuda: only one of onnxruntime and onnxruntime-gpu may be"
    ):
        check_device("cuda")
