"""Graphs in files of their own, parts from other places, and operator sets below the exporter's."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from exported_graphs import check_opset

from slipway_cli.root import run
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import BUILT_IN, family_named
from slipway_export.graph.onnx import example_inputs
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis, Component, Engine, Loading, Plan, Precision, Tolerance
from slipway_export.verification.comparison import ParityFailed
from slipway_serving.protocol.errors import InvalidRequest

pytestmark = pytest.mark.long

WAN, HEAD = family_named("wan_t2v"), family_named("wakeword_head")


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def to_file(output: Path, *components: str, **more: object) -> ExportOptions:
    return replace(ExportOptions("tiny", output=output, components=components), **more)  # type: ignore[arg-type]


def test_graph_of_one_component_is_written_with_its_parity_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the parity table, and stages no model around the graph."""
    output = tmp_path / "graphs" / "head.onnx"
    word = tmp_path / "jarvis"
    word.mkdir()
    HEAD.presets["tiny"].write(word, 0)
    run(
        [
            "export",
            "wakeword_head",
            "--checkpoint",
            str(word),
            "--component",
            "jarvis",
            "--output",
            str(output),
        ]
    )
    printed = capsys.readouterr().out
    assert "Parity with PyTorch" in printed
    assert f"1 graph placed in {output}" in " ".join(printed.split())
    assert files_in(output.parent) == ["head.onnx", "head.onnx.json"]
    assert files_in(tmp_path) == ["graphs", "jarvis"]
    content = json.loads((tmp_path / "graphs/head.onnx.json").read_text())
    assert (content["component"], content["precision"]) == ("jarvis", {"model": "fp32"})
    assert content["files"].keys() == {"head.onnx"}
    assert {row["point"].split(" ")[0] for row in content["parity"]} == {"min", "opt", "max", "unseen"}


def test_large_weights_of_a_file_lie_beside_it_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway_export.graph.onnx.EXTERNAL_DATA_BYTES", 1000)
    airimu, output = family_named("airimu"), tmp_path / "step.onnx"
    options = to_file(output, "stream/step", axes=small(airimu.presets["tiny"].axes))
    result = run_export(airimu, options)
    assert (result.placed, result.models) == (True, ())
    assert {row.graph for row in result.rows} == {"stream/step"}
    assert files_in(tmp_path) == ["step.onnx", "step.onnx.data", "step.onnx.json"]
    weights = onnx.load(output, load_external_data=False).graph.initializer
    places = {e.value for w in weights for e in w.external_data if e.key == "location"}
    assert places == {"step.onnx.data"}
    assert len(ort.InferenceSession(output).get_outputs()) > 1
    # A smaller graph in its place leaves no data behind.
    monkeypatch.undo()
    run_export(airimu, replace(options, fresh=True))
    assert files_in(tmp_path) == ["step.onnx", "step.onnx.json"]


def test_standard_operators_are_written_to_a_file_for_tensorrt(checkpoint: Path, tmp_path: Path) -> None:
    options = to_file(tmp_path / "g.onnx", "text_encoder", checkpoint=str(checkpoint), engine=Engine.TENSORRT)
    run_export(WAN, options)
    assert {node.domain for node in onnx.load(tmp_path / "g.onnx").graph.node} == {""}


def test_check_only_and_broken_parity_leave_no_file(tmp_path: Path) -> None:
    output = tmp_path / "graphs" / "head.onnx"
    assert not run_export(HEAD, to_file(output, "tiny", check_only=True)).placed
    assert files_in(output.parent) == []

    def broken(*arguments: object) -> Plan:
        plan = HEAD.plan(*arguments)  # type: ignore[arg-type]
        never = {Precision.FP32: Tolerance(-1.0, -1.0, 2.0)}
        return replace(plan, components=tuple(replace(c, tolerance=never) for c in plan.components))

    with pytest.raises(ParityFailed, match="tiny: logits at min"):
        run_export(replace(HEAD, plan=broken), to_file(output, "tiny"))
    assert files_in(output.parent) == []


def test_file_is_replaced_only_if_an_export_wrote_it_and_it_is_unchanged(tmp_path: Path) -> None:
    output = tmp_path / "head.onnx"
    output.write_bytes(b"mine")
    with pytest.raises(
        InvalidRequest, match=r"output .*must be new, or unchanged since slipway.*got head.onnx; try"
    ):
        run_export(HEAD, to_file(output, "tiny"))
    assert output.read_bytes() == b"mine"
    run_export(HEAD, to_file(output, "tiny", force=True))
    run_export(HEAD, to_file(output, "tiny"))
    before = output.read_bytes()
    output.write_bytes(before + b" ")
    with pytest.raises(InvalidRequest, match="must be new, or unchanged since slipway wrote it"):
        run_export(HEAD, to_file(output, "tiny"))


@pytest.mark.parametrize(
    ("components", "message"),
    [
        (
            ("vae_decoder",),
            r"one of vae_decoder/first, vae_decoder/next, got vae_decoder, which has 2 graphs",
        ),
        ((), r"component must name one graph to export to a file: one of text_encoder, .*got none"),
        (("text_encoder", "denoiser_low"), "got text_encoder, denoiser_low"),
        (("vae",), r"one of text_encoder, denoiser_high, .*got vae"),
    ],
)
def test_output_without_one_graph_is_refused_by_the_names_of_graphs(
    checkpoint: Path, tmp_path: Path, components: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run_export(WAN, to_file(tmp_path / "g.onnx", *components, checkpoint=str(checkpoint)))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "one of repository and output must be given"),
        (["--repository", "r", "--output", "g.onnx"], "one of repository and output must be given"),
        (["--output", "g.onnx", "--triton", "localhost:8000"], "triton requires --repository"),
        (
            ["--output", "g.bin", "--component", "tiny"],
            "output must be a file whose name ends with .onnx, got g.bin",
        ),
        (["--repository", "r", "--part", "vae"], "part must be NAME=DIR|FILE|HUB_ID, got 'vae'"),
        (["--repository", "r", "--part", "a=b", "--part", "a=c"], "part a must be given once"),
        (["--repository", "r", "--part", "vae=."], "must be left out, because its checkpoints have no parts"),
    ],
)
def test_export_refuses_flags_that_do_not_go_together(
    tmp_path: Path,
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["export", "wakeword_head", "--checkpoint", "tiny", *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def scattered(checkpoint: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A checkpoint without text encoder and tokenizer, a folder of the one, one that holds the other's."""
    rest = tmp_path / "rest"
    shutil.copytree(checkpoint, rest)
    encoder = Path(shutil.move(rest / "text_encoder", tmp_path / "encoder"))
    holder = tmp_path / "holder"
    holder.mkdir()
    shutil.move(rest / "tokenizer", holder / "tokenizer")
    return rest, encoder, holder


def test_parts_are_read_from_their_places_and_named_in_the_manifest(
    scattered: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """One part by its own folder, one by a folder that holds it; names with dashes, and from a file."""
    rest, encoder, holder = scattered
    config = tmp_path / "export.yaml"
    config.write_text(f"part: ['text-encoder={encoder}', tokenizer={holder}]\ncomponent: text_encoder\n")
    target = tmp_path / "models"
    run(
        ["export", "wan_t2v", "--checkpoint", str(rest), "--repository", str(target), "--config", str(config)]
    )
    manifest = json.loads((target / "wan_t2v_text_encoder/manifest.json").read_text())
    assert manifest["checkpoint"] == {
        "source": str(rest),
        "commit": None,
        "parts": {
            "text_encoder": {"source": str(encoder), "commit": None},
            "tokenizer": {"source": str(holder), "commit": None},
        },
    }
    assert {row["output"] for row in manifest["parity"]} == {"last_hidden_state"}
    with open_checkpoint(WAN, str(rest), {"text_encoder": str(encoder), "tokenizer": str(holder)}) as opened:
        plan = WAN.plan(opened, axes_of(WAN, opened, {}))
    (tokenizer,) = (model for model in plan.authored if model.name == "wan_t2v_tokenizer")
    assert tokenizer.files["1/tokenizer"] == holder / "tokenizer"


def opened(source: Path, **parts: Path) -> None:
    with open_checkpoint(WAN, str(source), {name: str(place) for name, place in parts.items()}) as checkpoint:
        plan = WAN.plan(checkpoint, axes_of(WAN, checkpoint, {}))
        next(component for component in plan.components if component.name == "text_encoder").load(
            Precision.FP32, Loading.READ
        )


def test_errors_name_the_place_of_each_part(scattered: tuple[Path, Path, Path], tmp_path: Path) -> None:
    rest, encoder, holder = scattered
    with pytest.raises(InvalidRequest, match=rf"checkpoint {rest}: tokenizer, text_encoder/config.json must"):
        opened(rest)
    with pytest.raises(
        InvalidRequest, match=rf"part text_encoder from {holder}: text_encoder/config.json must"
    ):
        opened(rest, text_encoder=holder, tokenizer=holder)
    with pytest.raises(
        InvalidRequest, match="part text_encoder must be a folder or a hub id, got '/nowhere'"
    ):
        opened(rest, text_encoder=Path("/nowhere"))
    allowed = "tokenizer, text_encoder, transformer, transformer_2, image_encoder, image_processor, vae"
    with pytest.raises(InvalidRequest, match=f"must be one of {allowed}, scheduler, got text"):
        opened(rest, text=encoder)
    weights = encoder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(
        InvalidRequest, match=rf"part text_encoder from {encoder}: .*complete safetensors file"
    ):
        opened(rest, text_encoder=encoder, tokenizer=holder)
    weights.unlink()
    with pytest.raises(InvalidRequest, match=rf"part text_encoder from {encoder}: text_encoder must contain"):
        opened(rest, text_encoder=encoder, tokenizer=holder)


def test_part_that_does_not_fit_the_others_is_refused(scattered: tuple[Path, Path, Path]) -> None:
    rest, encoder, holder = scattered
    config = encoder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"d_model": 48}))
    with pytest.raises(InvalidRequest) as refused:
        opened(rest, text_encoder=encoder, tokenizer=holder)
    wanted = f"text_dim must be 48 as d_model of text_encoder (part text_encoder from {encoder}), got 32"
    assert f"checkpoint {rest}: transformer/config.json: {wanted}" in str(refused.value)


def small(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Cut AirIMU's long recordings; the other ranges are small already."""
    return tuple(replace(axis, opt=min(axis.opt, 40), max=min(axis.max, 60)) for axis in axes)


@pytest.mark.parametrize(
    "family",
    [family.name for family in BUILT_IN if family.name not in ("wan_t2v", "matrix_game", "framepack_i2v")],
)
def test_every_component_is_within_bounds_at_opset_17(family: str, tmp_path: Path) -> None:
    """Those that take minutes are exported so in test_wan_t2v.py and test_matrix_game_export.py."""
    chosen = family_named(family)
    axes = small(chosen.presets["tiny"].axes)
    result = run_export(chosen, ExportOptions("tiny", tmp_path, opset=17, axes=axes))
    assert result.rows
    check_opset(tmp_path, 17, ir_version=8)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8, Precision.INT4])
def test_denoiser_of_few_bits_is_within_bounds_at_opset_17(
    checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    output = tmp_path / "g.onnx"
    options = to_file(output, "denoiser_high", checkpoint=str(checkpoint), precision=precision, opset=17)
    run_export(WAN, options)
    with open_checkpoint(WAN, str(checkpoint)) as opened_checkpoint:
        plan = WAN.plan(opened_checkpoint, WAN.presets["tiny"].axes)
    (denoiser,) = (c for c in plan.components if c.name == "denoiser_high")
    session = ort.InferenceSession(output)
    (sample,) = session.run(None, example_inputs(denoiser, denoiser.points()["opt"]))
    assert np.isfinite(sample).all()


def test_opset_below_the_lowest_names_each_component_with_its_own(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        run_export(WAN, ExportOptions(str(checkpoint), tmp_path, precision=Precision.BF16, opset=17))
    assert str(refused.value) == (
        "opset-version must be 22 to 23 for bf16, got 17 with engine onnxruntime; the lowest of each"
        " component: text_encoder 22, denoiser_high 22, denoiser_low 22, vae_decoder/first 17,"
        " vae_decoder/next 17"
    )


def test_opset_of_a_component_is_what_its_description_says(tmp_path: Path) -> None:
    def later(*arguments: object) -> Plan:
        plan = HEAD.plan(*arguments)  # type: ignore[arg-type]

        def since_20(component: Component) -> Component:
            return replace(component, lowest_opset={Precision.FP32: 20})

        return replace(plan, components=tuple(map(since_20, plan.components)))

    with pytest.raises(
        InvalidRequest, match=r"must be 20 to 23 for fp32, got 19 with engine onnxruntime; .*: tiny 20"
    ):
        run_export(replace(HEAD, plan=later), to_file(tmp_path / "g.onnx", "tiny", opset=19))
