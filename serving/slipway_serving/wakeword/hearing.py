"""The figures by which audio is heard in training, in serving, and in the graph of features alike."""

from __future__ import annotations

from slipway_serving.wakeword.request import LONGEST_S, SAMPLE_RATE_HZ

# The loudness rule of WakeBuilder: below it nothing was said; above the second, the peak becomes the third.
SILENT_RMS, QUIET_PEAK, PEAK = 0.005, 0.01, 0.9
# The frames of transformers' extractor: 25 ms every 10 ms.
FRAME_SAMPLES, HOP_SAMPLES = 400, 160


def is_silent(rms: float) -> bool:
    """Whether nothing was said in audio of that loudness."""
    return rms < SILENT_RMS


def longest_s(frames: int) -> float:
    """Return how long a clip may be for a backbone of so many frames, seconds; at most 10."""
    # One sample more would be one frame more than the backbone has positions.
    return min(LONGEST_S, (FRAME_SAMPLES + frames * HOP_SAMPLES - 1) / SAMPLE_RATE_HZ)
