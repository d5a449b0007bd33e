"""Declarative description of a family's components and their tensors, from which everything else is derived.

A family states its components as the frozen dataclasses below. From them, `graph/onnx.py` derives the dynamic
shapes of the export, `verification/comparison.py` the shapes at which the graph is compared with PyTorch, and
`repository/publish.py` Triton's `config.pbtxt` and the warm-up request. Nothing here imports torch, so that
the light client can list the families.
"""

from slipway_export.spec.component import Component
from slipway_export.spec.family import AuthoredModel, Family, FileContent, GraphFile, Plan, Preset, Variant
from slipway_export.spec.formats import DEFAULT_BUDGET, LOWEST_OPSET, DType, Engine, Precision
from slipway_export.spec.layout import NamedFile, Part
from slipway_export.spec.loading import Loading
from slipway_export.spec.stepped import CARRIED_PREFIX, StepInput, Stepped, WholeRun
from slipway_export.spec.tensors import BATCH, Axis, TensorSpec, Tolerance

__all__ = [
    "BATCH",
    "CARRIED_PREFIX",
    "DEFAULT_BUDGET",
    "LOWEST_OPSET",
    "AuthoredModel",
    "Axis",
    "Component",
    "DType",
    "Engine",
    "Family",
    "FileContent",
    "GraphFile",
    "Loading",
    "NamedFile",
    "Part",
    "Plan",
    "Precision",
    "Preset",
    "StepInput",
    "Stepped",
    "TensorSpec",
    "Tolerance",
    "Variant",
    "WholeRun",
]
