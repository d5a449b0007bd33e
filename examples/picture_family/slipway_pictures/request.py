"""The request: which class is painted, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving.protocol.diffusion.fields import GuidanceScale, Seed, Steps, TimeoutS
from slipway_serving.protocol.events import Event, Picture, Progress
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import within

CLASSES = 1000


@dataclass(frozen=True, eq=False)
class PictureRequest(Request):
    """A picture of one of ImageNet's classes.

    Attributes:
        subject: Number of the class, 0 to 999.
        steps: Number of denoising steps.
        guidance_scale: Scale of classifier-free guidance; 1 or less turns it off.
        seed: Seed of the noise.
        timeout_s: Time limit, in seconds.

    Raises:
        InvalidRequest: A field breaks its rule; all such fields are named.
    """

    model: ClassVar[str] = "pictures"
    events: ClassVar[tuple[type[Event], ...]] = (Progress, Picture)

    subject: Annotated[int, within(0, CLASSES - 1, "number of one of ImageNet's classes")]
    steps: Steps = 50
    guidance_scale: GuidanceScale = 4.0
    seed: Seed = 0
    timeout_s: TimeoutS = None
