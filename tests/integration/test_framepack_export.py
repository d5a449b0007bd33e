"""The graphs of `framepack_i2v`, exported one by one, and in the calls that diffusers' pipeline makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from diffusers import HunyuanVideoFramepackPipeline
from framepack_fixtures import small_checkpoint, small_repository
from PIL import Image

from slipway_cli.root import run
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.run import ExportResult

pytestmark = pytest.mark.long

Calls = list[tuple[dict[str, Any], torch.Tensor]]


@pytest.fixture(scope="module")
def checkpoint(shared: Path) -> Path:
    return small_checkpoint(shared)


@pytest.fixture(scope="module")
def exported(shared: Path) -> tuple[Path, ExportResult]:
    return small_repository(shared)


def test_graphs_equal_pytorch_at_sizes_that_export_never_saw(exported: tuple[Path, ExportResult]) -> None:
    rows = exported[1].rows
    points = {
        graph: {row.point.split()[0] for row in rows if row.graph == graph} for graph, _ in labels(rows)
    }
    assert set(points) == set(FAMILY.parts_alone)
    assert all(found == {"min", "opt", "max", "unseen"} for found in points.values())
    # At max two prompts of different lengths, at the others one that is shorter than its row.
    assert max(row.max_abs for row in rows) < 1e-4
    assert ("transformer", (2, 16, 9, 12, 12)) in labels(rows)
    assert ("vae_decoder", (2, 3, 17, 96, 96)) in labels(rows)


def labels(rows: Any) -> set[tuple[str, tuple[int, ...]]]:
    return {(row.graph, row.shape) for row in rows}


@pytest.mark.parametrize("order", ["inverted_anti_drifting", "vanilla"])
def test_transformer_graph_equals_diffusers_in_the_calls_of_its_pipeline(
    checkpoint: Path, exported: tuple[Path, ExportResult], order: str
) -> None:
    graph = exported[0] / "framepack_i2v_transformer/1/model.onnx"
    session = onnxruntime.InferenceSession(graph)
    calls = pipeline_calls(checkpoint, order)
    assert len(calls) == 2
    for given, expected in calls:
        sample = session.run(["sample"], tensors(given))[0]
        assert expected.std() > 0.1
        np.testing.assert_allclose(sample, expected.numpy(), atol=1e-4, rtol=0)
    first, second = (given for given, _ in calls)
    clean, own = first["indices_latents_clean"].tolist(), first["indices_latents"].tolist()
    # The picture is before everything; the nearest of history is after a section, or before a forward one.
    assert clean == [0, 19]
    assert own == list(range(10, 19) if order == "inverted_anti_drifting" else range(20, 29))
    assert second["latents_history_4x"].shape[2] == 16


def pipeline_calls(checkpoint: Path, order: str) -> Calls:
    """Return what diffusers' pipeline gives its transformer, and gets, over two sections of one step."""
    pipeline = HunyuanVideoFramepackPipeline.from_pretrained(checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    calls: Calls = []

    def note(_: torch.nn.Module, __: Any, given: dict[str, Any], result: tuple[torch.Tensor]) -> None:
        calls.append((given, result[0]))

    pipeline.transformer.register_forward_hook(note, with_kwargs=True)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    pipeline(
        image=Image.fromarray(pixels),
        prompt="A paper boat sails down a rainy street.",
        height=32,
        width=48,
        num_frames=66,
        num_inference_steps=1,
        generator=torch.Generator().manual_seed(0),
        sampling_type=order,
        output_type="latent",
    )
    return calls


def tensors(given: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a call as the graph takes them."""
    arrays = {name: value.numpy() for name, value in given.items() if isinstance(value, torch.Tensor)}
    mask = arrays["encoder_attention_mask"].astype(np.int64)
    return arrays | {"encoder_attention_mask": mask}


def test_attention_of_the_blocks_has_no_mask(exported: tuple[Path, ExportResult]) -> None:
    model = onnx.load(exported[0] / "framepack_i2v_transformer/1/model.onnx", load_external_data=False)
    attentions = [node for node in model.graph.node if node.op_type == "MultiHeadAttention"]
    masked = [node for node in attentions if any(node.input[3:])]
    # Of the text's refiner, whose tokens are few; a block each of both kinds has none.
    assert (len(attentions), len(masked)) == (3, 1)
    assert sum(node.op_type == "RotaryEmbedding" for node in model.graph.node) == 4
    assert {node.domain for node in model.graph.node} <= {"", "com.microsoft"}


def test_image_encoder_is_a_file_when_its_place_and_flags_are_the_reports(
    checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "siglip.onnx"
    flags = ["--model-path", str(checkpoint), "--subfolder", "image_encoder", "--model-type", "flux_redux"]
    assert run(["export", "framepack_i2v", *flags, "--output-name", str(output), "--quiet"]) == 0
    report = json.loads(Path(f"{output}.json").read_text())
    assert report["component"] == "siglip_image"
    assert {row["point"].split()[0] for row in report["parity"]} == {"min", "opt", "max", "unseen"}
    assert max(row["max_abs"] for row in report["parity"]) < 1e-4
    assert [value.name for value in onnx.load(output).graph.input] == ["pixel_values"]
