"""The arithmetic of the benchmark of worlds."""

from __future__ import annotations

import pytest
from rich.console import Console

from slipway_benchmarks.pipelines.world import Played, WorldOptions, print_world, summarized, world_json
from slipway_benchmarks.stats import summarize
from slipway_serving.families.matrix_game.request import BlockMade

OPTIONS = WorldOptions(worlds=2, blocks=30)


def world(slower: float, first_denoise_s: float = 0.1) -> Played:
    """Return a world whose last ten blocks take, and ten before them hold, so much more than early ones.

    The younger world beside it is as slow as this one in its middle.
    """
    made = tuple(
        BlockMade(i, 12 * i + 9, 4080 - 12 * i, first_denoise_s if i == 0 else 0.1, 0.08, 0.02)
        for i in range(30)
    )
    took = (0.9, 0.5) + (0.2,) * 18 + (0.2 * slower,) * 10
    rss = tuple(round(1e9 * (slower if 12 < i < 20 else 9 if i > 19 else 1)) for i in range(30))
    return Played(took, made, rss, Played(took[:12], made[:12], rss[:12]))


def test_ratios_are_those_of_late_and_early_blocks_when_a_world_slows_down() -> None:
    result = summarized(OPTIONS, [world(1.0), world(1.5)], summarize([8.0]))
    assert result.late_time.values == pytest.approx((1.0, 1.5))
    assert result.late_memory.values == pytest.approx((1.0, 1.5))
    assert result.fps.values == pytest.approx((60.0, 60.0))
    assert result.parts_s == pytest.approx({"denoise_s": 0.1, "decode_s": 0.08, "commit_s": 0.02})


def test_first_action_is_compared_with_the_tenth_when_it_takes_longer() -> None:
    result = summarized(OPTIONS, [world(1.0, first_denoise_s=0.3)], summarize([8.0]))
    assert result.first_action.median == pytest.approx(3.0)


def test_table_and_json_have_every_figure_when_a_run_is_shown() -> None:
    result = summarized(OPTIONS, [world(1.25)], summarize([8.0]))
    console = Console(record=True, width=160, quiet=False, file=None)
    with console.capture() as shown:
        print_world(console, result)
    for text in (
        "time of blocks 21 to 30 ÷ 3 to 12, in turn",
        "memory after blocks 11 to 20 ÷ 3 to 12",
        "1.25",
        "block 20: everything anew ÷ with caches",
        "8.0",
    ):
        assert text in shown.get()
    assert world_json(result, {"cpu": "some"})["caches"]["median"] == 8.0
