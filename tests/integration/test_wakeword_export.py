"""Export of AST checkpoints and heads: both lengths, all precisions, and what is refused."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import ASTModel

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.families.wakeword.family import BACKBONE_TOLERANCE, TINY_CONFIG, TINY_PREPROCESSOR
from slipway_export.families.wakeword.network import HeadConfig, load_backbone
from slipway_export.families.wakeword.presets import write_backbone, write_word
from slipway_export.graph.dialect import check_operators
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis, Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.in_process import InProcessModels, read_config

pytestmark = pytest.mark.long

PAIR = (Axis("batch", 1, 2, 16),)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backbone")
    family_named("wakeword").presets["tiny"].write(folder, 0)
    return folder


def check(family: str, checkpoint: Path, repository: Path, **options: Any) -> dict[str, float]:
    """Export without placing; return the largest difference of each output."""
    asked = ExportOptions(str(checkpoint), repository, check_only=True, axes=PAIR, **options)
    worst: dict[str, float] = {}
    for row in run_export(family_named(family), asked).rows:
        worst[row.output] = max(worst.get(row.output, 0.0), row.max_abs)
    return worst


def test_checkpoint_has_the_keys_of_the_public_ones(backbone: Path) -> None:
    with safe_open(backbone / "model.safetensors", framework="pt") as file:
        keys = set(file.keys())
    prefix = "audio_spectrogram_transformer"
    assert {
        f"{prefix}.embeddings.distillation_token",
        f"{prefix}.encoder.layer.1.attention.attention.query.weight",
        f"{prefix}.encoder.layer.0.intermediate.dense.bias",
        f"{prefix}.layernorm.weight",
        "classifier.dense.weight",
    } <= keys


def test_backbone_is_transformers_own_without_its_classification(backbone: Path) -> None:
    features = torch.randn(2, 128, 128)
    with torch.no_grad():
        expected = ASTModel.from_pretrained(backbone).eval()(features).pooler_output
        assert torch.equal(load_backbone(backbone, "tiny")(features), expected)
    # The two class tokens and the input count: a random start would hide an error.
    assert (expected[0] - expected[1]).norm() > 0.1 * expected[0].norm()


@pytest.mark.parametrize("precision", BACKBONE_TOLERANCE)
def test_backbone_is_within_its_bounds_in_all_precisions(
    backbone: Path, tmp_path: Path, precision: Precision
) -> None:
    worst = check("wakeword", backbone, tmp_path / "repository", precision=precision)
    print(precision.value, worst)
    assert set(worst) == {"input_values", "rms", "embedding"}
    # Whatever the precision, the features are made in the extractor's own.
    assert worst["input_values"] < 3e-5
    assert (worst["embedding"] > 1e-4) == (precision is not Precision.FP32)


def test_backbone_of_audioset_length_is_exported_at_1024_frames(tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    write_backbone(
        tmp_path / "long", TINY_CONFIG | {"max_length": 1024}, TINY_PREPROCESSOR | {"max_length": 1024}, 0
    )
    repository = tmp_path / "repository"
    run_export(family_named("wakeword"), ExportOptions(str(tmp_path / "long"), repository, axes=PAIR))
    assert "dims: 1024" in (repository / "wakeword_backbone" / "config.pbtxt").read_text()


def test_fused_graph_is_within_its_bounds(backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "jarvis").mkdir()
    write_word(tmp_path / "jarvis", HeadConfig(embedding_dim=64), 0, base_model=str(backbone))
    worst = check("wakeword_head", tmp_path / "jarvis", tmp_path / "repository", variant="fused")
    assert worst["logits"] < 1e-4
    assert worst["threshold"] == 0.0


def test_portable_fused_graph_is_upstreams_file_and_is_served_when_exported(
    tmp_path: Path,
) -> None:
    options = ExportOptions("tiny", tmp_path, variant="fused", engine=Engine.PORTABLE, axes=PAIR)
    rows = run_export(family_named("wakeword_head"), options).rows
    assert {row.output for row in rows} == {"logits"}
    assert max(row.max_abs for row in rows) < 1e-4
    model = tmp_path / "wakeword_head_tiny_fused"
    graph = onnx.load(model / "1/model.onnx")
    signature = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.graph.input, *graph.graph.output)
    }
    assert signature == {"input_values": ["batch", 128, 128], "logits": ["batch", 2]}
    assert [imported.domain for imported in graph.opset_import] == [""]
    assert {node.domain for node in graph.graph.node} == {""}
    assert read_config(model)["backend"] == "onnxruntime"
    with closing(InProcessModels(tmp_path)) as models:
        features = np.random.default_rng(0).standard_normal((3, 128, 128)).astype(np.float32)
        logits = models.call(model.name, {"input_values": features}, ["logits"])["logits"]
        alone = models.call(model.name, {"input_values": features[:1]}, ["logits"])["logits"]
    assert logits.shape == (3, 2)
    np.testing.assert_allclose(alone, logits[:1], atol=1e-5)


@pytest.mark.parametrize(
    ("engine", "family", "precision"),
    [
        (Engine.PORTABLE, "wakeword", Precision.INT8),
        (Engine.PORTABLE, "wakeword_head", Precision.FP32),
        (Engine.PORTABLE, "airimu", Precision.FP32),
        (Engine.TENSORRT, "wakeword", Precision.FP32),
        (Engine.TENSORRT, "wakeword", Precision.BF16),
        (Engine.TENSORRT, "wakeword_head", Precision.FP32),
        (Engine.TENSORRT, "airimu", Precision.FP32),
    ],
)
def test_graphs_are_of_standard_operators_when_they_are_not_for_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, family: str, precision: Precision
) -> None:
    """The export's own guard looked at every graph, so what it saw is what is tested."""
    seen: list[set[str]] = []

    def look(path: Path, engine: Engine, label: str) -> None:
        seen.append({node.domain for node in onnx.load(path, load_external_data=False).graph.node})
        check_operators(path, engine, label)

    monkeypatch.setattr("slipway_export.repository.staged_export.check_operators", look)
    axes = (Axis("frames", 1, 12, 20), Axis("steps", 1, 3, 5)) if family == "airimu" else ()
    asked = ExportOptions("tiny", tmp_path, axes=(*PAIR, *axes), check_only=True)
    options = replace(asked, engine=engine, precision=precision)
    run_export(family_named(family), options)
    assert seen
    assert set().union(*seen) == {""}


def test_tiny_head_is_exported_with_its_own_backbone(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    run_export(family_named("wakeword_head"), ExportOptions("tiny", repository, variant="fused"))
    assert (repository / "wakeword_head_tiny_fused" / "1" / "model.onnx").is_file()


def test_int8_head_of_real_size_is_a_quarter_of_the_float_one(tmp_path: Path) -> None:
    (tmp_path / "jarvis").mkdir()
    write_word(tmp_path / "jarvis", HeadConfig(), seed=0)
    sizes = {}
    for precision in (Precision.FP32, Precision.INT8):
        repository = tmp_path / precision.value
        options = ExportOptions(str(tmp_path / "jarvis"), repository, precision=precision)
        run_export(family_named("wakeword_head"), options)
        model = repository / "wakeword_head_jarvis"
        assert json.loads((model / "manifest.json").read_text())["precision"] == {"model": precision.value}
        sizes[precision] = (model / "1" / "model.onnx").stat().st_size
    print(sizes)
    assert sizes[Precision.INT8] < 0.3 * sizes[Precision.FP32]


def changed(backbone: Path, folder: Path, file: str, **changes: Any) -> Path:
    """Copy a checkpoint with entries of a JSON file changed."""
    copied = Path(shutil.copytree(backbone, folder))
    content = json.loads((copied / file).read_text()) | changes
    (copied / file).write_text(json.dumps(content))
    return copied


@pytest.mark.parametrize(
    ("file", "changes", "text"),
    [
        ("config.json", {"model_type": "wav2vec2"}, "model_type must be audio-spectrogram-transformer"),
        (
            "config.json",
            {"max_length": 1024},
            "max_length must be 128 as in preprocessor_config.json, got 1024",
        ),
        (
            "preprocessor_config.json",
            {"num_mel_bins": 64},
            "num_mel_bins must be 64 as in preprocessor_config",
        ),
        ("config.json", {"hidden_size": 0}, "hidden_size must be a whole number above 0, got 0"),
        ("config.json", {"num_hidden_layers": 3}, "must have the keys of an ASTModel, got missing keys"),
        ("config.json", {"intermediate_size": 96}, "model.safetensors must"),
    ],
)
def test_backbone_is_refused_when_its_configuration_does_not_fit(
    backbone: Path, tmp_path: Path, file: str, changes: dict[str, Any], text: str
) -> None:
    wrong = changed(backbone, tmp_path / "wrong", file, **changes)
    with pytest.raises(InvalidRequest, match=text):
        check("wakeword", wrong, tmp_path / "repository")


def test_backbone_is_refused_when_its_weights_are_cut_off_or_too_many(backbone: Path, tmp_path: Path) -> None:
    cut = Path(shutil.copytree(backbone, tmp_path / "cut"))
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InvalidRequest, match="model.safetensors must be a complete safetensors file"):
        check("wakeword", cut, tmp_path / "repository")
    more = Path(shutil.copytree(backbone, tmp_path / "more"))
    with safe_open(more / "model.safetensors", framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors | {"other.weight": torch.zeros(1)}, more / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidRequest, match="unknown keys other.weight"):
        check("wakeword", more, tmp_path / "repository")


def test_fused_graph_is_refused_when_the_backbone_is_of_another_size(backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "jarvis").mkdir()
    write_word(tmp_path / "jarvis", HeadConfig(embedding_dim=32), 0, base_model=str(backbone))
    with pytest.raises(InvalidRequest, match="embedding_dim must be 64 as the backbone .* has it, got 32"):
        check("wakeword_head", tmp_path / "jarvis", tmp_path / "repository", variant="fused")


def test_head_is_refused_without_its_file(tmp_path: Path) -> None:
    (tmp_path / "jarvis").mkdir()
    with pytest.raises(InvalidRequest, match="model.pt must exist for wakeword_head"):
        check("wakeword_head", tmp_path / "jarvis", tmp_path / "repository")


def test_other_files_beside_a_head_do_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "jarvis"
    folder.mkdir()
    write_word(folder, HeadConfig(embedding_dim=32, hidden_dims=(8,)), 0)
    (folder / "model.onnx").write_bytes(b"stale")
    plan = family_named("wakeword_head").plan(Checkpoint(folder, str(folder)), PAIR)
    assert [component.name for component in plan.components] == ["jarvis"]
