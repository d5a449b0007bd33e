"""An engine in a staging folder: built from the verified graph beside it, with the file of its facts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.engines.tensorrt.build import build_engine, check_built
from slipway_export.engines.tensorrt.choice import EngineChoice
from slipway_export.engines.tensorrt.plan import EnginePlan, Profile, component_profiles
from slipway_export.engines.tensorrt.report import BuildReport
from slipway_export.engines.torch_network import signature_of
from slipway_export.repository.config import config_text, model_config
from slipway_export.repository.publish import stage_authored
from slipway_export.spec import AuthoredModel, Component, Engine
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.runtime.tensorrt.engine_file import EngineFacts, facts_file
from slipway_serving.runtime.tensorrt.library import Library

_SOURCE = "tensorrt_rtx"
_ONNX_TYPES = {
    "FLOAT": "tensor(float)",
    "HALF": "tensor(float16)",
    "BF16": "tensor(bfloat16)",
    "INT64": "tensor(int64)",
    "INT32": "tensor(int32)",
    "INT8": "tensor(int8)",
    "UINT8": "tensor(uint8)",
    "BOOL": "tensor(bool)",
}


def stage_engine(component: Component, choice: EngineChoice, graph: Path) -> BuildReport:
    """Build the engine of a verified graph, and place it beside the graph if the choice says so.

    Args:
        component: Description of the component.
        choice: Choice of how the engine is built.
        graph: Path of the staged graph.

    Returns:
        Report of the build.

    Raises:
        BuildFailed: The parser or the builder refused the graph.
        InvalidRequest: The tensors of the parsed graph differ from the description.
    """
    engine = graph.with_suffix(choice.library.suffix) if choice.placed else None
    profiles = component_profiles(component, choice.profiles)
    plan = EnginePlan(choice.library, graph, engine, choice.targets, profiles, choice.options)
    report = build_engine(plan)
    check_built(report, component.label, choice.library.full_name)
    check_tensors(report, signature_of(component), component.label)
    if engine is not None:
        write_facts(plan, report, signature_of(component), graph.with_name(facts_file(graph.stem)))
    return report


def engine_files(graph: Path, choice: EngineChoice) -> list[Path]:
    """Return the files of a placed engine beside its graph; none if the engine is not placed."""
    if not choice.placed:
        return []
    return [graph.with_suffix(choice.library.suffix), graph.with_name(facts_file(graph.stem))]


def write_facts(plan: EnginePlan, report: BuildReport, signature: Signature, path: Path) -> None:
    """Write the file that identifies an engine.

    Args:
        plan: Plan of the engine.
        report: Report of its build.
        signature: Tensors of the graph, with the names of dynamic sizes.
        path: Path of the file.
    """
    facts = EngineFacts(
        library=plan.library.value,
        version=report.version,
        targets=plan.targets,
        graph=_sha256(plan.graph),
        options=plan.options.facts,
        profiles={profile.name: _ranges(profile) for profile in plan.profiles},
        inputs=_entries(signature.inputs),
        outputs=_entries(signature.outputs),
        engine_bytes=report.engine_bytes,
        built={
            "build_s": round(report.build_s, 1),
            "peak_bytes": report.peak_bytes,
            "weights_bytes": report.weights_bytes,
            "activation_bytes": report.activation_bytes,
            "fused_attention": report.fused_attention,
            "layers": report.layers,
        },
        stripped=plan.options.strip_weights,
    )
    path.write_text(json.dumps(facts.to_json(), indent=2) + "\n", encoding="utf-8")


def check_tensors(report: BuildReport, signature: Signature, label: str) -> None:
    """Refuse a parsed graph whose tensors differ from the description.

    Args:
        report: Report of the build.
        signature: Tensors as described.
        label: Label of the component, for messages.

    Raises:
        InvalidRequest: A tensor differs in its name, order, type or shape. The message names each.
    """
    raise_all(label, tensor_problems(report, signature))


def tensor_problems(report: BuildReport, signature: Signature) -> list[str]:
    """Return a problem for each tensor of a parsed graph that differs from its description."""
    problems = []
    for side, parsed, described in (
        ("input", report.inputs or {}, signature.inputs),
        ("output", report.outputs or {}, signature.outputs),
    ):
        if list(parsed) != list(described):
            problems.append(f"{side}s must be {', '.join(described)} in this order, got {', '.join(parsed)}")
            continue
        for name, (kind, shape) in parsed.items():
            tensor, actual = described[name], _ONNX_TYPES.get(kind, kind)
            if actual != tensor.onnx_type or list(shape) != tensor.dims:
                problems.append(
                    f"{side} {name} must be {tensor.onnx_type} {tensor.dims}, got {actual} {list(shape)}"
                )
    return problems


def stage_engine_model(component: Component, name: str, staged: Path) -> None:
    """Stage a served model that runs an engine of TensorRT-RTX: its configuration and the authored adapter.

    Args:
        component: Description of the component.
        name: Name of the served model.
        staged: Staging folder.
    """
    path = stage_authored(AuthoredModel(name, source=_SOURCE), staged) / "config.pbtxt"
    config = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    config.MergeFrom(model_config(component, name, Engine.TENSORRT_RTX))
    path.write_text(config_text(config), encoding="utf-8")


def stage_plan_model(component: Component, choice: EngineChoice, folder: Path) -> None:
    """Write the configuration with which Triton's own TensorRT backend serves an engine.

    Args:
        component: Description of the component.
        choice: Choice of how the engine is built.
        folder: Folder of the model.
    """
    if choice.library is not Library.TENSORRT:
        raise InvalidRequest(f"{component.label}: a plan must be of TensorRT, got {choice.library.full_name}")
    config = model_config(component, folder.name, Engine.TENSORRT)
    config.platform = "tensorrt_plan"
    config.default_model_filename = f"{component.graph}{choice.library.suffix}"
    profiles = component_profiles(component, choice.profiles)
    group = config.instance_group[0]
    group.kind = pb.ModelInstanceGroup.KIND_GPU
    group.profile.extend(str(index) for index in range(len(profiles)))
    graphs = config.optimization.cuda
    graphs.graphs = True
    point = component.points()["opt"]
    batched = component.batch_axis is not None
    spec = graphs.graph_spec.add(batch_size=point["batch"] if batched else 0)
    for tensor in component.inputs:
        shape = tensor.at(point)
        spec.input[tensor.name].dim.extend(shape[1:] if batched else shape)
    (folder / "config.pbtxt").write_text(config_text(config), encoding="utf-8")


def _entries(tensors: Mapping[str, GraphTensor]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": tensor.name, "onnx_type": tensor.onnx_type, "shape": list(tensor.shape)}
        for tensor in tensors.values()
    )


def _ranges(profile: Profile) -> dict[str, list[list[int]]]:
    return {name: [list(shape) for shape in shapes] for name, shapes in profile.shapes.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
