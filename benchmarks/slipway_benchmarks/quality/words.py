"""Quality of the ready wake word, spoken by voices that no training heard, in other speech and in noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

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
from slipway_client.listening import StreamDetector, split_recording
from slipway_client.sound import Recording
from slipway_export.spec import Precision
from slipway_recipes.speech.word import COOLDOWN_S, JUDGED, WORD, figures
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ
from slipway_training.clips import Samples


class Word:
    """Judgement of detections in streams; see :class:`~slipway_benchmarks.quality.benchmark.Judgement`."""

    precisions = (Precision.FP32, Precision.INT8)
    formats: Mapping[str, str] = {
        "false_rejects": ".1%",
        "false_accepts_an_hour": ".1f",
        "words": ".0f",
        "hours": ".2f",
    }
    examples: Sequence[Example] = ()

    def __init__(self, options: MeaningOptions) -> None:
        self._exports = (Export("wakeword", options.checkpoint), Export("wakeword_head", WORD))
        self._scale = 1.0 if options.samples is None else options.samples / JUDGED

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return the exports of backbone and head."""
        return self._exports

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return the only way to listen to streams."""
        return {"": self._measure}

    def references(self) -> Mapping[str, Figures]:
        """Return the required figures of a word."""
        return {"wanted, at most": {"false_rejects": 0.05, "false_accepts_an_hour": 0.5}}

    def _measure(self, client: Client, report: Report) -> Figures:
        report("listening")
        return figures(partial(_events, client), self._scale)


def judgement(options: MeaningOptions) -> Word:
    """Return the judgement of the ready word.

    Raises:
        InvalidRequest: An option belongs to families that denoise.
    """
    refuse_denoising(options)
    return Word(options)


def _events(client: Client, samples: Samples) -> int:
    """Return how often the served word is detected in a stream."""
    stream = StreamDetector(client, (WORD,), cooldown_ms=round(1000 * COOLDOWN_S))
    return sum(heard.event for heard in stream.detect(split_recording(Recording(samples, SAMPLE_RATE_HZ))))
