"""How a family's demo checkpoint is made: a program's data, a training from a seed, and its measures.

A recipe trains networks by :func:`slipway_training.fitting.fit` and writes a checkpoint in the family's
public layout with a model card. What is kept of it is the family's folder in `slipway_demo`, from which
`--checkpoint demo` is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipway_serving.errors import raise_all
from slipway_training.card import Card

Report = Callable[[str], None]


@dataclass(frozen=True)
class Making:
    """What the user asked of the making of a checkpoint.

    Args:
        output: folder for the checkpoint; created where missing.
        state: folder for what a making that was ended goes on from; it may be removed once the checkpoint is
            made.
        seed: of data, weights and their order, 0 or more.
        threads: of PyTorch on the CPU, 1 or more.
        scale: share of each network's steps that are made, above 0 to 1; below 1 it is a try.
        report: called with one line now and then.
    """

    output: Path
    state: Path
    seed: int = 0
    threads: int = 2
    scale: float = 1.0
    report: Report = field(default=lambda _: None, compare=False)

    def __post_init__(self) -> None:
        problems = []
        if self.seed < 0:
            problems.append(f"seed must be 0 or more, got {self.seed}")
        if self.threads < 1:
            problems.append(f"threads must be 1 or more, got {self.threads}")
        if not 0 < self.scale <= 1:
            problems.append(f"scale must be above 0 to 1, got {self.scale}")
        raise_all("weights", problems)

    def steps_of(self, steps: int) -> int:
        """Return how many of a network's steps are made."""
        return max(1, round(self.scale * steps))


@dataclass(frozen=True)
class Recipe:
    """How a family's demo checkpoint is made.

    Args:
        family: its name; also the folder in `slipway_demo`.
        summary: one line for people: what is trained on what.
        hours: that making it took on 2 CPU cores.
        make: trains, and writes the checkpoint.
        measure: what a checkpoint's folder reaches on data that its making never saw, by name.
        card: what people must know of the checkpoint.
    """

    family: str
    summary: str
    hours: float
    make: Callable[[Making], None]
    measure: Callable[[Path], Mapping[str, float]]
    card: Card

    def run(self, making: Making) -> Mapping[str, float]:
        """Make the checkpoint with its model card, and return what it reaches."""
        self.make(making)
        making.report("measuring")
        figures = self.measure(making.output)
        self.card.write(making.output, self.family, making.seed, figures)
        return figures
