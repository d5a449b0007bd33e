"""Reuse of finished graphs: an export need not make graphs that are identical to staged or placed ones.

A graph is identical if its identity is the same (`identity.py`), every checkpoint file that was read for it
has the recorded hash (`checkpoint/provenance.py`), and its own files have theirs. It is then taken, with its
parity, from the folder of an interrupted export or from the model in the repository. Only graphs that passed
are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway_export.engines.decisions import Decisions
from slipway_export.progress import Progress
from slipway_export.repository.export_record import STEPS, Record, left_out_of, placed_record, records
from slipway_export.repository.export_source import ExportSource
from slipway_export.repository.identity import identity
from slipway_export.repository.publish import MANIFEST, link_or_copy
from slipway_export.sizing.budget import LeftOut
from slipway_export.spec import Component, Stepped
from slipway_export.verification.comparison import ParityRow

Make = Callable[[], list[ParityRow]]


@dataclass
class FinishedGraphs:
    """The finished graphs of one export: those that it finds, and those that it makes.

    Args:
        source: Source of the export.
        settings: Options of the export that every graph depends on, by name.
        staged: Staging folder of the export.
        report: Progress that receives a line for each graph that is taken.
        decisions: Decisions about what serves each component.
    """

    source: ExportSource
    settings: Mapping[str, object]
    staged: Path
    report: Progress
    decisions: Decisions = field(default_factory=Decisions)
    _records: dict[str, Record] = field(default_factory=dict)
    _left_out: dict[str, tuple[LeftOut, ...]] = field(default_factory=dict)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Points at which the graphs taken or made so far were not verified."""
        return tuple(left for each in self._left_out.values() for left in each)

    def find(
        self, components: Sequence[Component], runs: Sequence[Stepped]
    ) -> tuple[list[Component], list[Stepped]]:
        """Take the finished graphs; return the components still to be made and the runs still to be verified.

        Args:
            components: Components of the export.
            runs: Stepped networks whose graphs are all among them.
        """
        sources = {
            component.label: self._take(self._name(component), component.label, self._description(component))
            for component in components
        }
        missing = self._missing(components)
        for component in components:
            if component not in missing:
                self.report.begin(component.label)
                self.report(f"{component.label}: unchanged, reused from {sources[component.label]}")
        return missing, [run for run in runs if not self._take_steps(run)]

    def _missing(self, components: Sequence[Component]) -> list[Component]:
        """Return the components to be made, including any whose weights lie in a file that is made anew."""
        missing = [each for each in components if self._name(each) not in self._records]
        anew = {f"{self._graph(component)}.data" for component in missing}
        dependent = [record for record in self._records.values() if anew & record.files.keys()]
        for record in dependent:
            del self._records[record.name], self._left_out[record.name]
            record.remove(self.staged, self._records.values())
        return self._missing(components) if dependent else missing

    def graph(
        self,
        component: Component,
        path: Path,
        make: Make,
        left_out: Sequence[LeftOut] = (),
        files: Callable[[], list[Path]] | None = None,
    ) -> list[ParityRow]:
        """Return the parity of a component's graph; make the graph if it was not taken.

        Args:
            component: Description of the component.
            path: Path of the graph in the staging folder.
            make: Function that writes and verifies the graph.
            left_out: Points at which the export does not verify its graphs.
            files: Function that returns the files that it is made of; those of the graph when None.
        """
        name = self._name(component)
        if name in self._records:
            return list(self._records[name].rows)
        self._left_out[name] = left_out_of(left_out, component.label, steps=False)
        return self._make_and_record(
            name, self._description(component), make, files or (lambda: graph_files(path))
        )

    def steps(self, run: Stepped, make: Make, left_out: Sequence[LeftOut] = ()) -> list[ParityRow]:
        """Return the parity of steps as one run; verify them if it was not taken.

        Args:
            run: Description of the stepped network.
            make: Function that verifies the steps.
            left_out: Points as for :meth:`graph`.
        """
        name = self._name(run.next) + STEPS
        if name in self._records:
            return list(self._records[name].rows)
        self._left_out[name] = left_out_of(left_out, run.next.label, steps=True)
        described = self._steps_description(run)
        if described is None:  # One of the graphs failed, so the export will fail too.
            return make()
        return self._make_and_record(name, described, make, list)

    def _description(self, component: Component) -> object:
        options = self.source.options
        return (
            component,
            component.precision(options.requested_precision(component)),
            self.decisions.of(component) or options.engine_of(component),
        )

    def _take_steps(self, run: Stepped) -> bool:
        described = self._steps_description(run)
        name = self._name(run.next) + STEPS
        return described is not None and self._take(name, run.next.label, described) is not None

    def _steps_description(self, run: Stepped) -> object | None:
        """Return what steps depend on, including their graphs; None if one of the graphs has no record."""
        graphs = [graph for graph in (run.first, run.next) if graph is not None]
        parts = [self._records[name] for graph in graphs if (name := self._name(graph)) in self._records]
        if len(parts) < len(graphs):
            return None
        return run, [(part.identity, dict(part.files)) for part in parts]

    def facts(self, components: Iterable[Component]) -> dict[str, Any]:
        """Return the manifest's entries about how the graphs were made."""
        names = {self._name(component) for component in components}
        names |= {name + STEPS for name in names}
        return {name: record.facts() for name, record in self._records.items() if name in names}

    def _name(self, component: Component) -> str:
        return f"{self._model(component)}/{component.graph}"

    def _graph(self, component: Component) -> str:
        """Return the path of a component's graph in the repository."""
        return f"{self._model(component)}/1/{component.graph}.onnx"

    def _model(self, component: Component) -> str:
        return f"{self.source.family.name}_{component.name}"

    def _make_and_record(
        self, name: str, described: object, make: Make, files: Callable[[], list[Path]]
    ) -> list[ParityRow]:
        """Make a piece of the export, and record it if its parity passed."""
        digests = self.source.digests
        with self.source.checkpoint.recording() as read_record:
            rows = make()
        if any(row.failures for row in rows):
            return rows
        read = self.source.planned.digests(digests) | read_record.digests(digests)
        files_digests = {path.relative_to(self.staged).as_posix(): digests.of(path) for path in files()}
        made_by = identity(described, self.settings)
        record = Record(name, made_by, read, files_digests, tuple(rows), self._left_out[name])
        # A piece that read no file of the checkpoint has other sources, whose changes no record shows.
        if read:
            record.write(self.staged)
            self._records[name] = record
        return rows

    def _take(self, name: str, label: str, described: object) -> str | None:
        """Take a valid piece into the staging folder; return where it was found, or None if there is none."""
        expected, fresh = identity(described, self.settings), self.source.options.fresh
        left = next((record for record in records(self.staged) if record.name == name), None)
        if left is not None and not fresh and self._is_valid(left, expected, self.staged):
            self._use(left)
            return "an interrupted export"
        if left is not None:
            left.remove(self.staged, self._records.values())
        placed = None if fresh else self._placed_record(name, label)
        if placed is None or not self._is_valid(placed, expected, self._placed_folder):
            return None
        for file, digest in placed.files.items():
            # Two graphs may share a file of weights, which is then already there.
            if self.source.digests.of(self.staged / file) != digest:
                link_or_copy(self._placed_folder / file, self.staged / file)
        self._use(placed)
        return "the repository"

    def _use(self, record: Record) -> None:
        self._records[record.name], self._left_out[record.name] = record, record.left_out

    @property
    def _placed_folder(self) -> Path:
        """Folder that the paths of placed files are relative to."""
        options = self.source.options
        if options.output is not None:
            return options.output.parent
        assert options.repository is not None  # ExportOptions requires it if there is no output.
        return options.repository

    def _placed_record(self, name: str, label: str) -> Record | None:
        output = self.source.options.output
        if output is not None:
            return placed_record(output.with_name(f"{output.name}.json"), name, label)
        model = name.partition("/")[0]
        return placed_record(self._placed_folder / model / MANIFEST, name, label, model)

    def _is_valid(self, record: Record, expected: str, folder: Path) -> bool:
        return (
            record.identity == expected
            and not any(row.failures for row in record.rows)
            and all(self.source.digests.of(folder / file) == digest for file, digest in record.files.items())
            and self.source.checkpoint.matches(record.read, self.source.digests)
        )


def graph_files(path: Path) -> list[Path]:
    """Return the files that a graph is made of: its own, and those that contain its weights."""
    others = [other for other in path.parent.iterdir() if other.suffix != path.suffix]
    if not others:
        return [path]
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    named = {
        entry.value
        for weight in graph.initializer
        for entry in weight.external_data
        if entry.key == "location"
    }
    return [path, *sorted(path.parent / name for name in named)]
