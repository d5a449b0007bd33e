"""Loads a component's network from its served model's version folder, for the program that PyTorch serves.

The folder has what the family's plan and the network's `load` read of the checkpoint, in its layout, and
`network.json`, which says whose component it is; of an authored model one for each of its graphs. The same
family makes the same plan of it, and the component loads itself: a family knows nothing of this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slipway_export.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec
from slipway_serving.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.errors import InvalidRequest
from slipway_serving.facts import read_facts
from slipway_serving.torch_engine.network import Network

CHECKPOINT_FOLDER = "checkpoint"

_ONNX_TYPES = {
    DType.FLOAT32: "tensor(float)",
    DType.FLOAT16: "tensor(float16)",
    DType.INT64: "tensor(int64)",
    DType.INT32: "tensor(int32)",
    DType.UINT8: "tensor(uint8)",
    DType.BOOL: "tensor(bool)",
}


@dataclass(frozen=True)
class NetworkFacts:
    """Whose component a version folder holds.

    Args:
        family: its name.
        variant: of the family's; None for its own plan.
        component: label of the component.
        source: what the user named as the checkpoint, which plans may name things after.
        axes: [min, opt, max] of every axis of the plan.
        files: of the checkpoint that it is made of, as they lie beside this.
    """

    family: str
    variant: str | None
    component: str
    source: str
    axes: Mapping[str, tuple[int, int, int]]
    files: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def load(file: Path, precision: str) -> Network:
    """Load a network of a version folder.

    Args:
        file: the folder's `network.json`, or that of a graph; the checkpoint's files lie beside it.
        precision: to load it in.

    Raises:
        InvalidRequest: a file is missing or not as the family reads it, or there is no such component.
    """
    facts = read_facts(NetworkFacts, file)
    family = family_named(facts.family).variant(facts.variant)
    checkpoint = Checkpoint(file.parent / CHECKPOINT_FOLDER, facts.source)
    plan = family.plan(checkpoint, tuple(Axis(name, *sizes) for name, sizes in facts.axes.items()))
    labels = {component.label: component for component in plan.components}
    if facts.component not in labels:
        raise InvalidRequest(f"{file}: component must be one of {', '.join(labels)}, got {facts.component}")
    return network_of(labels[facts.component], Precision(precision))


def network_of(component: Component, precision: Precision) -> Network:
    """Load a component's network as the program takes it."""
    from torch import nn

    module = component.load(precision)
    products = (path for path, part in module.named_modules() if isinstance(part, nn.Linear))
    return Network(
        module,
        signature_of(component),
        frozenset(path for path in products if not component.keeps_float(path)),
    )


def signature_of(component: Component) -> Signature:
    """Return a component's tensors as its graph has them: a varying size has the name of its expression."""

    def tensor(spec: TensorSpec) -> GraphTensor:
        sizes = component.varying(spec)
        shape = tuple(size if isinstance(size, int) else str(size) for size in sizes)
        return GraphTensor(spec.name, _ONNX_TYPES[spec.dtype], shape)

    inputs, outputs = (
        {spec.name: tensor(spec) for spec in side} for side in (component.inputs, component.outputs)
    )
    return Signature(inputs, {}, outputs)
