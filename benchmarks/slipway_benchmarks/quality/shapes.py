"""Videos of coloured shapes: requested, judged by a network beside the checkpoint, and compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_benchmarks.quality.benchmark import Example, Export, Figures, MeaningOptions, Measure, Report
from slipway_benchmarks.similarity import psnr_db
from slipway_client import Client, Frames, TextToVideoRequest
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.spec import Precision
from slipway_recipes.judges.shapes import JUDGE_FILE, Judge, load_judge
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest

PSNR = "PSNR, dB"
_REPORTS, _EXAMPLES = 10, 12

Videos = list[NDArray[np.uint8]]


@dataclass(frozen=True)
class Asked:
    """Requests to a checkpoint whose videos show coloured shapes, and their judgement.

    Args:
        requests: Requests, one for each video, each with its own seed; their output is frames.
        ways: Additional request fields by name of the way; used for the first precision only.
        options: Options of every export, by field of :class:`ExportOptions`.
        renders: Function that returns how often the judge is right on renders.
        judged: Function from videos to the share of videos in which each word is right, and the title of
            each.
    """

    requests: Sequence[TextToVideoRequest | ImageToVideoRequest]
    ways: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    renders: Callable[[], Figures]
    judged: Callable[[Videos], tuple[Figures, Sequence[str]]]


class Shapes:
    """Judgement of videos of shapes; see :class:`~slipway_benchmarks.quality.benchmark.Judgement`."""

    precisions = (Precision.FP32, Precision.INT8, Precision.INT4)
    formats: Mapping[str, str] = {
        **dict.fromkeys(("colour", "shape", "motion", "all"), ".0%"),
        PSNR: ".1f",
    }

    def __init__(self, options: MeaningOptions, asked: Asked) -> None:
        self._options, self._asked = options, asked
        self.examples: Sequence[Example] = ()
        self._reference: Videos | None = None

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return the export for the size of these videos; the first has a graph for the caches."""
        made = {**self._asked.options, "variant": "first-block-cache" if first else None}
        return (Export(self._options.family, self._options.checkpoint, made),)

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return the ways to request the videos: plain, and for the first export also the other ways."""
        ways: dict[str, Mapping[str, Any]] = {"": {}} | (dict(self._asked.ways) if first else {})
        return {way: partial(self._measure, fields) for way, fields in ways.items()}

    def references(self) -> Mapping[str, Figures]:
        """Return how often the judge is right on renders."""
        return {"the judge, on renders": self._asked.renders()}

    def _measure(self, fields: Mapping[str, Any], client: Client, report: Report) -> Figures:
        videos: Videos = []
        requests = self._asked.requests
        for place, request in enumerate(requests):
            if place % -(-len(requests) // _REPORTS) == 0:
                report(f"video {place + 1} of {len(requests)}")
            *_, result = client.generate(replace(request, **fields))
            if not isinstance(result, Frames):
                raise TypeError(f"a request for frames must end with them, got {type(result).__name__}")
            videos.append(result.array)
        shares, titles = self._asked.judged(videos)
        if self._reference is None:
            self._reference = videos
            self.examples = [Example(*pair) for pair in zip(titles, videos, strict=True)][:_EXAMPLES]
        off = median_db(videos, self._reference)
        return shares if off is None else {**shares, PSNR: off}


def judge_beside(options: MeaningOptions) -> Judge:
    """Return the judge beside a checkpoint.

    Raises:
        InvalidRequest: The checkpoint has no judge beside it.
    """
    with open_checkpoint(family_named(options.family), options.checkpoint) as checkpoint:
        if not (checkpoint.path / JUDGE_FILE).is_file():
            raise InvalidRequest(
                f"bench: checkpoint must have {JUDGE_FILE} beside it, got {options.checkpoint} without;"
                " try demo"
            )
        return load_judge(checkpoint.path)


def median_db(found: Videos, reference: Videos) -> float | None:
    """Return the median PSNR of the videos that differ, in decibels, or None if none differs."""
    each = [psnr_db(actual, expected) for actual, expected in zip(found, reference, strict=True)]
    differing = [decibels for decibels in each if decibels is not None]
    return statistics.median(differing) if differing else None
