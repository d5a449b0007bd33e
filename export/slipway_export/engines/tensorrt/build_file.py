"""Building of the engine of one ONNX file, from an export or from anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from slipway_export.engines.tensorrt.build import build_engine, check_built
from slipway_export.engines.tensorrt.check import plan_of_graph
from slipway_export.engines.tensorrt.choice import EngineChoice
from slipway_export.engines.tensorrt.staged_engine import check_tensors, write_facts
from slipway_export.repository.load_check import file_signature
from slipway_export.spec import Axis
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.runtime.tensorrt.engine_file import EngineFacts, facts_file


def build_file(
    graph: Path,
    choice: EngineChoice,
    axes: Sequence[Axis] = (),
    output: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[EngineFacts, Path]:
    """Build the engine of an ONNX file, and write the file of its facts beside it.

    An engine of the same name is replaced only when the new one is complete.

    Args:
        graph: Path of the ONNX file.
        choice: Choice of how the engine is built.
        axes: Ranges of axes from the user, which replace the recorded ones.
        output: Path of the engine; beside the graph when None.
        report: Callback that receives a line before the build.

    Returns:
        Facts of the engine, and its path.

    Raises:
        InvalidRequest: The file is not ONNX, a dynamic dimension has no range, or the output has another
        suffix. BuildFailed: The parser or the builder refused the graph; an earlier engine is unchanged.
    """
    if not graph.is_file():
        raise InvalidRequest(f"engines build: {graph} must be an .onnx file or a repository, got neither")
    suffix = choice.library.suffix
    engine = output or graph.with_suffix(suffix)
    if engine.suffix != suffix:
        raise InvalidRequest(f"output must end with {suffix} for {choice.library.full_name}, got {engine}")
    plan = plan_of_graph(graph, choice, axes, engine.with_name(f".{engine.name}.part"))
    report(f"{graph}: building with {choice.text}")
    built = build_engine(plan)
    check_built(built, str(graph), choice.library.full_name)
    signature = file_signature(graph)
    check_tensors(built, signature, str(graph))
    described = engine.with_name(facts_file(engine.stem))
    write_facts(replace(plan, engine=engine), built, signature, described)
    assert plan.engine is not None  # The plan above names it.
    plan.engine.replace(engine)
    return read_facts(EngineFacts, described), engine
