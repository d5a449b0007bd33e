"""Loader of a component's network from its model's version folder, for the program that PyTorch serves.

The folder contains what the family's plan and the network's `load` read of the checkpoint, in its layout, and
`network.json`, which identifies the component; an authored model has one such file for each of its graphs.
The same family makes the same plan of the folder, and the component loads itself, so families need no code
for this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.spec import Axis, Component, DType, Loading, Precision, TensorSpec
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.runtime.torch_engine.network import Network

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
    """Content of `network.json`: which component a version folder contains.

    Args:
        family: Name of the family.
        variant: Name of the family's variant; None for its own plan.
        component: Label of the component.
        source: Checkpoint as the user named it, from which plans may derive names.
        axes: Range of every axis of the plan, [min, opt, max].
        files: Paths of the checkpoint's files that it is made of, which are placed beside this file.
    """

    family: str
    variant: str | None
    component: str
    source: str
    axes: Mapping[str, tuple[int, int, int]]
    files: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the content of the file as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


def load(file: Path, precision: str) -> Network:
    """Load a network from a version folder.

    Args:
        file: The folder's `network.json`, or that of a graph; the checkpoint's files are beside it.
        precision: Precision to load it in.

    Raises:
        InvalidRequest: A file is missing or not as the family reads it, or there is no such component.
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
    """Load a component's network in the form that the program takes."""
    from torch import nn

    module = component.load(precision, Loading.READ)
    products = (path for path, part in module.named_modules() if isinstance(part, nn.Linear))
    return Network(
        module,
        signature_of(component),
        frozenset(path for path in products if not component.keeps_float(path)),
    )


def signature_of(component: Component) -> Signature:
    """Return a component's tensors as in its graph; a varying size is named by its expression."""

    def tensor(spec: TensorSpec) -> GraphTensor:
        sizes = component.varying(spec)
        shape = tuple(size if isinstance(size, int) else str(size) for size in sizes)
        return GraphTensor(spec.name, _ONNX_TYPES[spec.dtype], shape)

    inputs, outputs = (
        {spec.name: tensor(spec) for spec in side} for side in (component.inputs, component.outputs)
    )
    return Signature(inputs, {}, outputs)
