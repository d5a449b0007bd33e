"""The model card of a checkpoint that was trained here: what it is of, how it was made, what it reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CARD_FILE = "README.md"


@dataclass(frozen=True)
class Card:
    """What people must know of a checkpoint.

    Args:
        title: of the card.
        is_of: what the networks are and what they were made for.
        data: what they were trained on.
        training: how.
        results: what each figure is, by its name among the recipe's measures; `{}` is its value.
        limits: what they do not do.
    """

    title: str
    is_of: str
    data: str
    training: str
    results: Mapping[str, str]
    limits: str

    def text(self, family: str, seed: int, figures: Mapping[str, float]) -> str:
        """Return the card as Markdown, with the front matter of the hub's cards."""
        rows = "\n".join(f"| {name} | {figures[figure]:.4g} |" for figure, name in self.results.items())
        return (
            "---\nlicense: apache-2.0\ntags: [slipway, synthetic-data]\n---\n"
            f"# {self.title}\n\n{self.is_of}\n\n"
            f"**Data.** {self.data}\n\n"
            f"**Training.** {self.training}\n"
            f"`slipway train weights {family} --seed {seed}` makes one anew by this recipe.\n\n"
            f"**Results**, on data that the training never drew:\n\n| | |\n|---|---|\n{rows}\n\n"
            f"**Limits.** {self.limits}\n\n"
            "**Licence.** Apache-2.0; data and weights were made by this project's programs.\n"
        )

    def write(self, folder: Path, family: str, seed: int, figures: Mapping[str, float]) -> None:
        """Write the card into a checkpoint's folder."""
        (folder / CARD_FILE).write_text(self.text(family, seed, figures), encoding="utf-8")
