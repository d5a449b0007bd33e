"""Quality of videos from prompts whose combinations of words no training saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

from slipway_benchmarks.pipelines.video import VideoOptions
from slipway_benchmarks.pipelines.video_subjects import SHORTCUTS
from slipway_benchmarks.quality.benchmark import Figures, MeaningOptions
from slipway_benchmarks.quality.shapes import Asked, Shapes, Videos, judge_beside
from slipway_client import TextToVideoRequest
from slipway_loadtests.pictures.captions import plain
from slipway_loadtests.pictures.footage import FRAMES, SIDE_PX
from slipway_recipes.judges.shapes import Verdict, judged, right
from slipway_recipes.wan_t2v.measures import PROMPTS, judge_figures, unseen_subjects


def judgement(options: MeaningOptions) -> Shapes:
    """Return the judgement of a checkpoint's videos.

    Raises:
        InvalidRequest: The checkpoint has no judge beside it.
    """
    judge = judge_beside(options)
    subjects = unseen_subjects(PROMPTS if options.samples is None else options.samples)
    request = TextToVideoRequest(
        prompt="",
        frames=FRAMES,
        height=SIDE_PX,
        width=SIDE_PX,
        steps=20 if options.steps is None else options.steps,
        guidance_scale=4.0 if options.guidance_scale is None else options.guidance_scale,
        output="frames",
    )

    def shown(videos: Videos) -> tuple[Figures, Sequence[str]]:
        verdicts = [judged(judge, video) for video in videos]
        titles = [title(plain(subject), seen) for subject, seen in zip(subjects, verdicts, strict=True)]
        return right(subjects, verdicts), titles

    asked = Asked(
        requests=[
            replace(request, prompt=plain(subject), seed=place) for place, subject in enumerate(subjects)
        ],
        ways=SHORTCUTS,
        options={"axes": VideoOptions(request=request).axes},
        renders=partial(judge_figures, judge),
        judged=shown,
    )
    return Shapes(options, asked)


def title(prompt: str, verdict: Verdict) -> str:
    """Return a video's prompt, and what the judge sees if that differs."""
    seen = " ".join(asdict(verdict).values())
    return prompt if seen in prompt else f"{prompt} (seen: {seen})"
