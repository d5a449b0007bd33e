"""Files of a version folder that describe its PyTorch networks and how to run them; needs no torch.

A network that is a model of its own has `network.json`, and its options are in the model's configuration. A
graph `NAME` of an authored model has `NAME.network.json`, and its options are in `NAME.torch.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MODEL = "model"
"""Graph name of a network that is a model of its own."""


@dataclass(frozen=True)
class NetworkDescription:
    """Loader, options and warm-up of a network of an authored model.

    Attributes:
        network: Function that loads the network, ``package.module:function``.
        options: Parameters of :class:`~slipway_serving.runtime.torch_engine.options.TorchOptions`.
        warmup: Sizes of the inputs of the warm-up run, by name.
    """

    network: str
    options: Mapping[str, str]
    warmup: Mapping[str, Sequence[int]]


def network_file(graph: str = MODEL) -> str:
    """Return the name of the file that describes a network."""
    return "network.json" if graph == MODEL else f"{graph}.network.json"


def options_file(graph: str) -> str:
    """Return the name of the file with the PyTorch options of a network of an authored model."""
    return f"{graph}.torch.json"
