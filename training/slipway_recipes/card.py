"""Model cards of the checkpoints that the recipes train: contents, training and measured results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CARD_FILE = "README.md"


@dataclass(frozen=True)
class Card:
    """Facts about a checkpoint that its model card states.

    Args:
        title: Title of the card.
        is_of: Description of the networks and their purpose.
        data: Description of the training data.
        training: Description of the training.
        results: Label of each figure in the card, by the figure's name among the recipe's measures.
        limits: Known limits of the networks.
    """

    title: str
    is_of: str
    data: str
    training: str
    results: Mapping[str, str]
    limits: str

    def text(self, family: str, seed: int, figures: Mapping[str, float]) -> str:
        """Return the card as Markdown, with the front matter that Hugging Face Hub cards have."""
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
