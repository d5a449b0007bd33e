"""Combinations of component, precision and engine: those that once failed, and the page of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway_benchmarks.precision_matrix import NOT_OFFERED, Cell, Outcome, cells_of, run_cell, section
from slipway_export.families import families, family_named
from slipway_export.spec import Engine, Precision

pytestmark = pytest.mark.long

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/precisions.md"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny checkpoint of every family. Read only."""
    folders = {}
    for family in families():
        # Some families name a component after the folder.
        folders[family.name] = tmp_path_factory.mktemp(family.name) / "tiny"
        folders[family.name].mkdir()
        family.presets["tiny"].write(folders[family.name], 0)
    return folders


@pytest.mark.parametrize(
    ("family", "component", "precision", "engine"),
    [
        # ONNX Runtime refuses a norm of two element types.
        ("wan_t2v", "text_encoder", Precision.FP16, Engine.ONNXRUNTIME),
        # ONNX Runtime refuses an attention whose mask is broadcast over the queries.
        pytest.param("matrix_game", "universal", Precision.FP32, Engine.TENSORRT, marks=pytest.mark.long),
        pytest.param("framepack_i2v", "clip_text", Precision.FP32, Engine.TENSORRT, marks=pytest.mark.long),
        ("wakeword_head", "tiny", Precision.INT8, Engine.PORTABLE),
        ("airimu", "stream", Precision.FP64, Engine.TORCH),
        # The activations of modulations saturate.
        pytest.param("framepack_i2v", "transformer", Precision.INT8, Engine.TENSORRT, marks=pytest.mark.long),
        # ONNX Runtime fuses float8 products in float32 into operators that do not take them.
        ("wakeword_head", "tiny", Precision.FP8, Engine.TENSORRT),
        # ONNX Runtime has no bfloat16, around which these weights are quantized.
        pytest.param("wan_t2v", "text_encoder", Precision.INT4, Engine.TENSORRT, marks=pytest.mark.long),
    ],
)
def test_offered_combination_is_built_and_verified(
    tiny: dict[str, Path], tmp_path: Path, family: str, component: str, precision: Precision, engine: Engine
) -> None:
    cell = Cell(None, component, precision, engine, None)
    outcome = run_cell(family_named(family), cell, tiny[family], tmp_path)
    assert outcome.passed, outcome.text
    assert outcome.error is not None
    assert outcome.bound is not None
    assert outcome.error <= outcome.bound


@pytest.mark.parametrize(
    ("component", "precision", "engine", "message"),
    [
        (
            "vae_decoder",
            Precision.INT8,
            Engine.ONNXRUNTIME,
            "precision of vae_decoder must be one of fp32 with engine onnxruntime, got int8",
        ),
        (
            "text_encoder",
            Precision.FP16,
            Engine.TENSORRT,
            "precision of text_encoder must be one of fp32, bf16, int8, fp8, int4 with engine tensorrt (UMT5"
            " overflows in fp16), got fp16",
        ),
        (
            "text_encoder",
            Precision.FP8,
            Engine.TORCH,
            "precision of text_encoder must be one of fp32, fp16, bf16 with engine torch, got fp8; try"
            " --weights text_encoder=fp8",
        ),
        (
            "text_encoder",
            Precision.INT8,
            Engine.TORCH,
            "precision of text_encoder must be one of fp32, fp16, bf16 with engine torch, got int8; try"
            " --weights text_encoder=int8",
        ),
    ],
)
def test_other_combination_is_refused_before_any_work(
    tiny: dict[str, Path], tmp_path: Path, component: str, precision: Precision, engine: Engine, message: str
) -> None:
    family = family_named("wan_t2v")
    cells = {(c.component, c.precision, c.engine): c for c in cells_of(family, tiny["wan_t2v"])}
    cell = cells[component, precision, engine]
    assert cell.refused is not None
    outcome = run_cell(family, cell, tiny["wan_t2v"], tmp_path)
    assert outcome.passed, outcome.text
    assert message in outcome.text


def test_run_fails_when_a_combination_that_is_not_offered_is_exported(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    cell = Cell(None, "tiny", Precision.FP32, Engine.TORCH, "not offered")
    outcome = run_cell(family_named("wakeword_head"), cell, tiny["wakeword_head"], tmp_path)
    assert not outcome.passed
    assert outcome.text.startswith("FAILED: ")


def test_section_shows_what_ran_what_did_not_and_what_is_not_offered() -> None:
    offered = Cell(None, "net", Precision.FP32, Engine.ONNXRUNTIME, None)
    cells = [
        offered,
        *(Cell(None, "net", Precision.FP32, e, None) for e in (Engine.TENSORRT, Engine.PORTABLE)),
    ]
    cells.append(Cell(None, "net", Precision.FP32, Engine.TORCH, "refused"))
    known = {
        cells[0].key: Outcome("", True, 2e-5, 1e-4, "2026-01-02"),
        cells[1].key: Outcome("FAILED: x", False, None, None, "2026-01-02"),
    }
    lines = section("toy", cells, known).splitlines()
    assert lines[0] == "## toy (2026-01-02)"
    assert lines[-1] == f"| net | fp32 | 2.0e-05 of 0.0001 | fails | not run | {NOT_OFFERED} |"


def test_page_has_the_combinations_that_the_commands_offer(tiny: dict[str, Path]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for family in families():
        rows = section(family.name, cells_of(family, tiny[family.name]), {}).splitlines()[2:]
        (part,) = (part for part in page.split("\n## ") if part.split()[0] == family.name)
        written = [line for line in part.splitlines() if line.startswith("|")]
        offered = [[cell == f"{NOT_OFFERED}" for cell in row.strip("| ").split(" | ")] for row in rows]
        assert [[cell == NOT_OFFERED for cell in row.strip("| ").split(" | ")] for row in written] == offered
        assert [row.split(" | ")[:2] for row in written] == [row.split(" | ")[:2] for row in rows]
        assert "fails" not in part
