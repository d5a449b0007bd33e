"""Stable import path of the adapter for the `1/model.py` of placed models.

Model repositories hold copies of that file, so this path stays when the modules behind it move.
"""

from slipway_serving.runtime.adapter import model_class

__all__ = ["model_class"]
