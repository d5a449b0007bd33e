"""Cases, their sizes, and the refusal of those that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway_benchmarks.denoiser import memory
from slipway_benchmarks.denoiser.benchmark import DenoiserOptions
from slipway_benchmarks.denoiser.cases import CASES, case_of_checkpoint, choose_case
from slipway_benchmarks.denoiser.graphs import axes_of_case
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.spec import Precision
from slipway_loadtests.machine import machine_facts, machine_lines
from slipway_serving.protocol.errors import InvalidRequest


def test_named_case_has_the_sizes_that_its_figures_are_known_for() -> None:
    case = CASES["wan-6x8x64"]
    assert case.latents == (2, 16, 5, 30, 40)
    assert (case.tokens, case.text_tokens, case.threads) == (1500, 128, 2)


def test_case_names_its_changes_when_fields_are_given() -> None:
    changed = choose_case("wan-6x8x64", {"layers": 2, "heads": None, "ffn_dim": 2048, "guidance_scale": 1.0})
    assert changed.name == "wan-6x8x64 with layers=2, guidance_scale=1.0"
    assert (changed.layers, changed.heads, changed.batch) == (2, 8, 1)


def test_case_is_the_named_one_when_nothing_differs() -> None:
    assert choose_case("wan-6x8x64", {"layers": 6, "heads": None}) is CASES["wan-6x8x64"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layers": 0, "text_dim": -1}, ["layers", "text_dim"]),
        ({"head_dim": 7}, ["head_dim"]),
        ({"width": 100, "frames": 4}, ["width", "frames"]),
        ({"guidance_scale": -1.0}, ["guidance_scale"]),
    ],
)
def test_case_is_refused_by_field_when_a_size_cannot_be(
    changes: dict[str, int | float | None], named: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        choose_case("wan-6x8x64", changes)
    assert all(f"{name} must be" in str(refused.value) for name in named)


def test_case_is_refused_with_the_known_names_when_it_is_unknown() -> None:
    with pytest.raises(InvalidRequest, match="wan-6x8x64, got 'nope'"):
        choose_case("nope", {})


def test_every_axis_varies_when_a_case_is_as_small_as_can_be() -> None:
    small = choose_case("wan-6x8x64", {"frames": 1, "height": 16, "width": 16, "guidance_scale": 1.0})
    axes = axes_of_case(small)
    assert {axis.name for axis in axes} == {axis.name for axis in family_named("wan_t2v").axes}
    assert all(axis.min < axis.max for axis in axes)


def test_all_precisions_of_onnxruntime_are_measured_when_none_is_chosen() -> None:
    assert DenoiserOptions(CASES["wan-6x8x64"]).precisions == tuple(
        precision for precision in Precision if precision is not Precision.FP8
    )


@pytest.mark.parametrize("options", [{"rounds": 0}, {"steps": 0}, {"memory_tokens": (100,)}])
def test_options_are_refused_by_name_when_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match=f"{next(iter(options)).replace('_', '.')} must be"):
        DenoiserOptions(CASES["wan-6x8x64"], **options)


@pytest.mark.parametrize("tokens", [64, 2048, 16384])
def test_latents_have_the_tokens_that_were_asked_for(tokens: int) -> None:
    _, _, frames, height, width = memory.latents_of(tokens, 16)
    assert frames * (height // 2) * (width // 2) == tokens


def test_memory_job_fails_with_the_last_line_when_its_process_fails() -> None:
    job = memory.MemoryJob("/nowhere", "wan_t2v_denoiser_high", 64, 16, (4, 8), 1)
    with pytest.raises(Exception, match=r"ended with 1: .*config\.pbtxt"):
        memory.measure(job)


def test_curve_has_no_line_when_one_size_was_measured() -> None:
    found = memory.curve([memory.MemoryPoint(64, 10.0, 12.0)], {128: "memory ran out"})
    assert found.fit is None
    assert found.failed == {128: "memory ran out"}


def test_curve_has_the_growth_per_thousand_tokens_when_two_sizes_were_measured() -> None:
    points = [memory.MemoryPoint(tokens, 10.0, 20.0 + tokens / 100) for tokens in (2048, 4096)]
    found = memory.curve(points, {})
    assert found.fit is not None
    assert (found.fit.slope, found.fit.intercept) == pytest.approx((10.0, 20.0))


def test_machine_is_called_busy_when_its_load_is_high() -> None:
    facts = machine_facts()
    assert facts["cores"] >= 1
    assert "torch" in facts["versions"]
    idle = machine_lines(facts | {"cores": 2, "load_average_1_min": 0.5})
    busy = machine_lines(facts | {"cores": 2, "load_average_1_min": 1.5})
    assert (len(idle), len(busy)) == (1, 2)
    assert "busy" in busy[1]


def configured(folder: Path, **changes: object) -> Checkpoint:
    """A checkpoint's configuration without weights."""
    config = dict(family_named("wan_t2v").presets["tiny"].configs["transformer/config.json"])
    (folder / "transformer").mkdir()
    (folder / "transformer/config.json").write_text(json.dumps(config | changes))
    return Checkpoint(folder, "mine")


def test_case_has_the_checkpoints_sizes_and_the_videos_that_were_given(tmp_path: Path) -> None:
    case = case_of_checkpoint(configured(tmp_path), {"layers": None, "frames": 5, "seed": 3})
    assert case.name == "checkpoint mine"
    assert (case.layers, case.heads, case.head_dim, case.ffn_dim, case.text_dim) == (2, 2, 24, 96, 32)
    assert (case.frames, case.seed, case.text_tokens) == (5, 3, 512)
    assert (case.height, case.width) == (240, 320)


def test_case_is_refused_by_name_when_options_contradict_a_checkpoint(tmp_path: Path) -> None:
    problem = "case must be left out.*layers must be left out.* own is 2, got 3.*text_dim must be left out"
    with pytest.raises(InvalidRequest, match=problem):
        case_of_checkpoint(configured(tmp_path), {"layers": 3, "text_dim": 32, "heads": None}, "wan-6x8x64")


def test_case_is_refused_by_entry_when_a_checkpoint_is_of_another_kind(tmp_path: Path) -> None:
    checkpoint = configured(tmp_path, in_channels=36, num_layers="two")
    with pytest.raises(
        InvalidRequest, match=r"mine: transformer/config.json: num_layers must.*in_channels must"
    ):
        case_of_checkpoint(checkpoint, {})
