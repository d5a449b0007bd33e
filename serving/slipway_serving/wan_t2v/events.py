"""What the pipeline answers: one Progress per denoising step, then the result in chunks.

:func:`tensors` makes an event's tensors; :data:`OUTPUTS` is the table of their types, which
``config.pbtxt`` repeats in Triton's own form (a contract test compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Output name -> Triton datatype, numpy dtype, dims in the config.
OUTPUTS: dict[str, tuple[str, Any, tuple[int, ...]]] = {
    "step": ("INT32", np.int32, (1,)),
    "steps": ("INT32", np.int32, (1,)),
    "elapsed_s": ("FP32", np.float32, (1,)),
    "preview": ("UINT8", np.uint8, (-1, -1, 3)),
    "chunk": ("INT32", np.int32, (1,)),
    "chunks": ("INT32", np.int32, (1,)),
    "frames": ("UINT8", np.uint8, (-1, -1, -1, 3)),
    "video": ("BYTES", np.object_, (1,)),
    "cache_hit_rate": ("FP32", np.float32, (1,)),
}


@dataclass(frozen=True)
class Progress:
    """A denoising step is done.

    Attributes:
        step: 1 to steps.
        steps: how many there are.
        elapsed_s: seconds since the request began.
        preview: [height / 8, width / 8, 3], uint8, a picture of the latents; None if it was not asked for.
    """

    step: int
    steps: int
    elapsed_s: float
    preview: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class FramesChunk:
    """A part of the result as frames.

    Attributes:
        chunk: 0 to chunks - 1.
        chunks: how many there are.
        elapsed_s: seconds since the request began.
        frames: [frames, height, width, 3], uint8.
        cache_hit_rate: share of the denoiser's evaluations that reused the first-block cache; None without.
    """

    chunk: int
    chunks: int
    elapsed_s: float
    frames: NDArray[np.uint8]
    cache_hit_rate: float | None = None


@dataclass(frozen=True)
class VideoChunk:
    """A part of the result as bytes of an MP4 file, or as base64 text of them.

    Attributes:
        chunk: 0 to chunks - 1.
        chunks: how many there are.
        elapsed_s: seconds since the request began.
        video: the bytes.
        cache_hit_rate: as in :class:`FramesChunk`.
    """

    chunk: int
    chunks: int
    elapsed_s: float
    video: bytes
    cache_hit_rate: float | None = None


Chunk = FramesChunk | VideoChunk
Event = Progress | Chunk


def tensors(event: Event) -> dict[str, NDArray[Any]]:
    """Return an event's output tensors; fields that are None have none."""
    found = {}
    for field in fields(event):
        value = getattr(event, field.name)
        if value is not None:
            _, dtype, dims = OUTPUTS[field.name]
            found[field.name] = np.array([value], dtype) if dims == (1,) else value
    return found
