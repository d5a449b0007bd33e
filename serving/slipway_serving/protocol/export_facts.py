"""Facts about a model's export that its server tells: engine, precision, and parity with the checkpoint.

The manifest beside a model has the whole report, which a server does not send. The export therefore writes a
summary into the parameters of ``config.pbtxt``, which every client can read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ENGINE_PARAMETER = "export_engine"
"""Parameter of ``config.pbtxt`` with the engine, e.g. ``onnxruntime``."""
PRECISION_PARAMETER = "export_precision"
"""Parameter of ``config.pbtxt`` with the precision: ``fp32``, or ``GRAPH=PRECISION`` for each graph."""
PARITY_PARAMETER = "export_parity"
"""Parameter of ``config.pbtxt`` with the summary of the parity report, e.g. ``points=4 left_out=0 …``."""


@dataclass(frozen=True)
class ParitySummary:
    """Worst differences between a model's graphs and the checkpoint's own network in float32.

    Attributes:
        points: Number of verified points, such as "min" and "max", of all graphs and outputs.
        left_out: Number of points that were not verified.
        max_abs: Largest absolute difference.
        relative_l2: Largest ``|graph - network| / |network|``.
        cosine: Smallest cosine similarity.
        of_bound: Largest difference as a share of its allowed bound; 1 is the bound.
    """

    points: int
    left_out: int
    max_abs: float
    relative_l2: float
    cosine: float
    of_bound: float

    @property
    def text(self) -> str:
        """Value of :data:`PARITY_PARAMETER`."""
        return (
            f"points={self.points} left_out={self.left_out} max_abs={self.max_abs:.3g}"
            f" relative_l2={self.relative_l2:.3g} cosine={self.cosine:.9g} of_bound={self.of_bound:.3g}"
        )

    @classmethod
    def parse(cls, text: str) -> ParitySummary | None:
        """Return the summary that a text states; None if it is not of the form of :attr:`text`."""
        entries = dict(entry.partition("=")[::2] for entry in text.split())
        try:
            numbers = [float(entries[name]) for name in ("max_abs", "relative_l2", "cosine", "of_bound")]
            counts = [int(entries[name]) for name in ("points", "left_out")]
        except (KeyError, ValueError):
            return None
        return cls(*counts, *numbers) if all(map(math.isfinite, numbers)) else None


@dataclass(frozen=True)
class ExportFacts:
    """Facts about the export of one served model.

    Attributes:
        engine: Engine that runs the model's graphs; None if the model has none, or does not tell it.
        precision: Precision of the graphs; None likewise.
        parity: Summary of the parity report; None if nothing was verified.
    """

    engine: str | None = None
    precision: str | None = None
    parity: ParitySummary | None = None

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of ``config.pbtxt`` that state the facts."""
        texts = {
            ENGINE_PARAMETER: self.engine,
            PRECISION_PARAMETER: self.precision,
            PARITY_PARAMETER: None if self.parity is None else self.parity.text,
        }
        return {name: text for name, text in texts.items() if text}

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> ExportFacts:
        """Return the facts in the parameters of a model's configuration."""
        return cls(
            parameters.get(ENGINE_PARAMETER) or None,
            parameters.get(PRECISION_PARAMETER) or None,
            ParitySummary.parse(parameters.get(PARITY_PARAMETER, "")),
        )
