"""Quality of videos from pictures, each with a prompt whose combination of words no training saw.

The judge looks at the beginning and the end of a video; the video shows a word if both do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from slipway_benchmarks.quality.benchmark import Figures, MeaningOptions
from slipway_benchmarks.quality.shapes import Asked, Shapes, Videos, judge_beside
from slipway_export.spec import Axis
from slipway_loadtests.pictures.captions import plain
from slipway_loadtests.pictures.footage import SIDE_PX
from slipway_recipes.framepack_i2v.measures import (
    MEASURED_SECTIONS,
    PICTURES,
    judge_figures,
    rendered,
    unseen_scenes,
    video_figures,
)
from slipway_recipes.framepack_i2v.transformer import GUIDANCE_SCALE
from slipway_serving.families.framepack_i2v.request import (
    FPS,
    FRAMES_PER_LATENT,
    PIXELS_PER_TOKEN,
    SECTION_FRAMES,
    ImageToVideoRequest,
)

# Without these settings, the model makes the last section first and uses no cache.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "forward": {"order": "forward"},
    "cache_threshold 0.1": {"cache_threshold": 0.1},
    "cache_threshold 0.2": {"cache_threshold": 0.2},
}


def judgement(options: MeaningOptions) -> Shapes:
    """Return the judgement of videos from pictures.

    Raises:
        InvalidRequest: The checkpoint has no judge beside it.
    """
    judge = judge_beside(options)
    scenes = unseen_scenes(PICTURES if options.samples is None else options.samples)
    tokens = SIDE_PX // PIXELS_PER_TOKEN

    def shown(videos: Videos) -> tuple[Figures, Sequence[str]]:
        return video_figures(judge, scenes, videos), [plain(scene.subject) for scene in scenes]

    asked = Asked(
        requests=[
            ImageToVideoRequest(
                image=picture,
                prompt=plain(scene.subject),
                seconds=MEASURED_SECTIONS * SECTION_FRAMES * FRAMES_PER_LATENT / FPS,
                height=SIDE_PX,
                width=SIDE_PX,
                steps=20 if options.steps is None else options.steps,
                guidance_scale=GUIDANCE_SCALE if options.guidance_scale is None else options.guidance_scale,
                output="frames",
                seed=place,
            )
            for place, (scene, (picture,)) in enumerate(zip(scenes, rendered(scenes, 1), strict=True))
        ],
        ways=WAYS,
        options={"axes": (Axis("token_height", 1, tokens, tokens), Axis("token_width", 1, tokens, tokens))},
        renders=partial(judge_figures, judge),
        judged=shown,
    )
    return Shapes(options, asked)
