"""Largest inputs of a network's linear layers, from which static scales of activations follow.

The float32 network runs on the component's example inputs, at the points of its verification and with other
seeds. A hook on each linear layer keeps one number, the largest absolute value of its input, so that
calibration takes the memory of one forward of PyTorch whatever the number of runs. The weights stay in the
checkpoint's files and are read one at a time (`checkpoint/on_demand_weights.py`).

Example inputs are noise where a description has no better example. Activations of served requests that are
larger saturate, so verify the quality of a quantized model on real requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipway_export.engines.device import Device
from slipway_export.graph.onnx import example_inputs
from slipway_export.spec import Component
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

SEEDS = (2, 3)
"""Seeds of the inputs; verification uses another one."""


def largest_inputs(
    component: Component,
    module: torch.nn.Module,
    points: Mapping[str, Point],
    device: Device = Device.CPU,
) -> dict[str, float]:
    """Run a network on example inputs and return the largest absolute input of each linear layer.

    Args:
        component: Description of the component.
        module: Float32 network of the component, on the device.
        points: Points by name. ``unseen`` is left out unless it is the only one.
        device: Device to compute on.

    Returns:
        Largest absolute values by the path of the layer; layers that did not run are missing.

    Raises:
        InvalidRequest: An input has a value that is not finite. The message names each such layer.
    """
    import torch

    largest: dict[str, float] = {}

    def watch(path: str) -> Any:
        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            low, high = (float(value) for value in torch.aminmax(inputs[0]))
            # max() ignores not-a-number as its second argument.
            seen = math.nan if math.isnan(low) else max(-low, high)
            largest[path] = seen if math.isnan(seen) else max(seen, largest.get(path, 0.0))

        return hook

    linear = (torch.nn.Linear,)
    layers = {path: part for path, part in module.named_modules() if isinstance(part, linear)}
    hooks = [part.register_forward_pre_hook(watch(path)) for path, part in layers.items()]
    chosen = [point for name, point in points.items() if name != "unseen"] or list(points.values())
    try:
        with torch.no_grad():
            for point in chosen:
                for seed in SEEDS:
                    arrays = example_inputs(component, point, seed).values()
                    module(*(torch.from_numpy(array).to(device.torch) for array in arrays))
    finally:
        for each in hooks:
            each.remove()
    if wrong := [path for path, value in largest.items() if not math.isfinite(value)]:
        raise InvalidRequest(
            f"{component.label}: inputs of linear layers must be finite to calibrate their scales, got"
            f" others in {', '.join(wrong)}"
        )
    return largest
