"""Recipes that train demo checkpoints from synthetic data and a seed, and measure the result.

A recipe trains networks with :func:`slipway_recipes.fitting.fit` and writes a checkpoint in the family's
public layout with a model card. The project keeps the checkpoint in the family's folder in `slipway_demo`,
from which `--checkpoint demo` is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipway_recipes.card import Card
from slipway_serving.protocol.errors import raise_all

Report = Callable[[str], None]


@dataclass(frozen=True)
class Making:
    """Options of one run of a recipe.

    Args:
        output: Folder for the checkpoint; the recipe creates it if it is missing.
        state: Folder for the state from which an interrupted run resumes. It may be removed once the
            checkpoint is complete.
        seed: Seed of the data, the initial weights and the order of the data, 0 or more.
        threads: CPU threads of PyTorch, 1 or more.
        scale: Share of each network's training steps to run, above 0 to 1. A value below 1 is for trial runs.
        report: Callback that receives lines of progress.
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
        """Return the number of training steps to run, out of a network's full number."""
        return max(1, round(self.scale * steps))


@dataclass(frozen=True)
class Recipe:
    """Recipe of a family's demo checkpoint.

    Args:
        family: Name of the family; also the name of its folder in `slipway_demo`.
        summary: One line for people that names the networks and their training data.
        hours: Duration of the run on 2 CPU cores, in hours.
        make: Function that trains the networks and writes the checkpoint.
        measure: Function that measures the checkpoint in a folder on data that the training never saw, and
            returns the figures by name.
        card: Model card of the checkpoint.
    """

    family: str
    summary: str
    hours: float
    make: Callable[[Making], None]
    measure: Callable[[Path], Mapping[str, float]]
    card: Card

    def run(self, making: Making) -> Mapping[str, float]:
        """Train and write the checkpoint, write its model card, and return its measured figures."""
        self.make(making)
        making.report("measuring")
        figures = self.measure(making.output)
        self.card.write(making.output, self.family, making.seed, figures)
        return figures
