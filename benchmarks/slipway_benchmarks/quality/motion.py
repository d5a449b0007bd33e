"""Quality of corrected trajectories: errors for unseen sensors and motions ÷ those of the raw signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipway_benchmarks.quality.benchmark import (
    Example,
    Export,
    Figures,
    MeaningOptions,
    Measure,
    Report,
    refuse_denoising,
)
from slipway_client import Client
from slipway_client.imu.windows import server_corrector
from slipway_export.spec import Precision
from slipway_recipes.airimu.measures import RECORDINGS, figures

_RAW = {f"{error}_share": 1.0 for error in ("ate", "aoe", "rte", "roe")}


class Motion:
    """Judgement of corrections; see :class:`~slipway_benchmarks.quality.benchmark.Judgement`."""

    precisions = (Precision.FP32, Precision.FP64)
    formats: Mapping[str, str] = {
        **dict.fromkeys(_RAW, ".3f"),
        "recordings_halved": ".0%",
        "acc_normalized_error": ".2f",
        "gyro_normalized_error": ".2f",
    }
    examples: Sequence[Example] = ()

    def __init__(self, options: MeaningOptions) -> None:
        self._export = Export(options.family, options.checkpoint)
        self._recordings = RECORDINGS if options.samples is None else options.samples

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return the only network."""
        return (self._export,)

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return the only way to correct recordings: as a whole."""
        return {"": self._measure}

    def references(self) -> Mapping[str, Figures]:
        """Return the errors of the raw signals."""
        return {"raw signals": _RAW}

    def _measure(self, client: Client, report: Report) -> Figures:
        report(f"correcting {self._recordings} recordings")
        found = figures(server_corrector(client), self._recordings)
        return {name: found[name] for name in self.formats}


def judgement(options: MeaningOptions) -> Motion:
    """Return the judgement of corrections.

    Raises:
        InvalidRequest: An option belongs to families that denoise.
    """
    refuse_denoising(options)
    return Motion(options)
