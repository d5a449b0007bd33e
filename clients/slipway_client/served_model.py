"""What a served model says about itself: usual values, ranges, words and examples of its request's fields.

The export writes them into the parameters of the model's configuration
(:mod:`slipway_serving.protocol.requests`), so that the gateway and the load tests know what a checkpoint can
make without a request that fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipway_serving.protocol.requests import (
    EXAMPLE_PARAMETER,
    NOTE_PARAMETER,
    RANGE_PARAMETER,
    USUAL_PARAMETER,
    WORDS_PARAMETER,
)
from slipway_serving.protocol.rules import export_range_problems

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_UNITS = {"height": " px", "width": " px"}


@dataclass(frozen=True)
class ServedModel:
    """Model that a server has, as its configuration describes it.

    Attributes:
        name: Name of the model.
        parameters: Parameters of its configuration.
        usual: Usual values of fields.
        ranges: Smallest and largest values of fields; for a picture, its smallest and largest number.
        examples: Examples of fields that come with the checkpoint; pictures are base64 text.
    """

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def usual(self) -> dict[str, int | float]:
        """Usual values of fields; a value that is no number without a sign is left out."""
        return {
            name.removeprefix(USUAL_PARAMETER): int(value) if value.isdigit() else float(value)
            for name, value in self.parameters.items()
            if name.startswith(USUAL_PARAMETER) and _NUMBER.fullmatch(value)
        }

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest values of fields that the exported models support."""
        found = {}
        # Triton keeps no order of the parameters, and messages must not change from start to start.
        for name, value in sorted(self.parameters.items()):
            low, _, high = value.partition(":")
            if name.startswith(RANGE_PARAMETER) and low.isdigit() and high.isdigit():
                found[name.removeprefix(RANGE_PARAMETER)] = (int(low), int(high))
        return found

    @property
    def words(self) -> dict[str, list[str]]:
        """Words that the checkpoint knows, by the text field that they are for."""
        return {
            name.removeprefix(WORDS_PARAMETER): value.split()
            for name, value in self.parameters.items()
            if name.startswith(WORDS_PARAMETER)
        }

    @property
    def examples(self) -> dict[str, str]:
        """Examples of fields: texts, and pictures as base64 text of their files."""
        return {
            name.removeprefix(EXAMPLE_PARAMETER): value
            for name, value in sorted(self.parameters.items())
            if name.startswith(EXAMPLE_PARAMETER)
        }

    @property
    def note(self) -> str:
        """Sentences of the checkpoint's makers to those who use it; empty if there are none."""
        return self.parameters.get(NOTE_PARAMETER, "")

    def problems(self, request: Any) -> list[str]:
        """Return a sentence for each field of a request that is out of the model's range."""
        values = {name: getattr(request, name, None) for name in self.ranges}
        size = getattr(request, "size_px", None)
        if size is not None:
            values |= {
                side: length for side, length in zip(("height", "width"), size, strict=True) if side in values
            }
        return [
            problem
            for name, value in values.items()
            if isinstance(value, int)
            for problem in export_range_problems(name, value, self.ranges[name], _UNITS.get(name, ""))
        ]

    def picture_problems(self, name: str, public_name: str, *, is_given: bool) -> list[str]:
        """Return a sentence if a request has a picture that the model refuses, or lacks one that it needs.

        Args:
            name: Name of the request's field.
            public_name: Name by which callers know it.
            is_given: True if the request has a picture.
        """
        fewest, most = self.ranges.get(name, (0, 1))
        if fewest <= is_given <= most:
            return []
        if is_given:
            return [f"{public_name} must be left out for this model's checkpoint, which takes none"]
        return [f"{public_name} must be given for this model's checkpoint, got none; try a picture file"]
