"""Engines of a repository: what is placed, whether this machine can run it, and building them anew.

A placed engine lies beside the graph that it was built from. :func:`rebuild` builds the engines of a
repository for another GPU or version from these graphs, and replaces all of them at once or none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slipway_export.engines.tensorrt.build import build_engine, check_built
from slipway_export.engines.tensorrt.choice import EngineChoice
from slipway_export.engines.tensorrt.plan import EngineOptions, EnginePlan, Profile
from slipway_export.engines.tensorrt.staged_engine import check_tensors, write_facts
from slipway_export.progress import format_bytes, format_duration
from slipway_export.repository.publish import MANIFEST, find_modification, hashes
from slipway_export.repository.staging import staging
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.runtime.tensorrt.engine_file import (
    EngineFacts,
    check_engine,
    check_machine,
    engine_path,
    facts_file,
)
from slipway_serving.runtime.tensorrt.library import Library
from slipway_serving.system.gpu import compute_capabilities

_SUFFIX = ".engine.json"


@dataclass(frozen=True)
class PlacedEngine:
    """Engine of a placed model.

    Args:
        folder: Version folder of the model.
        graph: Name of the graph.
        facts: Facts of the engine; None if its files are damaged.
        problem: Reason why this machine cannot run it, or why its files are damaged; empty if it can run.
    """

    folder: Path
    graph: str
    facts: EngineFacts | None
    problem: str

    @property
    def label(self) -> str:
        """Name of the model, and of the graph if the model has several."""
        model = self.folder.parent.name
        return model if self.graph == "model" else f"{model}/{self.graph}"

    def to_json(self) -> dict[str, Any]:
        """Return the engine as a JSON document."""
        facts = None if self.facts is None else self.facts.to_json()
        return {
            "model": self.folder.parent.name,
            "graph": self.graph,
            "problem": self.problem,
            "facts": facts,
        }


def placed_engines(repository: Path) -> list[PlacedEngine]:
    """Return the engines of a repository, or of one model's folder.

    Raises:
        InvalidRequest: There is no engine.
    """
    if repository.is_file():
        found = [repository.with_name(facts_file(repository.stem))]
    else:
        found = sorted({*repository.glob(f"*/*/*{_SUFFIX}"), *repository.glob(f"*/*{_SUFFIX}")})
    engines = [_placed(path.parent, path.name.removesuffix(_SUFFIX)) for path in found if path.is_file()]
    if not engines:
        raise InvalidRequest(
            f"engines: {repository} must have engines that slipway built (NAME{_SUFFIX}), got none"
        )
    return engines


def _placed(folder: Path, graph: str) -> PlacedEngine:
    where = folder.parent.name
    try:
        facts = check_engine(folder, where, graph)
    except SlipwayError as error:
        return PlacedEngine(folder, graph, None, str(error))
    gpus = compute_capabilities()
    try:
        check_machine(facts, where, gpus[0] if gpus else None, Library(facts.library).installed_version)
    except InvalidRequest as error:
        return PlacedEngine(folder, graph, facts, str(error))
    return PlacedEngine(folder, graph, facts, "")


def rebuild(
    repository: Path,
    choose: Callable[[Library], EngineChoice],
    models: Sequence[str] = (),
    report: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Build the engines of a repository anew from the graphs beside them, and replace all of them or none.

    Args:
        repository: Model repository.
        choose: Function that returns how the engines of a library are built.
        models: Names of the models; all models with engines when empty.
        report: Callback that receives a line before and after each build.

    Returns:
        Labels of the engines.

    Raises:
        InvalidRequest: A model has no engine, was changed since its export, or its graph is missing.
        BuildFailed: The parser or the builder refused a graph; the repository is unchanged.
    """
    engines = [
        engine for engine in placed_engines(repository) if not models or engine.folder.parent.name in models
    ]
    if missing := [name for name in models if name not in {each.folder.parent.name for each in engines}]:
        raise InvalidRequest(f"engines: model must be one with engines, got {', '.join(missing)}")
    plans = [(engine, *_new_plan(engine, choose)) for engine in engines]
    with staging(repository) as staged:
        built = [(engine, *_build(engine, plan, facts, staged, report)) for engine, plan, facts in plans]
        for engine, made, described in built:
            made.replace(engine.folder / made.name)
            described.replace(engine.folder / described.name)
    for folder in dict.fromkeys(engine.folder.parent for engine in engines):
        _update_manifest(folder)
    return [engine.label for engine in engines]


def _new_plan(
    engine: PlacedEngine, choose: Callable[[Library], EngineChoice]
) -> tuple[EnginePlan, EngineFacts]:
    """Return the plan of an engine for the new choice, and its facts; its file may be damaged."""
    graph = engine.folder / f"{engine.graph}.onnx"
    if not graph.is_file():
        raise InvalidRequest(f"{engine.label}: {graph.name} must be beside the engine to build it, got none")
    changed = find_modification(engine.folder.parent)
    if changed is not None and graph.name in changed:
        raise InvalidRequest(f"{engine.label}: the graph must be as it was verified, got {changed}")
    facts = read_facts(EngineFacts, engine.folder / facts_file(engine.graph))
    choice = choose(Library(facts.library))
    profiles = tuple(
        Profile(name, {tensor: _triple(shapes) for tensor, shapes in ranges.items()})
        for name, ranges in facts.profiles.items()
    )
    requested = {name: value for name, value in asdict(choice.options).items() if value not in (None, False)}
    options = EngineOptions(**{**facts.options, **requested})
    return EnginePlan(choice.library, graph, None, choice.targets, profiles, options), facts


def _build(
    engine: PlacedEngine, plan: EnginePlan, facts: EngineFacts, staged: Path, report: Callable[[str], None]
) -> tuple[Path, Path]:
    """Build an engine into a staging folder; return the paths of the engine and of its facts."""
    folder = staged / engine.folder.parent.name
    folder.mkdir(exist_ok=True)
    path = engine_path(folder, facts, engine.graph)
    report(f"{engine.label}: building for {', '.join(plan.targets)}")
    plan = replace(plan, engine=path)
    built = build_engine(plan)
    check_built(built, engine.label, plan.library.full_name)
    check_tensors(built, facts.signature, engine.label)
    report(
        f"{engine.label}: built in {format_duration(built.build_s)}, {format_bytes(built.engine_bytes)},"
        f" {built.fused_attention} fused attention kernels"
    )
    described = folder / facts_file(engine.graph)
    write_facts(plan, built, facts.signature, described)
    return path, described


def _update_manifest(model: Path) -> None:
    """Write the hashes of a model's new engines into its manifest."""
    path = model / MANIFEST
    if not path.is_file():
        return
    manifest = json.loads(path.read_text(encoding="utf-8"))
    found = hashes(model)
    engines = {name: digest for name, digest in found.items() if _is_engine(name)}
    manifest["files"] = {**manifest["files"], **engines}
    for graph, entry in manifest.get("engines", {}).items():
        facts = json.loads((model / "1" / facts_file(graph)).read_text(encoding="utf-8"))
        entry |= {"version": facts["version"], "targets": facts["targets"]}
    written = path.with_name(f".{MANIFEST}.new")
    written.write_text(json.dumps(manifest, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    written.replace(path)


def _is_engine(name: str) -> bool:
    return name.endswith((_SUFFIX, *(library.suffix for library in Library)))


def _triple(shapes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    least, usual, most = (tuple(shape) for shape in shapes)
    return least, usual, most


def described_lines(engine: PlacedEngine) -> Iterator[str]:
    """Yield the lines that describe an engine to a person."""
    facts = engine.facts
    yield f"{engine.label}:"
    if facts is not None:
        built, path = facts.built, engine_path(engine.folder, facts, engine.graph)
        memory = {name: format_bytes(built[f"{name}_bytes"]) for name in ("weights", "activation", "peak")}
        yield f"  library       {Library(facts.library).full_name} {facts.version}"
        yield f"  targets       {', '.join(facts.targets)}"
        yield f"  file          {path}, {format_bytes(facts.engine_bytes)}"
        yield f"  graph         sha256 {facts.graph}"
        yield f"  memory        weights {memory['weights']}, activations at most {memory['activation']}"
        yield f"  kernels       {built['layers']} layers, {built['fused_attention']} with fused attention"
        yield f"  built         in {format_duration(built['build_s'])} with {memory['peak']} of memory"
        for name, ranges in facts.profiles.items():
            yield f"  profile       {name}"
            for tensor, shapes in ranges.items():
                yield f"    {tensor:<24} {' to '.join('x'.join(map(str, shape)) for shape in shapes)}"
    yield f"  this machine  {engine.problem or 'can run it'}"
