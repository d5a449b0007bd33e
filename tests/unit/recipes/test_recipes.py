"""Recipes of demo checkpoints: the loop that goes on where it was ended, and how a checkpoint is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.demo import demo_preset
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.airimu.family import FAMILY
from slipway_recipes.card import CARD_FILE, Card
from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.recipe import Making, Recipe
from slipway_recipes.registry import RECIPES, recipe_named
from slipway_serving.protocol.errors import InvalidRequest

SCHEDULE = Schedule(steps=12, learning_rate=0.05, warmup=2, ema=0.5)


class Ended(Exception):
    """What ends a training, as a kill would."""


def small_network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def loss_until(end: int) -> Callable[[nn.Module, int], Tensor]:
    def loss(network: nn.Module, step: int) -> Tensor:
        if step == end:
            raise Ended
        drawn = torch.randn(16, 4)
        found: Tensor = (network(drawn)[:, 0] - drawn.sum(dim=1)).square().mean()
        return found

    return loss


def test_training_makes_the_same_weights_when_it_was_ended_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(small_network(), loss_until(-1), SCHEDULE, Making(tmp_path, tmp_path / "whole"), "small")
    monkeypatch.setattr("slipway_recipes.fitting.SAVED_EVERY_S", 0.0)
    said: list[str] = []
    making = Making(tmp_path, tmp_path / "ended", report=said.append)
    with pytest.raises(Ended):
        fit(small_network(), loss_until(7), SCHEDULE, making, "small")
    assert said == []
    again = fit(small_network(), loss_until(-1), SCHEDULE, making, "small")
    assert said == ["small: going on after step 7 of 12"]
    for name, wanted in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], wanted), name
    other = Making(tmp_path, tmp_path / "other", seed=1)
    moved = fit(small_network(), loss_until(-1), SCHEDULE, other, "small")
    assert not torch.equal(moved.state_dict()["3.bias"], whole.state_dict()["3.bias"])


def test_training_learns_when_it_has_steps_enough(tmp_path: Path) -> None:
    found: list[float] = []

    def loss(network: nn.Module, step: int) -> Tensor:
        value = loss_until(-1)(network, step)
        found.append(value.item())
        return value

    fit(small_network(), loss, Schedule(steps=200, learning_rate=0.05), Making(tmp_path, tmp_path / "s"), "x")
    assert sum(found[-20:]) < 0.5 * sum(found[:20])


def test_recipe_writes_a_card_with_what_was_measured_when_it_runs(tmp_path: Path) -> None:
    card = Card("A thing", "It is.", "Drawn.", "Trained.", {"share": "share of it"}, "None.")
    recipe = Recipe(
        "thing", "", 0.1, lambda making: making.output.mkdir(), lambda folder: {"share": 0.25}, card
    )
    assert recipe.run(Making(tmp_path / "made", tmp_path, seed=4)) == {"share": 0.25}
    text = (tmp_path / "made" / CARD_FILE).read_text()
    assert "| share of it | 0.25 |" in text and "`slipway train weights thing --seed 4`" in text


def test_making_names_every_option_that_breaks_its_rule() -> None:
    with pytest.raises(
        InvalidRequest, match=r"seed must be .* got -1 .*threads must .* got 0 .*scale must .* 2"
    ):
        Making(Path(), Path(), seed=-1, threads=0, scale=2.0)


def test_recipe_is_of_its_family_when_it_is_named() -> None:
    for family in RECIPES:
        assert recipe_named(family).family == family
    with pytest.raises(InvalidRequest, match="family must be one of airimu, .*got 'toy'"):
        recipe_named("toy")


def test_demo_checkpoint_is_refused_when_it_is_not_installed(tmp_path: Path) -> None:
    preset = demo_preset("no_such_family", "", ())
    with pytest.raises(InvalidRequest, match="got none; try pip install ./training/slipway_demo"):
        preset.write(tmp_path, 0)


def test_demo_checkpoint_is_refused_when_another_seed_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="seed must be left out for demo"):
        FAMILY.presets["demo"].write(tmp_path, 1)


@pytest.mark.parametrize("name", ["airimu", "framepack_i2v", "matrix_game", "wakeword", "wan_t2v"])
def test_demo_checkpoint_has_its_familys_layout_and_a_card(name: str) -> None:
    from slipway_export.families import family_named

    family = family_named(name)
    with open_checkpoint(family, "demo") as checkpoint:
        assert checkpoint.has(CARD_FILE)
        assert (
            not (preset := family.presets["demo"]).configs or axes_of(family, checkpoint, {}) == preset.axes
        )
        files = [path for path in checkpoint.path.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 9e6
