"""From a stream's responses to what a caller sees: progress per step, then one whole result.

A response is a mapping of output names to arrays, whichever protocol brought it. The assembler turns those
with a step into :class:`Progress`, collects those with a chunk, and gives the result only when every chunk
has arrived: a stream that ended early is an error, never a shorter video.
"""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_client.tensors import Tensors
from slipway_serving.errors import Unrecoverable
from slipway_serving.wan_t2v.request import TextToVideoRequest


@dataclass(frozen=True)
class Progress:
    """One denoising step is done.

    Attributes:
        step: 1 to steps.
        steps: how many there are.
        elapsed_s: since the server began, seconds.
        preview: [rows, columns, 3], uint8, RGB of the latents; None unless asked for.
    """

    step: int
    steps: int
    elapsed_s: float
    preview: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Video:
    """The result as a file.

    Attributes:
        data: a whole MP4 file (H.264).
        elapsed_s: what the server took, seconds.
        cache_hit_rate: share of the denoiser's evaluations that reused the first-block cache, 0 to 1; None
            without cache_threshold.
    """

    data: bytes
    elapsed_s: float
    cache_hit_rate: float | None = None


@dataclass(frozen=True)
class Frames:
    """The result as pixels.

    Attributes:
        array: [frames, height, width, 3], uint8, RGB.
        elapsed_s: what the server took, seconds.
        cache_hit_rate: as in :class:`Video`.
    """

    array: NDArray[np.uint8]
    elapsed_s: float
    cache_hit_rate: float | None = None


class Assembler:
    """Collects the responses of one request."""

    def __init__(self, request: TextToVideoRequest, model: str) -> None:
        self._request = request
        self._model = model
        self._expected: int | None = None
        self._parts: dict[int, NDArray[Any]] = {}
        self._elapsed_s = 0.0
        self._cache_hit_rate: float | None = None

    def add(self, response: Tensors) -> Progress | None:
        """Take one response.

        Args:
            response: its outputs by name.

        Returns:
            The progress that it reports, or None when it carried a part of the result.

        Raises:
            Unrecoverable: it is neither, or contradicts an earlier one.
        """
        if "step" in response:
            return self._progress(response)
        if "chunk" in response:
            self._chunk(response)
            return None
        raise self._broken(
            f"response must carry step or chunk, got {', '.join(sorted(response)) or 'nothing'}"
        )

    def result(self) -> Video | Frames:
        """Put the parts together, after the stream's end.

        Raises:
            Unrecoverable: parts are missing, or what they make is not what was asked for.
        """
        if self._expected is None:
            raise self._broken("stream must end with a result, got none")
        missing = [index for index in range(self._expected) if index not in self._parts]
        if missing:
            raise self._broken(
                f"result must have {self._expected} chunks, got {len(self._parts)}, "
                f"without {', '.join(map(str, missing[:8]))}"
            )
        parts = [self._parts[index] for index in range(self._expected)]
        if self._request.output == "frames":
            return self._frames(parts)
        data = b"".join(self._bytes(part) for part in parts)
        return Video(data, self._elapsed_s, self._cache_hit_rate)

    def _progress(self, response: Tensors) -> Progress:
        step, steps = _scalar(response, "step"), _scalar(response, "steps")
        preview = self._preview(response["preview"]) if "preview" in response else None
        return Progress(int(step), int(steps), float(_scalar(response, "elapsed_s")), preview)

    def _preview(self, pixels: NDArray[Any]) -> NDArray[np.uint8]:
        if pixels.ndim == 3:
            return pixels.astype(np.uint8, copy=False)
        # Triton writes arrays into JSON flat. A preview has the video's aspect, so its size tells its shape.
        scale = math.sqrt(self._request.height * self._request.width * 3 / max(pixels.size, 1))
        rows, columns = round(self._request.height / scale), round(self._request.width / scale)
        if rows * columns * 3 != pixels.size:
            raise self._broken(f"preview must have the video's aspect, got {pixels.size} values")
        return pixels.astype(np.uint8).reshape(rows, columns, 3)

    def _chunk(self, response: Tensors) -> None:
        index, chunks = int(_scalar(response, "chunk")), int(_scalar(response, "chunks"))
        self._expected = chunks if self._expected is None else self._expected
        name = "frames" if self._request.output == "frames" else "video"
        if chunks != self._expected or not 0 <= index < chunks or index in self._parts:
            raise self._broken(f"chunk must be a new one of {self._expected}, got {index} of {chunks}")
        if name not in response:
            raise self._broken(f"chunk must carry {name}, got {', '.join(sorted(response))}")
        self._parts[index] = response[name]
        self._elapsed_s = float(_scalar(response, "elapsed_s"))
        if "cache_hit_rate" in response:
            self._cache_hit_rate = float(_scalar(response, "cache_hit_rate"))

    def _frames(self, parts: list[NDArray[Any]]) -> Frames:
        asked = (self._request.frames, self._request.height, self._request.width, 3)
        shapes = [part.shape for part in parts]
        if any(shape[1:] != asked[1:] for shape in shapes) or sum(shape[0] for shape in shapes) != asked[0]:
            raise self._broken(
                f"frames must be {list(asked)} together, got {[list(shape) for shape in shapes]}"
            )
        array = np.concatenate(parts).astype(np.uint8, copy=False)
        return Frames(array, self._elapsed_s, self._cache_hit_rate)

    def _bytes(self, part: NDArray[Any]) -> bytes:
        raw = bytes(part.reshape(-1)[0])
        if self._request.output != "video_base64":
            return raw
        try:
            return base64.b64decode(raw, validate=True)
        except binascii.Error as error:
            raise self._broken(f"video must be base64 text, got something else ({error})") from None

    def _broken(self, text: str) -> Unrecoverable:
        return Unrecoverable(f"{self._model}: {text}; try again, and see the server's log")


def _scalar(response: Tensors, name: str) -> Any:
    if name not in response or response[name].size != 1:
        raise Unrecoverable(f"response: {name} must be one number, got {response.get(name)}")
    return response[name].reshape(-1)[0]
