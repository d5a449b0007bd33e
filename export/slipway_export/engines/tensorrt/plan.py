"""Plan of an engine: the graph, the shapes, the GPUs and the builder's options, as one value.

:func:`component_profiles` derives the shapes of a component's inputs from its axes. The same plan is executed
by :mod:`~slipway_export.engines.tensorrt.builder` with either library, and printed as the command of NVIDIA's
own program by :attr:`EnginePlan.command`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from slipway_export.spec import Axis, Component
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.runtime.tensorrt.library import Library

Shape = tuple[int, ...]
MIB = 2**20


class Profiles(StrEnum):
    """Optimization profiles of an engine.

    ``flexible`` is one profile over the whole range of every axis, tuned for the traced sizes. ``latency``
    adds a profile for the traced sizes alone, which the server chooses for requests of exactly these sizes;
    the engine has the code of both and is about twice as large, apart from its weights.
    """

    FLEXIBLE = "flexible"
    LATENCY = "latency"


@dataclass(frozen=True)
class Profile:
    """Range of shapes that an engine is built for.

    Args:
        name: Name of the profile.
        shapes: Smallest, usual and largest shape of each input, by its name.
    """

    name: str
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]


@dataclass(frozen=True)
class EngineOptions:
    """Options of the builder; each has the builder's own default when None.

    Args:
        workspace_bytes: Largest scratch memory of a layer, in bytes.
        builder_level: Optimization level, 0 to 5; a higher one takes longer to build.
        timing_cache: File that the builder reads measured times from and adds new ones to.
        strip_weights: True to build an engine without weights, which takes them from the graph's file when it
            is loaded.
        weight_streaming: True to let the engine keep weights in host memory and stream them to the GPU.
    """

    workspace_bytes: int | None = None
    builder_level: int | None = None
    timing_cache: Path | None = None
    strip_weights: bool = False
    weight_streaming: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """Options that differ from the defaults, without the timing cache, which changes no result."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "timing_cache" and value not in (None, False)
        }


@dataclass(frozen=True)
class EnginePlan:
    """All that determines an engine.

    Args:
        library: Library that builds it.
        graph: Path of the ONNX file, with its external data beside it.
        engine: Path of the file to write; None only parses and builds.
        targets: GPUs to build for, such as ``sm89``; the GPU at hand when empty.
        profiles: Optimization profiles, at least one.
        options: Options of the builder.
    """

    library: Library
    graph: Path
    engine: Path | None
    targets: tuple[str, ...]
    profiles: tuple[Profile, ...]
    options: EngineOptions = field(default_factory=EngineOptions)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as data for :meth:`from_json`."""
        options = asdict(self.options)
        cache = self.options.timing_cache
        return {
            "library": self.library.value,
            "graph": str(self.graph),
            "engine": None if self.engine is None else str(self.engine),
            "targets": list(self.targets),
            "profiles": [[each.name, {k: list(v) for k, v in each.shapes.items()}] for each in self.profiles],
            "options": options | {"timing_cache": None if cache is None else str(cache)},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EnginePlan:
        """Return a plan from the data of :meth:`to_json`."""
        options = dict(content["options"])
        cache, engine = options.pop("timing_cache"), content["engine"]
        return cls(
            Library(content["library"]),
            Path(content["graph"]),
            None if engine is None else Path(engine),
            tuple(content["targets"]),
            tuple(
                Profile(name, {k: _three(v) for k, v in shapes.items()})
                for name, shapes in content["profiles"]
            ),
            EngineOptions(timing_cache=None if cache is None else Path(cache), **options),
        )

    @property
    def command(self) -> str:
        """The command of NVIDIA's program that builds the same engine: ``trtexec``, or ``tensorrt_rtx``."""
        rtx, options = self.library is Library.RTX, self.options
        engine = self.engine or Path(f"{self.graph.stem}{self.library.suffix}")
        words = ["tensorrt_rtx" if rtx else "trtexec", f"--onnx={self.graph}", f"--saveEngine={engine}"]
        if not rtx:
            words.append("--stronglyTyped")
        elif self.targets:
            words.append(f"--computeCapabilities={','.join(_dotted(target) for target in self.targets)}")
        several = len(self.profiles) > 1
        for index, profile in enumerate(self.profiles):
            words += [f"--profile={index}"] if several else []
            for place, flag in enumerate(("minShapes", "optShapes", "maxShapes")):
                words.append(f"--{flag}={_shapes_text(profile, place)}")
        words.append("--noTF32")
        if options.workspace_bytes is not None:
            words.append(f"--memPoolSize=workspace:{options.workspace_bytes // MIB}M")
        if options.builder_level is not None:
            words.append(f"--builderOptimizationLevel={options.builder_level}")
        if options.timing_cache is not None:
            words.append(f"--timingCacheFile={options.timing_cache}")
        words += ["--stripWeights"] if options.strip_weights else []
        words += ["--allowWeightStreaming"] if options.weight_streaming else []
        return shlex.join([*words, "--skipInference"])


def component_profiles(component: Component, kind: Profiles) -> tuple[Profile, ...]:
    """Return the profiles of a component, from the ranges of its axes."""
    points = component.points()
    shapes = {tensor.name: tensor.sizes for tensor in component.inputs}
    return profiles_at(shapes, points["min"], points["opt"], points["max"], kind)


def profiles_at(
    shapes: Mapping[str, Sequence[Any]], least: Point, usual: Point, most: Point, kind: Profiles
) -> tuple[Profile, ...]:
    """Return the profiles of inputs between two points.

    Args:
        shapes: Dimensions of each input: numbers, or sizes (:class:`~slipway_serving.protocol.
            axis_expressions.Size`) of the points' axes.
        least: Smallest size of every axis.
        usual: Size of every axis that the engine is tuned for.
        most: Largest size of every axis.
        kind: Profiles to make.
    """

    def between(name: str, low: Point, high: Point) -> Profile:
        ranges = {
            tensor: (_at(sizes, low), _at(sizes, usual), _at(sizes, high)) for tensor, sizes in shapes.items()
        }
        return Profile(name, ranges)

    flexible = between(Profiles.FLEXIBLE, least, most)
    if kind is Profiles.FLEXIBLE:
        return (flexible,)
    return (between("opt", usual, usual), flexible)


def points_of(axes: Sequence[Axis]) -> tuple[Point, Point, Point]:
    """Return the smallest, the usual and the largest size of every axis."""
    return (
        {axis.name: axis.min for axis in axes},
        {axis.name: axis.opt for axis in axes},
        {axis.name: axis.max for axis in axes},
    )


def _at(sizes: Sequence[Any], point: Point) -> Shape:
    return tuple(size if isinstance(size, int) else size.at(point) for size in sizes)


def _three(shapes: Sequence[Sequence[int]]) -> tuple[Shape, Shape, Shape]:
    least, usual, most = (tuple(shape) for shape in shapes)
    return least, usual, most


def _shapes_text(profile: Profile, place: int) -> str:
    return ",".join(f"{name}:{'x'.join(map(str, shapes[place]))}" for name, shapes in profile.shapes.items())


def _dotted(target: str) -> str:
    """Return a target such as ``sm89`` as a compute capability, ``8.9``."""
    digits = target.removeprefix("sm")
    return f"{digits[:-1]}.{digits[-1]}"
