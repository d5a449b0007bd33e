"""Quality benchmark: whether the results of a checkpoint mean what they should, despite every optimization.

A checkpoint is exported in each precision and served by Triton. Each export gets requests that the training
never saw, first plain and, in the first precision, also with each shortcut; or a running server gets them.
Graphs that are made for TensorRT are served by ONNX Runtime, and get plain requests only.
Each family has its own judgement: whether a video shows its prompt, whether a world obeys its keys, how often
a word is missed, how large the error of a trajectory is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.quality.graphs import place_graphs
from slipway_client import Client
from slipway_client.address import address_of
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.triton.server import Server, ServerConfig

GROUP = "slipway.judgements"
"""Entry point group of the modules with which other distributions judge the answers of their families."""
# Module with the judgement of each family, imported on demand.
JUDGED: Mapping[str, str] = {
    "airimu": "slipway_benchmarks.quality.motion",
    "framepack_i2v": "slipway_benchmarks.quality.pictures",
    "matrix_game": "slipway_benchmarks.quality.worlds",
    "wakeword": "slipway_benchmarks.quality.words",
    "wan_t2v": "slipway_benchmarks.quality.videos",
}
SERVED = "served"
GRAPHS = (Engine.ONNXRUNTIME, Engine.TENSORRT)
"""Engines whose graphs ONNX Runtime can serve; those for TensorRT-RTX are the same as for TensorRT."""

Report = Callable[[str], None]
Figures = Mapping[str, float]
"""Values by name of the figure."""
Measure = Callable[[Client, Report], Figures]
"""Function that sends requests to a server and judges its answers."""


@dataclass(frozen=True)
class MeaningOptions:
    """Options of the quality benchmark.

    Attributes:
        family: Family of the checkpoint, one of `JUDGED` or of the entry points of `GROUP`.
        checkpoint: Preset, folder or hub id of the checkpoint.
        precisions: Precisions of the exports; the first is also tested with each shortcut. Empty uses the
            family's own precisions.
        kept: Precisions of components by name, which override that of the export.
        samples: Number of prompts, pictures, worlds, words or recordings for each subject; None uses the
            family's own number.
        steps: Number of denoising steps, for families that denoise.
        guidance_scale: Guidance scale, for families that have prompts.
        url: Address of a server that already serves the checkpoint, as
            :func:`slipway_client.address.address_of` accepts it; None to export and serve it here.
        graphs: Engine whose graphs ONNX Runtime serves in place of its own.
    """

    family: str = "wan_t2v"
    checkpoint: str = "demo"
    precisions: tuple[Precision, ...] = ()
    samples: int | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    url: str | None = None
    kept: Mapping[str, Precision] = field(default_factory=dict)
    graphs: Engine = Engine.ONNXRUNTIME

    def __post_init__(self) -> None:
        if self.graphs not in GRAPHS:
            raise InvalidRequest(f"bench: graphs must be one of {', '.join(GRAPHS)}, got {self.graphs.value}")
        if self.graphs is not Engine.ONNXRUNTIME and self.url is not None:
            raise InvalidRequest(
                f"bench: graphs must be left out with --url, where the server's own are measured, got"
                f" {self.graphs.value}"
            )

    def subject(self, precision: Precision) -> str:
        """Return the name of the subject of an export in a precision."""
        made = "" if self.graphs is Engine.ONNXRUNTIME else f" for {self.graphs.value}"
        kept = (f"{name} {each.value}" for name, each in self.kept.items())
        return ", ".join((f"{precision.value}{made}", *kept))


@dataclass(frozen=True)
class Example:
    """Video of the first subject.

    Attributes:
        title: Prompt or keys of the request, and what the video shows if that differs.
        video: Frames, [frames, height, width, 3], uint8, RGB.
    """

    title: str
    video: NDArray[np.uint8]


@dataclass(frozen=True)
class Export:
    """One export to be judged.

    Attributes:
        family: Name of the family.
        checkpoint: Checkpoint of the family.
        options: Options beside checkpoint and precision, by field of :class:`ExportOptions`.
    """

    family: str
    checkpoint: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Judgement(Protocol):
    """Judgement of a family's answers, which the family's module creates with ``judgement(options)``.

    Attributes:
        precisions: Precisions to measure if the user names none.
        formats: Formats of the figures by name, as :func:`format` accepts them.
        examples: Videos of the first subject, once it was measured.
    """

    precisions: tuple[Precision, ...]
    formats: Mapping[str, str]
    examples: Sequence[Example]

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return the exports that are served together, for the first precision or for another."""

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return the ways to test an export, by name: plain (named ""), with its shortcuts, in its modes."""

    def references(self) -> Mapping[str, Figures]:
        """Return the reference figures, by name."""


@dataclass(frozen=True)
class MeaningResult:
    """Result of the quality benchmark.

    Attributes:
        subjects: Figures of each subject; the first is the reference of the others.
        references: Reference figures, by name.
        formats: Formats of the figures, by name.
        examples: Videos of the first subject.
        not_run: Reasons why subjects have no figures, by subject.
        options: Options of the benchmark.
    """

    subjects: Mapping[str, Figures]
    references: Mapping[str, Figures]
    formats: Mapping[str, str]
    examples: Sequence[Example] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    options: MeaningOptions = field(default_factory=MeaningOptions)


def run(options: MeaningOptions, report: Report) -> MeaningResult:
    """Export, serve, send requests and judge the answers.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step, and sometimes during it.

    Raises:
        SlipwayError: No judgement exists for the family or its checkpoint, or its first precision cannot be
            exported.
    """
    judgement: Judgement = importlib.import_module(_judge_of(options.family)).judgement(options)
    report("judging what the figures are held against")
    references = judgement.references()
    subjects: dict[str, Figures] = {}
    not_run: dict[str, str] = {}
    if options.url is not None:
        with Client(*address_of(options.url)) as client:
            _ask(client, SERVED, judgement.ways(first=True), report, subjects, not_run)
    else:
        for precision in options.precisions or judgement.precisions:
            first = not subjects
            subject = options.subject(precision)
            # A variant of the checkpoint has its shortcuts in graphs that an authored model runs.
            shortcuts = first and options.graphs is Engine.ONNXRUNTIME
            try:
                with TemporaryFolder("slipway-measurement-") as folder:
                    repository = folder / "repository"
                    report(f"exporting {subject}")
                    for each in judgement.exports(first=shortcuts):
                        _export(each, repository, precision, options, report)
                    config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)
                    with Server(config) as server, Client(server.grpc_url) as client:
                        _ask(client, subject, judgement.ways(first=shortcuts), report, subjects, not_run)
            except SlipwayError as error:
                if first:
                    raise
                not_run[subject] = str(error)
    return MeaningResult(subjects, references, judgement.formats, judgement.examples, not_run, options)


def _judge_of(family: str) -> str:
    """Return the module that judges the answers of a family.

    Raises:
        InvalidRequest: No distribution has such a module.
    """
    judged = {**{entry.name: entry.value for entry in entry_points(group=GROUP)}, **JUDGED}
    if family not in judged:
        raise InvalidRequest(
            f"bench: family must be one of {', '.join(judged)}, got {family}; another family's package must"
            f" provide a module with judgement(options) as its entry point {family} in the group {GROUP}"
        )
    return judged[family]


def _export(
    each: Export, repository: Path, precision: Precision, options: MeaningOptions, report: Report
) -> None:
    family = family_named(each.family)
    asked = ExportOptions(
        checkpoint=each.checkpoint,
        repository=repository,
        precision=precision,
        precisions=options.kept,
        **each.options,
    )
    if options.graphs is Engine.ONNXRUNTIME:
        run_export(family, asked)
        return
    run_export(family, replace(asked, precision=Precision.FP32, precisions={}))
    replaced = place_graphs(family, asked, options.graphs)
    report(f"{', '.join(replaced)} of {each.family}: graphs for {options.graphs.value}, the others fp32")


def _ask(
    client: Client,
    name: str,
    ways: Mapping[str, Measure],
    report: Report,
    subjects: dict[str, Figures],
    not_run: dict[str, str],
) -> None:
    """Measure each way, into `subjects`; a shortcut that the server refuses goes into `not_run`."""
    for way, measure in ways.items():
        subject = f"{name}, {way}" if way else name
        try:
            subjects[subject] = measure(client, partial(_report_of, report, subject))
        except InvalidRequest as error:
            if not way:
                raise
            not_run[subject] = str(error)


def _report_of(report: Report, subject: str, line: str) -> None:
    report(f"{subject}: {line}")


def refuse_denoising(options: MeaningOptions) -> None:
    """Refuse options that only families that denoise have.

    Raises:
        InvalidRequest: An option has no meaning for the family.
    """
    for name in ("steps", "guidance_scale"):
        if (value := getattr(options, name)) is not None:
            flag = name.replace("_", "-")
            raise InvalidRequest(f"bench: {flag} must be left out for {options.family}, got {value}")


def meaning_json(result: MeaningResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    return {
        "benchmark": "quality",
        "machine": dict(machine),
        "settings": asdict(result.options),
        "references": {name: dict(figures) for name, figures in result.references.items()},
        "subjects": {name: dict(figures) for name, figures in result.subjects.items()},
        "not_run": dict(result.not_run),
    }


def print_meaning(console: Console, result: MeaningResult) -> None:
    """Print the measured figures as a table, then what was not measured."""
    table = Table(result.options.family, *result.formats, box=box.SIMPLE)
    for name, figures in (*result.subjects.items(), *result.references.items()):
        cells = (
            format(figures[figure], form) if figure in figures else ""
            for figure, form in result.formats.items()
        )
        table.add_row(name, *cells)
    console.print(table)
    for name, reason in result.not_run.items():
        console.print(f"{name}: not run: {reason}", highlight=False, soft_wrap=True)
