"""Registry of recipes: the module with the recipe of each demo checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from slipway_recipes.recipe import Recipe
from slipway_serving.protocol.errors import InvalidRequest

# A recipe is imported only when it is requested, because it imports torch.
RECIPES: Mapping[str, str] = {
    "airimu": "slipway_recipes.airimu.recipe",
    "framepack_i2v": "slipway_recipes.framepack_i2v.recipe",
    "matrix_game": "slipway_recipes.matrix_game.recipe",
    "wan_t2v": "slipway_recipes.wan_t2v.recipe",
    "wakeword": "slipway_recipes.speech.recipe",
    "wakeword_head": "slipway_recipes.speech.word",
}


def recipe_named(family: str) -> Recipe:
    """Return the recipe of a family's demo checkpoint.

    Raises:
        InvalidRequest: The family has no recipe.
    """
    if family not in RECIPES:
        raise InvalidRequest(f"weights: family must be one of {', '.join(RECIPES)}, got {family!r}")
    recipe: Recipe = import_module(RECIPES[family]).RECIPE
    return recipe
