"""Exports of small components whose graphs are one line of text, and which of them were made."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.options import ExportOptions
from slipway_export.progress import Progress
from slipway_export.repository.export_source import ExportSource
from slipway_export.repository.publish import placing, write_manifest
from slipway_export.repository.resume import FinishedGraphs
from slipway_export.repository.staging import staging
from slipway_export.spec import (
    Axis,
    Component,
    DType,
    Family,
    Loading,
    Plan,
    Precision,
    TensorSpec,
    Tolerance,
)
from slipway_export.verification.comparison import ParityRow

BOUND = Tolerance(max_abs=1.0, relative_l2=1.0, cosine=0.0)
FAMILY = Family("family", "nobody/family", "a family", (), (), (), {}, lambda *_: Plan((), ()))


def component(checkpoint: Checkpoint, name: str = "net", graph: str = "model", size: int = 2) -> Component:
    def load(_: Precision, _loading: Loading) -> torch.nn.Module:
        assert checkpoint.file(f"{name}/weights").exists()
        return torch.nn.Linear(size, size)

    tensor = partial(TensorSpec, dtype=DType.FLOAT32, shape=("batch", size))
    return Component(
        name=name,
        graph=graph,
        inputs=(tensor("x"),),
        outputs=(tensor("y"),),
        axes=(Axis("batch", 1, 2, 3),),
        load=load,
        tolerance={Precision.FP32: BOUND},
    )


def save_with_weights(path: Path, data: str) -> None:
    weight = onnx.numpy_helper.from_array(np.ones(1000, np.float32), "w")
    graph = onnx.helper.make_model(onnx.helper.make_graph([], "net", [], [], [weight]))
    onnx.save(graph, path, save_as_external_data=True, location=data)


def row(graph: str, point: str = "min", error: float = 0.0) -> ParityRow:
    return ParityRow(graph, "y", point, (2, 2), error, error, 1.0, BOUND, "here")


class Exports:
    """Exports of components into a repository, and which of them were made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoint"
        self.repository = folder / "models"
        for name in ("net", "other"):
            (self.folder / name).mkdir(parents=True)
            (self.folder / name / "weights").write_text("weights")
            (self.folder / name / "config.json").write_text("{}")
        self.lines: list[str] = []
        self.checkpoint = Checkpoint(self.folder, "here")

    def finished(
        self, components: list[Component], staged: Path, *, fresh: bool = False, **options: object
    ) -> FinishedGraphs:
        with self.checkpoint.recording() as planned:
            self.checkpoint.config("net/config.json")
        precision = Precision(str(options.pop("precision", Precision.FP32)))
        asked = ExportOptions("here", self.repository, precision=precision, fresh=fresh)
        source = ExportSource(FAMILY, self.checkpoint, (), Plan((), ()), planned, asked)
        progress = Progress(self.lines.append, [each.label for each in components])
        return FinishedGraphs(source, options, staged, progress)

    def run(
        self,
        components: list[Component],
        *,
        fresh: bool = False,
        error: float = 0.0,
        fails_at: str = "",
        **options: object,
    ) -> list[str]:
        """Export; return the labels of what was made."""
        made = []
        names = [f"family_{each.name}" for each in components]
        with staging(self.repository, names) as staged:
            finished = self.finished(components, staged, fresh=fresh, **options)
            finished.find(components, [])
            for each in components:
                path = staged / f"family_{each.name}" / "1" / f"{each.graph}.onnx"

                def make(each: Component = each, path: Path = path) -> list[ParityRow]:
                    if each.name == fails_at:
                        raise KeyboardInterrupt
                    made.append(each.label)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(each.label)
                    each.load(Precision.FP32, Loading.READ)
                    return [row(each.label, error=error)]

                rows = finished.graph(each, path, make)
                assert [found.graph for found in rows] == [each.label]
                if error:
                    raise RuntimeError("parity")
            for each, name in zip(components, names, strict=True):
                facts = {"parity": [row(each.label).__dict__ | {"bound": BOUND.__dict__}]}
                made_by = finished.facts([each])
                write_manifest(staged / name, {**facts, "not_verified": [], "made": made_by})
            with placing(staged, self.repository, names):
                pass
        return made

    def left(self) -> list[Path]:
        return sorted(self.repository.parent.glob(".models.slipway-staging-*"))
