"""Program of a Wan denoiser that was exported with a first-block cache."""

from __future__ import annotations

from typing import ClassVar

from slipway_serving.diffusion.cached_denoiser import CachedDenoiser
from slipway_serving.families.wan_t2v.request import Denoising
from slipway_serving.protocol.requests import Request


class WanCachedDenoiser(CachedDenoiser):
    """Wan denoiser, see :class:`slipway_serving.diffusion.cached_denoiser.CachedDenoiser`."""

    request: ClassVar[type[Request]] = Denoising
    latents: ClassVar[str] = "hidden_states"
