"""The benchmark of meaning: whether what a checkpoint makes means what it should, whatever was saved on it.

A checkpoint is exported in each precision and served by Triton; what its training never saw is asked of each,
plainly and, of the first, with each shortcut; or it is asked of a server that runs already. What the answers
are judged by is the family's own: whether a video shows what its prompt says, whether a world obeys its keys,
how often a word is missed, how far a trajectory is off.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from slipway_client import Client
from slipway_client.address import address_of
from slipway_export.families import family_named
from slipway_export.run import ExportOptions, run_export
from slipway_export.spec import Precision
from slipway_serving.errors import InvalidRequest, SlipwayError
from slipway_serving.server import Server, ServerConfig
from slipway_serving.temporary_folders import TemporaryFolder

# Where the judgement of a family is, imported when it is asked for.
JUDGED: Mapping[str, str] = {
    "airimu": "slipway_loadtests.bench.meaning_motion",
    "framepack_i2v": "slipway_loadtests.bench.meaning_pictures",
    "matrix_game": "slipway_loadtests.bench.meaning_worlds",
    "wakeword": "slipway_loadtests.bench.meaning_words",
    "wan_t2v": "slipway_loadtests.bench.meaning_videos",
}
SERVED = "served"

Report = Callable[[str], None]
Figures = Mapping[str, float]
"""What something reaches, by the name of the figure."""
Measure = Callable[[Client, Report], Figures]
"""Asks a server and judges its answers."""


@dataclass(frozen=True)
class MeaningOptions:
    """What to measure.

    Attributes:
        family: one of `JUDGED`.
        checkpoint: of the family.
        precisions: of the exports; the first is also asked with each shortcut. The family's own when empty.
        kept: precisions of components, by name, whatever that of the export is.
        samples: how many prompts, pictures, worlds, words or recordings are asked of each; the family's own
            number when None.
        steps: of denoising, of families that denoise.
        guidance_scale: of families that have prompts.
        url: a server that has the checkpoint already, as :func:`slipway_client.address.address_of` takes it,
            in the place of exports; None to export and serve it here.
    """

    family: str = "wan_t2v"
    checkpoint: str = "demo"
    precisions: tuple[Precision, ...] = ()
    samples: int | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    url: str | None = None
    kept: Mapping[str, Precision] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A video of the first subject.

    Attributes:
        title: what was asked, and what is seen in it where that differs.
        video: [frames, height, width, 3], RGB.
    """

    title: str
    video: NDArray[np.uint8]


@dataclass(frozen=True)
class Export:
    """What is exported to be judged.

    Attributes:
        family: its name.
        checkpoint: of it.
        options: beside checkpoint and precision, by field of :class:`ExportOptions`.
    """

    family: str
    checkpoint: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Judgement(Protocol):
    """How a family's answers are judged; a module of `JUDGED` makes it by ``judgement(options)``.

    Attributes:
        precisions: measured when none is asked for.
        formats: of each figure, by its name, as :func:`format` takes them.
        examples: of what the first subject made, once it was asked.
    """

    precisions: tuple[Precision, ...]
    formats: Mapping[str, str]
    examples: Sequence[Example]

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return what is served together, of the first precision or of another."""

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return how an export is asked, by name: plainly, named "", with its shortcuts, in its modes."""

    def references(self) -> Mapping[str, Figures]:
        """Return what the figures are held against, by name."""


@dataclass(frozen=True)
class MeaningResult:
    """What a run found.

    Attributes:
        subjects: figures of each, the first is what the others are compared with.
        references: what they are held against.
        formats: of the figures, by name.
        examples: of what the first subject made.
        not_run: why a subject has no figures, by subject.
        options: what was asked.
    """

    subjects: Mapping[str, Figures]
    references: Mapping[str, Figures]
    formats: Mapping[str, str]
    examples: Sequence[Example] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    options: MeaningOptions = field(default_factory=MeaningOptions)


def run(options: MeaningOptions, report: Report) -> MeaningResult:
    """Export, serve, ask and judge.

    Args:
        options: what to measure.
        report: called with a line before each long piece of work, and now and then in it.

    Raises:
        SlipwayError: nothing judges the family or its checkpoint, or its first precision cannot be exported.
    """
    if options.family not in JUDGED:
        raise InvalidRequest(f"bench: family must be one of {', '.join(JUDGED)}, got {options.family}")
    judgement: Judgement = importlib.import_module(JUDGED[options.family]).judgement(options)
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
            kept = (f"{name} {each.value}" for name, each in options.kept.items())
            subject = ", ".join((precision.value, *kept))
            try:
                with TemporaryFolder("slipway-measurement-") as folder:
                    repository = folder / "repository"
                    report(f"exporting {subject}")
                    for each in judgement.exports(first=first):
                        _export(each, repository, precision, options.kept)
                    config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)
                    with Server(config) as server, Client(server.grpc_url) as client:
                        _ask(client, subject, judgement.ways(first=first), report, subjects, not_run)
            except SlipwayError as error:
                if first:
                    raise
                not_run[subject] = str(error)
    return MeaningResult(subjects, references, judgement.formats, judgement.examples, not_run, options)


def _export(each: Export, repository: Path, precision: Precision, kept: Mapping[str, Precision]) -> None:
    options = ExportOptions(
        checkpoint=each.checkpoint,
        repository=repository,
        precision=precision,
        precisions=kept,
        **each.options,
    )
    run_export(family_named(each.family), options)


def _ask(
    client: Client,
    name: str,
    ways: Mapping[str, Measure],
    report: Report,
    subjects: dict[str, Figures],
    not_run: dict[str, str],
) -> None:
    """Ask in each way, into `subjects`; a shortcut that the server refuses goes into `not_run`."""
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
    """Refuse what only families that denoise have.

    Raises:
        InvalidRequest: an option is given that means nothing to the family.
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
    """Print what was measured as a table, then what was not."""
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
