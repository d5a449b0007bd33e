"""Clips as long as a video of four sections, with one motion from start to end.

The pace of each motion is fixed. A section that is generated first, far from the picture, can only predict
the shape's later position if every shape moves at the same pace.
"""

from __future__ import annotations

import math

from slipway_loadtests.pictures.footage import Footage
from slipway_loadtests.pictures.scenes import Ways
from slipway_serving.families.framepack_i2v.request import FRAMES_PER_LATENT, SECTION_FRAMES

# Four sections are 5 s, the default of a request.
SECTIONS = 4
LATENT_FRAMES = SECTIONS * SECTION_FRAMES + 1
FRAMES = (LATENT_FRAMES - 1) * FRAMES_PER_LATENT + 1
# A bounce lasts one section, and a shape turns by 4 degrees per frame.
STEADY = Ways(
    reach=(0.6, 0.6),
    turn_rad=(3.2 * math.pi, 3.2 * math.pi),
    hop=(0.25, 0.25),
    hops=(SECTIONS, SECTIONS),
    smallest=(0.5, 0.5),
)
LONG = Footage(FRAMES, STEADY)
