"""What videos show: a judge that lies beside the checkpoint tells colour, shape and motion.

The judge is judged on renders beforehand; prompts are combinations of words that no training saw.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_client import Client, Frames, TextToVideoRequest
from slipway_export.checkpoint import open_checkpoint
from slipway_export.families import family_named
from slipway_export.spec import Precision
from slipway_loadtests.bench.meaning import (
    Example,
    Export,
    Figures,
    MeaningOptions,
    Measure,
    Report,
)
from slipway_loadtests.bench.quality import psnr_db
from slipway_loadtests.bench.video import SHORTCUTS, VideoOptions
from slipway_serving.errors import InvalidRequest
from slipway_training.shapes.captions import plain
from slipway_training.shapes.clips import FRAMES, SIDE_PX
from slipway_training.shapes.judge import JUDGE_FILE, Judge, Verdict, judged, load_judge, right
from slipway_training.wan_t2v.measures import PROMPTS, judge_figures, unseen_subjects

PSNR = "PSNR, dB"
_REPORTED_EVERY, _EXAMPLES = 10, 12

Videos = list[NDArray[np.uint8]]


class Shapes:
    """Judges videos of coloured shapes; see :class:`~slipway_loadtests.bench.meaning.Judgement`."""

    precisions = (Precision.FP32, Precision.INT8, Precision.INT4)
    formats: Mapping[str, str] = {
        **dict.fromkeys(("colour", "shape", "motion", "all"), ".0%"),
        PSNR: ".1f",
    }

    def __init__(self, options: MeaningOptions, judge: Judge) -> None:
        self._options = options
        self.examples: Sequence[Example] = ()
        self._judge = judge
        self._asked = unseen_subjects(PROMPTS if options.samples is None else options.samples)
        self._request = TextToVideoRequest(
            prompt="",
            frames=FRAMES,
            height=SIDE_PX,
            width=SIDE_PX,
            steps=20 if options.steps is None else options.steps,
            guidance_scale=4.0 if options.guidance_scale is None else options.guidance_scale,
            output="frames",
        )
        self._reference: Videos | None = None

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return the checkpoint with the ranges of these videos, and the variant for a cache threshold."""
        variant = "first-block-cache" if first else None
        axes = VideoOptions(request=self._request).axes
        return (Export(self._options.family, self._options.checkpoint, {"variant": variant, "axes": axes}),)

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return how the videos are asked for."""
        ways: dict[str, dict[str, Any]] = {"": {}} | (SHORTCUTS if first else {})
        return {way: partial(self._measure, replace(self._request, **fields)) for way, fields in ways.items()}

    def references(self) -> Mapping[str, Figures]:
        """Return how often the judge is right on renders."""
        return {"the judge, on renders": judge_figures(self._judge)}

    def _measure(self, request: TextToVideoRequest, client: Client, report: Report) -> Figures:
        videos: Videos = []
        for place, subject in enumerate(self._asked):
            if place % _REPORTED_EVERY == 0:
                report(f"video {place + 1} of {len(self._asked)}")
            *_, result = client.generate(replace(request, prompt=plain(subject), seed=place))
            if not isinstance(result, Frames):
                raise TypeError(f"a request for frames must end with them, got {type(result).__name__}")
            videos.append(result.array)
        verdicts = [judged(self._judge, video) for video in videos]
        shares = right(self._asked, verdicts)
        if self._reference is None:
            self._reference = videos
            self.examples = [
                Example(title(plain(subject), verdict), video)
                for subject, verdict, video in zip(self._asked, verdicts, videos, strict=True)
            ][:_EXAMPLES]
        off = median_db(videos, self._reference)
        return shares if off is None else shares | {PSNR: off}


def judgement(options: MeaningOptions) -> Shapes:
    """Return the judgement of a checkpoint's videos.

    Raises:
        InvalidRequest: no judge lies beside the checkpoint.
    """
    return Shapes(options, judge_beside(options))


def judge_beside(options: MeaningOptions) -> Judge:
    """Return the judge that lies beside a checkpoint.

    Raises:
        InvalidRequest: there is none.
    """
    with open_checkpoint(family_named(options.family), options.checkpoint) as checkpoint:
        if not (checkpoint.path / JUDGE_FILE).is_file():
            raise InvalidRequest(
                f"bench: checkpoint must have {JUDGE_FILE} beside it, got {options.checkpoint} without;"
                " try demo"
            )
        return load_judge(checkpoint.path)


def title(prompt: str, verdict: Verdict) -> str:
    """Return a video's prompt, and what is seen in it where that differs."""
    seen = " ".join(asdict(verdict).values())
    return prompt if seen in prompt else f"{prompt} (seen: {seen})"


def median_db(found: Videos, reference: Videos) -> float | None:
    """Return the median over the videos that differ; None where none does."""
    each = [psnr_db(actual, expected) for actual, expected in zip(found, reference, strict=True)]
    differing = [decibels for decibels in each if decibels is not None]
    return statistics.median(differing) if differing else None
