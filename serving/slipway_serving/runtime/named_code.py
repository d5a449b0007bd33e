"""Code that a model's config names as ``package.module:attribute``, under its present or a former name.

A placed model keeps the names that it was exported with. :data:`FORMER_MODULES` maps the names of earlier
versions to the present ones, so that a server loads repositories that were exported before a module moved.
"""

from __future__ import annotations

import importlib
from typing import Any

FORMER_MODULES = {
    "slipway_export.torch_network": "slipway_export.engines.torch_network",
    "slipway_serving.airimu.correct": "slipway_serving.families.airimu.correct",
    "slipway_serving.airimu.stream": "slipway_serving.families.airimu.stream",
    "slipway_serving.cancelling.program": "slipway_serving.runtime.cancellation.program",
    "slipway_serving.framepack_i2v.denoiser": "slipway_serving.families.framepack_i2v.denoiser",
    "slipway_serving.framepack_i2v.pipeline": "slipway_serving.families.framepack_i2v.pipeline",
    "slipway_serving.framepack_i2v.tokenizer": "slipway_serving.families.framepack_i2v.tokenizer",
    "slipway_serving.matrix_game.session": "slipway_serving.families.matrix_game.session",
    "slipway_serving.remote": "slipway_serving.runtime.remote",
    "slipway_serving.torch_engine.program": "slipway_serving.runtime.torch_engine.program",
    "slipway_serving.wakeword.decide": "slipway_serving.families.wakeword.decide",
    "slipway_serving.wakeword.stream": "slipway_serving.families.wakeword.stream",
    "slipway_serving.wan_t2v.denoiser": "slipway_serving.families.wan_t2v.denoiser",
    "slipway_serving.wan_t2v.pipeline": "slipway_serving.families.wan_t2v.pipeline",
}


def load_named(name: str) -> Any:
    """Import what a config names.

    Args:
        name: Name, ``package.module:attribute``; a module's former name is accepted.

    Raises:
        ValueError: The name has no module.
        ModuleNotFoundError: The module does not exist.
        AttributeError: The module has no such attribute.
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(FORMER_MODULES.get(module, module)), attribute)
