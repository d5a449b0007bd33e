"""Engine benchmark: one component of a checkpoint as each engine serves it, in one run.

checkpoint -> a repository for each requested engine, exported and verified as `slipway export` does -> the
served models in this process, warmed up -> rounds of one call each, in turn, on the same inputs -> distance
of each from PyTorch eager -> memory of a separate process. The result records why an engine could not run;
the others continue.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks import similarity
from slipway_benchmarks.engines.memory import EngineMemory, EngineMemoryJob, measure
from slipway_benchmarks.gates import check_gates
from slipway_benchmarks.report import spread
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_benchmarks.timing import reason_of, timed
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.requested import TorchRequest
from slipway_export.families import family_named
from slipway_export.graph.onnx import example_inputs
from slipway_export.options import ExportOptions
from slipway_export.repository.placement import Placement
from slipway_export.run import components_of, run_export
from slipway_export.spec import Axis, Component, Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, Unrecoverable, raise_all
from slipway_serving.runtime.in_process import InProcessModels, read_config
from slipway_serving.system.gpu import compute_capabilities
from slipway_serving.system.temporary_folders import TemporaryFolder

Report = Callable[[str], None]
Array = NDArray[Any]
EAGER, INDUCTOR, TORCH_INT8 = "torch eager", "torch inductor", "torch int8 weights"
FP32, INT8 = "onnxruntime fp32", "onnxruntime int8"
DEFAULT_ENGINES = ("torch:inductor", "onnxruntime:fp32", "onnxruntime:int8", "torch:int8-weights")
LEAST_PSNR_DB = "least-psnr-db"
_TORCH: Mapping[str, Callable[[str], TorchRequest]] = {
    "torch:inductor": lambda component: TorchRequest(compile={component: "default"}),
    "torch:int8-weights": lambda component: TorchRequest(weights={component: "int8"}),
}
_GRAPHS = tuple(engine for engine in Engine if engine is not Engine.TORCH)


def title(engine: str) -> str:
    """Return the name of an engine in the table, such as ``tensorrt-rtx fp16`` for ``tensorrt-rtx:fp16``."""
    made, _, how = engine.partition(":")
    return f"{made} {how.replace('-', ' ')}"


def engine_options(component: str, engine: str) -> dict[str, Any]:
    """Return the options of an engine's export, which name the component.

    Export therefore refuses what the component does not support.

    Args:
        component: Name of the component.
        engine: Engine as the user types it, ``torch:inductor``, ``torch:int8-weights`` or
            ``ENGINE:PRECISION`` for an engine that has graphs.

    Raises:
        InvalidRequest: The text names no engine.
    """
    if engine in _TORCH:
        return {"engine": Engine.TORCH, "torch": _TORCH[engine](component)}
    made, _, precision = engine.partition(":")
    if made in _GRAPHS and precision in tuple(Precision):
        return {"engine": Engine(made), "precisions": {component: Precision(precision)}}
    raise InvalidRequest(
        f"bench: engine must be {', '.join(_TORCH)}, or one of {', '.join(_GRAPHS)} with a precision"
        f" ({', '.join(Precision)}), got {engine!r}; try tensorrt-rtx:fp16"
    )


def asked(component: str, engines: Sequence[str] = DEFAULT_ENGINES) -> dict[str, dict[str, Any]]:
    """Return the options of each export by name in the table; PyTorch eager comes first.

    Raises:
        InvalidRequest: A text names no engine.
    """
    made = {title(engine): engine_options(component, engine) for engine in engines}
    return {EAGER: {"engine": Engine.TORCH}, **made}


@dataclass(frozen=True)
class EnginesOptions:
    """Options of the engine benchmark.

    Attributes:
        family: Family of the checkpoint.
        component: Component that each engine serves; one with a single graph.
        checkpoint: Preset, folder or hub id of the checkpoint.
        sizes: Sizes of a call by axis; the axes' opt if none is given.
        rounds: Number of timed calls of each engine.
        threads: Number of threads of each engine.
        seed: Seed of the inputs.
        engines: Engines beside PyTorch eager, as :func:`engine_options` accepts them.
        place: Device of PyTorch and of ONNX Runtime, "cpu" or "gpu". TensorRT runs on the GPU.
        least_psnr_db: Least PSNR of an engine against PyTorch eager, in decibels; None for no gate.
    """

    family: str = "wan_t2v"
    component: str = "denoiser_high"
    checkpoint: str = "small"
    sizes: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 7
    threads: int = 2
    seed: int = 0
    engines: tuple[str, ...] = DEFAULT_ENGINES
    place: str = "cpu"
    least_psnr_db: float | None = None

    def __post_init__(self) -> None:
        counts = {"rounds": self.rounds, "threads": self.threads, **self.sizes}
        raise_all(
            "bench",
            [f"{name} must be at least 1, got {value}" for name, value in counts.items() if value < 1],
        )
        if self.place not in ("cpu", "gpu"):
            raise InvalidRequest(f"bench: place must be cpu or gpu, got {self.place}")
        asked(self.component, self.engines)

    def axes(self, checkpoint: Checkpoint) -> tuple[Axis, ...]:
        """Return ranges that end at the call's size, since export verifies at the largest, but still vary.

        Raises:
            InvalidRequest: A size belongs to no axis.
        """
        family = family_named(self.family)
        ranges = axes_of(family, checkpoint, {})
        known = {axis.name: self.sizes.get(axis.name, axis.opt) for axis in ranges}
        raise_all(
            "bench",
            [
                f"axis must be one of {', '.join(known)} for {family.name}, got {name}"
                for name in self.sizes
                if name not in known
            ],
        )
        return tuple(_up_to(axis, known[axis.name]) for axis in ranges)


def _up_to(axis: Axis, size: int) -> Axis:
    # A compiler builds another program for a size of 1, which takes as long to build and is not measured.
    low = min(max(axis.min, 2) if size > 2 else axis.min, size)
    # A range of one size would become a constant of the graph, which would then differ from the served one.
    return Axis(axis.name, low, size, size if low < size else max(size, min(axis.max, size + 1)))


@dataclass(frozen=True)
class Served:
    """Figures of one engine.

    Attributes:
        call_ms: Duration of one call (a step of a loop), by round, in milliseconds.
        ratio: Eager's time ÷ its own, by round.
        relative_l2: Relative L2 of its worst output against eager's; None for eager itself.
        psnr_db: PSNR of its worst output against eager's; None if the two are identical, and for eager.
        memory: Memory of a separate process; None if the measurement failed.
    """

    call_ms: Summary
    ratio: Summary
    relative_l2: float | None
    psnr_db: float | None
    memory: EngineMemory | None


@dataclass(frozen=True)
class EnginesResult:
    """Result of the engine benchmark.

    Attributes:
        options: Options of the benchmark.
        inputs: Shapes of a call's tensors, by name.
        served: Figures by engine; eager, the reference of all, comes first.
        not_run: Reasons why engines have no figures, by engine.
        notes: Notes about other figures that were not measured, and why.
    """

    options: EnginesOptions
    inputs: Mapping[str, tuple[int, ...]]
    served: Mapping[str, Served]
    not_run: Mapping[str, str]
    notes: tuple[str, ...] = ()


def run(options: EnginesOptions, report: Report) -> EnginesResult:
    """Measure a component.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.

    Raises:
        SlipwayError: The checkpoint, the component or a size is invalid, or PyTorch eager, the reference of
            all engines, could not run.
    """
    family, threads = family_named(options.family), torch.get_num_threads()
    try:
        with (
            open_checkpoint(family, options.checkpoint) as checkpoint,
            TemporaryFolder("slipway-measurement-") as folder,
        ):
            return _Run(options, checkpoint, folder, report).result()
    finally:
        torch.set_num_threads(threads)


class _Run:
    """State of one run: its engines, and why others do not take part."""

    def __init__(self, options: EnginesOptions, checkpoint: Checkpoint, folder: Path, report: Report) -> None:
        self.options, self.folder, self.report = options, folder, report
        self.family = family_named(options.family)
        self.model = f"{options.family}_{options.component}"
        self.asked = ExportOptions(
            str(checkpoint.path), folder, components=(options.component,), axes=options.axes(checkpoint)
        )
        self.component: Component = components_of(self.family, checkpoint, self.asked)[0]
        self.outputs = [tensor.name for tensor in self.component.outputs]
        self.inputs = example_inputs(self.component, self.component.points()["opt"], options.seed)
        self.models: dict[str, InProcessModels] = {}
        self.answers: dict[str, dict[str, Array]] = {}
        self.not_run: dict[str, str] = {}
        self.notes: list[str] = []

    def result(self) -> EnginesResult:
        for name, engine in asked(self.options.component, self.options.engines).items():
            self.admit(name, engine)
        times = self.time_calls()
        self.close()
        memory = {name: self.memory(name) for name in times}
        served = {
            name: Served(
                call_ms=summarize(call_ms),
                ratio=summarize(ratios(times[EAGER], call_ms)),
                relative_l2=None if name == EAGER else self.worst(name, similarity.relative_l2, max),
                psnr_db=None if name == EAGER else self.worst(name, similarity.psnr_db, min),
                memory=memory[name],
            )
            for name, call_ms in times.items()
        }
        shapes = {name: array.shape for name, array in self.inputs.items()}
        return EnginesResult(self.options, shapes, served, self.not_run, tuple(self.notes))

    def repository(self, name: str) -> Path:
        return self.folder / name.replace(" ", "-")

    def admit(self, name: str, engine: Mapping[str, Any]) -> None:
        """Export the component for an engine, load the served model and call it once, or record why not."""
        repository = self.repository(name)
        options = replace(self.asked, repository=repository, **engine)
        if self.options.place == "gpu" and not options.engine.is_tensorrt:
            options = replace(options, placements={self.options.component: Placement("gpu")})
        models = InProcessModels(repository, threads=self.options.threads, gpu=True)
        try:
            _check_gpu(options)
            run_export(self.family, options, lambda line: self.report(f"{name}: {line}"))
            self.report(f"{name}: loading and warming up")
            if name == EAGER:
                self.inputs = _as_sent(read_config(repository / self.model), self.inputs)
            self.answers[name] = models.call(self.model, self.inputs, self.outputs)
            if not all(np.isfinite(array).all() for array in self.answers[name].values()):
                raise Unrecoverable(f"{name}: its outputs must be finite, got NaN or infinity")  # noqa: TRY301
        except Exception as error:  # An error of one engine must not stop the others.
            models.close()
            if name == EAGER:
                raise
            self.not_run[name] = reason_of(error)
            self.report(f"{name}: not run: {self.not_run[name]}")
            return
        self.models[name] = models
        gc.collect()

    def time_calls(self) -> dict[str, list[float]]:
        """Return the milliseconds of each engine's calls; in each round every engine makes one call."""
        times: dict[str, list[float]] = {name: [] for name in self.models}
        for number in range(1, self.options.rounds + 1):
            self.report(f"round {number} of {self.options.rounds}")
            for name, models in self.models.items():
                call = partial(models.call, self.model, self.inputs, self.outputs)
                call_ms, self.answers[name] = timed(call)
                times[name].append(call_ms)
        return times

    def worst(
        self, name: str, figure: Callable[[Array, Array], float | None], worse: Callable[..., float]
    ) -> float | None:
        """Return a figure of the output that is furthest from eager's, or None if all are identical."""
        ours, eager = self.answers[name], self.answers[EAGER]
        found = [figure(ours[output], eager[output]) for output in self.outputs]
        told = [value for value in found if value is not None]
        return worse(told) if told else None

    def memory(self, name: str) -> EngineMemory | None:
        self.report(f"{name}: memory of a process of its own")
        inputs = self.folder / "inputs.npz"
        if not inputs.exists():
            np.savez(inputs, **self.inputs)
        repository, threads = str(self.repository(name)), self.options.threads
        try:
            return measure(
                EngineMemoryJob(repository, self.model, str(inputs), self.outputs, threads, gpu=True)
            )
        except SlipwayError as error:
            self.notes.append(f"{name}: memory not measured: {error}")
            return None

    def close(self) -> None:
        """Free every model, so that the measured processes have the machine's memory to themselves."""
        for models in self.models.values():
            models.close()
        self.models.clear()
        gc.collect()


def _check_gpu(options: ExportOptions) -> None:
    """Refuse an export for a GPU before any work on a machine without one."""
    if (options.engine.is_tensorrt or options.placements) and not compute_capabilities():
        raise InvalidRequest(
            f"engine {options.engine.value} must run on an NVIDIA GPU"
            f"{' with --place gpu' if options.placements else ''}, got a machine without one"
        )


def check_engines_gate(result: EnginesResult) -> None:
    """Refuse a result with an engine below the gate of its options.

    Raises:
        GateMissed: The PSNR of an engine is too low. The message names each such engine.
    """
    found = {
        name: {LEAST_PSNR_DB: served.psnr_db}
        for name, served in result.served.items()
        if served.psnr_db is not None
    }
    check_gates(found, {LEAST_PSNR_DB: result.options.least_psnr_db})


def _as_sent(config: Mapping[str, Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs in the shape that callers send: a served tensor of shape [batch] is [batch, 1]."""
    dims = {
        entry["name"]: [int(size) for size in entry["dims"]]
        for entry in config["input"]
        if "reshape" in entry
    }
    return {
        name: array.reshape(len(array), *dims[name]) if name in dims else array
        for name, array in inputs.items()
    }


def engines_json(result: EnginesResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    return {
        "benchmark": "engines",
        "machine": dict(machine),
        "settings": asdict(result.options),
        "inputs": {name: list(shape) for name, shape in result.inputs.items()},
        "engines": {name: asdict(served) for name, served in result.served.items()},
        "not_run": dict(result.not_run),
        "notes": list(result.notes),
    }


def print_engines(console: Console, result: EnginesResult) -> None:
    """Print the measured figures as a table, then what was not measured."""
    options = result.options
    console.print(
        f"{options.component} of {options.family}, checkpoint {options.checkpoint}: "
        + ", ".join(f"{name} {list(shape)}" for name, shape in result.inputs.items())
        + f"; {options.threads} threads, {options.rounds} rounds in turn",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(
        "", "step, ms", "eager ÷ it", "rel. L2 to eager", "PSNR", "holds, MiB", "peak, MiB", "before it",
        box=box.SIMPLE,
    )  # fmt: skip
    for name, served in result.served.items():
        table.add_row(
            name, f"{served.call_ms.median:.1f}", spread(served.ratio), *_close(served), *_mib(served)
        )
    console.print(table)
    for name, reason in result.not_run.items():
        console.print(f"{name}: not run: {reason}", highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(note, highlight=False, soft_wrap=True)


def _close(served: Served) -> tuple[str, str]:
    if served.relative_l2 is None:
        return ("reference", "")
    psnr = "identical" if served.psnr_db is None else f"{served.psnr_db:.1f} dB"
    return (f"{served.relative_l2:.1e}", psnr)


def _mib(served: Served) -> tuple[str, ...]:
    if (found := served.memory) is None:
        return ("not measured", "", "")
    return (f"{found.held_mib:.0f}", f"{found.peak_mib:.0f}", f"{found.before_mib:.0f}")
