"""Fields that requests to diffusion models share, each with its rule.

The request class of a family picks the fields that it needs::

    steps: Steps = 40
    guidance_scale: GuidanceScale = 4.0
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from slipway_serving.protocol.fields import Rule
from slipway_serving.protocol.rules import duration, fraction, non_negative, text, within

MAX_PROMPT_CHARACTERS = 16_384
MAX_STEPS = 100
MAX_SEED = 2**32 - 1
MAX_GUIDANCE_SCALE = 1000
# UniPC and flow-match Euler return finite latents in 1 to 100 steps for all shifts in this range. Outside of
# it they do not: UniPC fails for 1e-30 and for 1e4, Euler for 1e-10.
FLOW_SHIFTS = (0.001, 1000)


def prompt_rule(help_text: str) -> Rule:
    """Return the rule of a prompt; it limits characters, since the served tokenizer counts the tokens."""
    return text(help_text, MAX_PROMPT_CHARACTERS)


def cache_problems(threshold: float | None, has_cache: bool) -> list[str]:
    """Return the problem of a `cache_threshold` for denoisers without a cache: a list of at most one."""
    if threshold is None or has_cache:
        return []
    return [
        "cache_threshold must be left out for denoisers that were exported without a cache, "
        f"got {threshold}; try exporting with --variant first-block-cache"
    ]


def scale_rule(help_text: str, default: str = "") -> Rule:
    """Return the rule of a guidance weight; its bound keeps the product with a prediction finite."""
    return within(0, MAX_GUIDANCE_SCALE, help_text, default)


Steps = Annotated[int, within(1, MAX_STEPS, "number of denoising steps")]
Seed = Annotated[int, within(0, MAX_SEED, "seed of the random noise")]
FlowShift = Annotated[float | None, within(*FLOW_SHIFTS, "shift of the noise schedule", "the checkpoint's")]
GuidanceScale = Annotated[float, scale_rule("scale of classifier-free guidance; 1 or less turns it off")]
GuidanceStart = Annotated[float, fraction("fraction of the steps before guidance starts")]
GuidanceStop = Annotated[float, fraction("fraction of the steps after which guidance stops")]
CacheThreshold = Annotated[
    float | None,
    non_negative(
        "relative change of the first block up to which the other blocks are skipped", "0.05", "off"
    ),
]
TimeoutS = Annotated[
    float | None, replace(duration("time limit of the request, in seconds", "600.0"), flag="timeout")
]
