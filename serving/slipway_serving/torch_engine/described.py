"""Files that say how PyTorch runs the networks of a version folder, and what they are made of; no torch here.

A model of its own has `network.json`, and the rest in its configuration. A graph `NAME` of an authored model
has `NAME.network.json`, and `NAME.torch.json` in place of its part of a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MODEL = "model"
"""The graph of a model of its own."""


@dataclass(frozen=True)
class Described:
    """How PyTorch runs a network of an authored model.

    Attributes:
        network: what loads it, ``package.module:function``.
        options: those of :class:`~slipway_serving.torch_engine.options.TorchOptions`, as parameters.
        warmup: sizes of the inputs of a run that is ready at once, by name.
    """

    network: str
    options: Mapping[str, str]
    warmup: Mapping[str, Sequence[int]]


def network_file(graph: str = MODEL) -> str:
    """Return the name of the file that says what a network is made of."""
    return "network.json" if graph == MODEL else f"{graph}.network.json"


def described_file(graph: str) -> str:
    """Return the name of the file that says how PyTorch runs a network of an authored model."""
    return f"{graph}.torch.json"
