"""The smallest demo checkpoint, made anew from its seed: `pytest -m training`, ten minutes on 2 cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipway_export.checkpoint import open_checkpoint
from slipway_export.families.airimu import FAMILY
from slipway_export.modeling.airimu import load_network
from slipway_training.recipe import Making
from slipway_training.recipes import recipe_named

# Other processors add up in another order, and steps of training make more of that.
WEIGHTS_OFF, FIGURES_OFF = 0.02, 0.05


@pytest.mark.training
@pytest.mark.timeout(7200)
def test_checkpoint_is_the_same_when_it_is_made_again_from_its_seed(tmp_path: Path) -> None:
    recipe = recipe_named("airimu")
    again = recipe.run(Making(tmp_path / "again", tmp_path / "state", seed=0))
    made = load_network(tmp_path / "again", "again").state_dict()
    with open_checkpoint(FAMILY, "demo") as checkpoint:
        kept = load_network(checkpoint.path, "demo").state_dict()
        figures = recipe.measure(checkpoint.path)
    for name, weights in kept.items():
        off = (made[name].double() - weights.double()).norm() / max(weights.double().norm(), 1e-6)
        assert off < WEIGHTS_OFF, f"{name}: {off:.3g}"
    for name, value in figures.items():
        assert np.isclose(again[name], value, rtol=FIGURES_OFF), (
            f"{name}: {again[name]:.4g}, kept {value:.4g}"
        )
