"""Speech synthesis with espeak-ng in this process, through ctypes and the wheel `espeakng-loader`.

espeak-ng is GPL, and only training uses it: its speech is data, and nothing of it is shipped or served.
It adds random tremble and breath of its own, so the same text in the same voice never gives the same samples.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import soxr
from numpy.typing import NDArray

from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ
from slipway_serving.protocol.distribution import install_hint
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable

Samples = NDArray[np.float32]

# These constants are from speak_lib.h.
_SYNCHRONOUS, _RATE, _PITCH, _RANGE, _UTF8, _CHARACTERS = 2, 1, 3, 4, 1, 1
_LOUD = 0.02


@dataclass(frozen=True)
class Voice:
    """Voice of a speaker.

    Args:
        name: Name in espeak-ng, an accent and a variant, such as ``gmw/en-US+f3``.
        words_per_minute: Speed, 80 to 450.
        pitch: Pitch, 0 to 99; 50 is the variant's own.
        liveliness: Range of the pitch, 0 to 99.
    """

    name: str
    words_per_minute: int = 160
    pitch: int = 50
    liveliness: int = 50


def say(text: str, voice: Voice) -> Samples:
    """Synthesize a text, without the silence before and after it.

    Returns:
        Samples, [samples], mono, float32, peak 0.5, 16 kHz.

    Raises:
        InvalidRequest: espeak-ng is not installed, has no such voice, or gives no sound for the text.
        Unrecoverable: The espeak-ng library does not start.
    """
    library, pieces, rate_hz, _ = _library()
    if library.espeak_SetVoiceByName(voice.name.encode()):
        raise InvalidRequest(f"espeak: voice must be one of espeak-ng's, got {voice.name!r}")
    settings = {_RATE: voice.words_per_minute, _PITCH: voice.pitch, _RANGE: voice.liveliness}
    for parameter, value in settings.items():
        library.espeak_SetParameter(parameter, value, 0)
    pieces.clear()
    encoded = text.encode()
    library.espeak_Synth(encoded, len(encoded) + 1, 0, _CHARACTERS, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    said = np.concatenate(pieces).astype(np.float32) if pieces else np.zeros(0, np.float32)
    loud = np.flatnonzero(np.abs(said) > _LOUD * np.abs(said).max(initial=0.0))
    if not len(loud):
        raise InvalidRequest(f"espeak: text must be sayable, got {text!r}")
    said = soxr.resample(said[loud[0] : loud[-1] + 1], rate_hz, SAMPLE_RATE_HZ)
    return np.asarray(said / np.abs(said).max() * 0.5, np.float32)


class _Library(NamedTuple):
    """Initialized espeak-ng library: its functions, the buffer of its samples, and their rate in Hz."""

    functions: ctypes.CDLL
    pieces: list[NDArray[np.int16]]
    rate_hz: int
    # The library keeps only the address of the callback, so Python must keep the callback alive.
    callback: Any


@cache
def _library() -> _Library:
    try:
        import espeakng_loader
    except ModuleNotFoundError:
        raise InvalidRequest(
            "weights: speech must have espeakng-loader, which is not installed; try"
            f" {install_hint('training', 'speech')}"
        ) from None
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate_hz = library.espeak_Initialize(_SYNCHRONOUS, 0, str(espeakng_loader.get_data_path()).encode(), 0)
    if rate_hz <= 0:
        raise Unrecoverable(f"espeak: must start, got {rate_hz} from espeak_Initialize")
    pieces: list[NDArray[np.int16]] = []

    def take(samples: Any, count: int, events: Any) -> int:
        if count > 0:
            pieces.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    callback = kind(take)
    library.espeak_SetSynthCallback(callback)
    return _Library(library, pieces, rate_hz, callback)
