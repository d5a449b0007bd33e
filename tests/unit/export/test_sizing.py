"""What machine an export needs, from configurations alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from torch import nn

from slipway_cli.root import run
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.commands.plan_commands import print_export_estimates, print_placed_estimates
from slipway_export.commands.terminal import print_parity
from slipway_export.families import family_named
from slipway_export.graph.dialect import PRECISIONS
from slipway_export.graph.onnx import export_graph
from slipway_export.sizing.estimate import Machine, ResourceEstimate, estimate_component
from slipway_export.sizing.machine import Speed
from slipway_export.spec import Axis, Component, DType, Engine, Loading, Precision, TensorSpec, Tolerance
from slipway_export.verification.comparison import ParityRow
from slipway_serving.protocol.errors import InvalidRequest

WAN = family_named("wan_t2v")
MACHINE = Machine(Speed("cpu", pytorch=1e11, onnxruntime=1e11), call_s=0.0005)
LOOSE = Tolerance(max_abs=1.0, relative_l2=1.0, cosine=0.0)


def write_configurations(folder: Path, preset: str, experts: int) -> None:
    """Write what a public checkpoint has beside its weights, and no weights."""
    configs = WAN.presets[preset].configs
    names = ("transformer", "transformer_2")[:experts]
    files = {
        **{f"{name}/config.json": configs["transformer/config.json"] for name in names},
        "text_encoder/config.json": configs["text_encoder/config.json"],
        "vae/config.json": configs["vae/config.json"],
        "scheduler/scheduler_config.json": {"_class_name": "FlowMatchEulerDiscreteScheduler"},
        "model_index.json": {
            "_class_name": "WanPipeline",
            "boundary_ratio": 0.875 if experts == 2 else None,
            "transformer_2": ["diffusers", "WanTransformer3DModel"] if experts == 2 else [None, None],
        },
    }
    (folder / "tokenizer").mkdir(parents=True)
    for file, config in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(config), encoding="utf-8")


def components(checkpoint: Checkpoint, *labels: str) -> Sequence[Component]:
    made = WAN.plan(checkpoint, axes_of(WAN, checkpoint, {})).components
    return [component for component in made if component.label in labels]


@pytest.mark.parametrize(
    ("preset", "experts", "label", "parameters"),
    [
        ("a14b", 2, "denoiser_low", 14_288_491_584),
        ("1.3b", 1, "denoiser_high", 1_418_996_800),
        ("1.3b", 1, "text_encoder", 5_680_910_336),
        ("1.3b", 1, "vae_decoder/next", 73_295_603),
    ],
)
def test_needs_are_known_when_a_public_checkpoint_has_configurations_only(
    tmp_path: Path, preset: str, experts: int, label: str, parameters: int
) -> None:
    write_configurations(tmp_path, preset, experts)
    with open_checkpoint(WAN, str(tmp_path), configurations_only=True) as checkpoint:
        (component,) = components(checkpoint, label)
        (need,) = estimate_component(component, MACHINE, [Precision.FP32])
    assert need.parameters == parameters
    assert need.disk_bytes == pytest.approx(4 * parameters, rel=0.05)
    assert need.export_bytes < 0.5 * need.disk_bytes + 1.3e9
    assert need.verify_bytes > 4 * parameters
    assert need.serve_bytes > 4 * parameters
    assert need.step_s > 0.5 * need.operations / 1e11 > 0.05


def test_configurations_are_not_enough_when_an_export_is_made(tmp_path: Path) -> None:
    write_configurations(tmp_path, "1.3b", 1)
    with open_checkpoint(WAN, str(tmp_path)) as checkpoint:
        (component,) = components(checkpoint, "denoiser_high")
        with pytest.raises(InvalidRequest, match=r"transformer must contain .*, got neither"):
            component.load(Precision.FP32, Loading.READ)


def test_preset_of_public_size_takes_no_disk_when_configurations_are_enough() -> None:
    with open_checkpoint(WAN, "a14b", configurations_only=True) as checkpoint:
        files = [path.stat() for path in checkpoint.path.rglob("*") if path.is_file()]
    assert sum(file.st_size for file in files) > 60e9
    assert sum(512 * file.st_blocks for file in files) < 50e6


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
def test_needs_say_the_bytes_of_quantized_weights_when_products_are_kept(
    tmp_path: Path, precision: Precision
) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.proj_out = nn.Linear(256, 1024), nn.Linear(1024, 256)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.proj_out(self.wide(x))

    both = [TensorSpec(name, DType.FLOAT32, ("batch", 256)) for name in ("x", "y")]
    component = Component(
        name="two",
        inputs=(both[0],),
        outputs=(both[1],),
        axes=(Axis("batch", 1, 2, 4),),
        load=lambda *_: Two().eval().requires_grad_(False),
        tolerance={Precision.FP32: LOOSE, precision: LOOSE},
        keep_float=("*proj_out",),
    )
    (need,) = estimate_component(component, MACHINE, [precision])
    path = tmp_path / "model.onnx"
    export_graph(component, component.load(Precision.FP32, Loading.READ), path, opset=23, precision=precision)
    assert need.disk_bytes == pytest.approx(path.stat().st_size, rel=0.02)


def test_plan_is_refused_by_name_when_there_is_nothing_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(tmp_path / "none")]) == 2
    assert "repository must be an existing folder" in capsys.readouterr().err
    assert run(["plan", str(tmp_path)]) == 2
    assert "repository must contain models that slipway exported, got none" in capsys.readouterr().err


def test_export_writes_nothing_when_asked_for_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["export", "wakeword", "--checkpoint", "tiny", "--plan"]) == 0
    said = capsys.readouterr().out
    table = said.split("\nbackbone: ")[1]
    assert table.splitlines()[1].split() == ["fp32", "fp16", "bf16", "int8"]
    assert not list(tmp_path.iterdir())
    assert run(["export", "wakeword", "--checkpoint", "tiny", "--plan", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    graphs = [graph for graph in document["graphs"] if graph["label"] == "backbone"]
    assert [graph["precision"] for graph in graphs] == ["fp32", "fp16", "bf16", "int8"]
    assert graphs[0]["disk_bytes"] > graphs[3]["disk_bytes"] > 0 and document["opt"]["backbone"]
    assert document["machine"]["pytorch_operations_per_s"] > 0


# The largest numbers and the longest names that the families have.
ROWS = (
    ("denoiser_high", "unseen (batch=1, latent_frames=9)", "sample"),
    ("universal/next", "step 12 of 12 (batch=1)", "next_cross_attention_keys_and_values"),
)


@pytest.mark.parametrize("width", [60, 80])
def test_parity_table_keeps_every_number_whole_when_the_terminal_is_narrow(width: int) -> None:
    rows = [
        ParityRow(graph, output, point, (1,), 1.234e-06, 5.678e-07, 0.9999999, LOOSE, "cpu")
        for graph, point, output in ROWS
    ]
    said = StringIO()
    print_parity(rows, Console(file=said, width=width))
    lines = said.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for graph, point, _ in ROWS:
        assert f"{graph}: relative L2 of at most 1" in lines
        (line,) = (line for line in lines if line.startswith(point.split(" (")[0]))
        assert line.split()[-4:] == ["1.2e-06", "5.7e-07", "0.9999999", "ok"]


NEED = ResourceEstimate(
    "vae_decoder/next", Precision.FP32, 14_288_491_584, *(123_456_789_012.0,) * 5, 99.0, 99.0, 99.0, 1.0
)


@pytest.mark.parametrize("width", [60, 80])
def test_table_of_placed_models_names_each_model_when_the_terminal_is_narrow(width: int) -> None:
    names = ("wan_t2v_vae_decoder", "matrix_game_universal_full_sequence")
    said = StringIO()
    print_placed_estimates([replace(NEED, model=name) for name in names], Console(file=said, width=width))
    lines = said.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "fp32" in line]
    assert [line.split()[-8:] for line in rows] == [["123.5", "GB"] * 3 + ["99", "s"]] * 2
    # A long name goes on in the next line; no character of it is lost.
    text = "".join(line.partition(" fp32 ")[0].strip() for line in lines)
    assert all(f"{name}/next" in text for name in names)


@pytest.mark.parametrize("width", [60, 80])
def test_plan_of_an_export_has_a_column_for_each_precision_when_the_terminal_is_narrow(width: int) -> None:
    precisions = PRECISIONS[Engine.ONNXRUNTIME]
    needs_of_all = [replace(NEED, precision=precision) for precision in precisions]
    said = StringIO()
    print_export_estimates(needs_of_all, {NEED.label: {"batch": 1}}, Console(file=said, width=width))
    lines = said.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "vae_decoder/next: 14,288.5 million parameters, at batch=1" in lines
    titles = [line.split() for line in lines if line.startswith(" ")]
    assert [title for each in titles for title in each] == [precision.value for precision in precisions]
    assert len(titles) == (1 if width == 80 else 2)
    assert said.getvalue().count("123.5 GB") == 5 * len(precisions)


def test_plan_of_an_export_is_refused_by_name_when_the_checkpoint_or_component_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "wakeword", "--checkpoint", str(tmp_path / "none"), "--plan"]) == 2
    assert "checkpoint must be a preset" in capsys.readouterr().err
    assert run(["export", "wakeword", "--checkpoint", "tiny", "--plan", "--component", "x"]) == 2
    assert "component must be one of features, stream, backbone, got x" in capsys.readouterr().err
