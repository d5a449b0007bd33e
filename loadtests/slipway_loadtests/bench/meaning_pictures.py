"""What becomes of pictures: a judge that lies beside the checkpoint tells colour, shape and motion.

Each picture and prompt is of a combination of words that no training saw. A video is judged at its begin and
at its end, and shows a word where both do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_client import Client, Frames
from slipway_export.spec import Axis, Precision
from slipway_loadtests.bench.meaning import (
    Example,
    Export,
    Figures,
    MeaningOptions,
    Measure,
    Report,
)
from slipway_loadtests.bench.meaning_videos import PSNR, judge_beside, median_db
from slipway_serving.framepack_i2v.request import (
    FPS,
    FRAMES_PER_LATENT,
    PIXELS_PER_TOKEN,
    SECTION_FRAMES,
    ImageToVideoRequest,
)
from slipway_training.framepack_i2v.measures import (
    MEASURED_SECTIONS,
    PICTURES,
    judge_figures,
    rendered,
    unseen_scenes,
    video_figures,
)
from slipway_training.framepack_i2v.transformer import GUIDANCE_SCALE
from slipway_training.shapes.captions import plain
from slipway_training.shapes.clips import SIDE_PX
from slipway_training.shapes.judge import Judge

# What the first precision is asked too: the other order, and its shortcuts.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "forward": {"order": "forward"},
    "cache_threshold 0.1": {"cache_threshold": 0.1},
    "cache_threshold 0.2": {"cache_threshold": 0.2},
}
_REPORTED_EVERY, _EXAMPLES = 4, 6

Videos = list[NDArray[np.uint8]]


class Pictures:
    """Judges what becomes of pictures; see :class:`~slipway_loadtests.bench.meaning.Judgement`."""

    precisions = (Precision.FP32, Precision.INT8, Precision.INT4)
    formats: Mapping[str, str] = {
        **dict.fromkeys(("colour", "shape", "motion", "all"), ".0%"),
        PSNR: ".1f",
    }

    def __init__(self, options: MeaningOptions, judge: Judge) -> None:
        self.examples: Sequence[Example] = ()
        self._options, self._judge = options, judge
        self._scenes = unseen_scenes(PICTURES if options.samples is None else options.samples)
        self._request = ImageToVideoRequest(
            image=rendered(self._scenes[:1], 1)[0, 0],
            prompt=plain(self._scenes[0].subject),
            seconds=MEASURED_SECTIONS * SECTION_FRAMES * FRAMES_PER_LATENT / FPS,
            height=SIDE_PX,
            width=SIDE_PX,
            steps=20 if options.steps is None else options.steps,
            guidance_scale=GUIDANCE_SCALE if options.guidance_scale is None else options.guidance_scale,
            output="frames",
        )
        self._reference: Videos | None = None

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return the checkpoint at the size of these videos, and the variant for a cache threshold."""
        tokens = SIDE_PX // PIXELS_PER_TOKEN
        axes = (Axis("token_height", 1, tokens, tokens), Axis("token_width", 1, tokens, tokens))
        variant = "first-block-cache" if first else None
        return (Export(self._options.family, self._options.checkpoint, {"variant": variant, "axes": axes}),)

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return how the videos are asked for; plainly the last section is made first."""
        ways: dict[str, Mapping[str, Any]] = {"": {}} | (dict(WAYS) if first else {})
        return {way: partial(self._measure, replace(self._request, **fields)) for way, fields in ways.items()}

    def references(self) -> Mapping[str, Figures]:
        """Return how often the judge is right on renders."""
        return {"the judge, on renders": judge_figures(self._judge)}

    def _measure(self, request: ImageToVideoRequest, client: Client, report: Report) -> Figures:
        videos: Videos = []
        for place, scene in enumerate(self._scenes):
            if place % _REPORTED_EVERY == 0:
                report(f"video {place + 1} of {len(self._scenes)}")
            picture = rendered([scene], 1)[0, 0]
            *_, result = client.generate(
                replace(request, image=picture, prompt=plain(scene.subject), seed=place)
            )
            if not isinstance(result, Frames):
                raise TypeError(f"a request for frames must end with them, got {type(result).__name__}")
            videos.append(result.array)
        shares = video_figures(self._judge, self._scenes, videos)
        if self._reference is None:
            self._reference = videos
            self.examples = [
                Example(plain(scene.subject), video)
                for scene, video in zip(self._scenes, videos, strict=True)
            ][:_EXAMPLES]
        off = median_db(videos, self._reference)
        return shares if off is None else shares | {PSNR: off}


def judgement(options: MeaningOptions) -> Pictures:
    """Return the judgement of what becomes of pictures.

    Raises:
        InvalidRequest: no judge lies beside the checkpoint.
    """
    return Pictures(options, judge_beside(options))
