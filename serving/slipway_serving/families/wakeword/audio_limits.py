"""Constants of audio preprocessing, shared by training, serving and the graph of features."""

from __future__ import annotations

from slipway_serving.families.wakeword.request import LONGEST_S, SAMPLE_RATE_HZ

# WakeBuilder's rules: below SILENT_RMS nothing was said; a peak above QUIET_PEAK is normalized to PEAK.
SILENT_RMS, QUIET_PEAK, PEAK = 0.005, 0.01, 0.9
# The frames of transformers' extractor are 25 ms long, every 10 ms.
FRAME_SAMPLES, HOP_SAMPLES = 400, 160


def is_silent(rms: float) -> bool:
    """Return True if the loudness shows that nothing was said."""
    return rms < SILENT_RMS


def longest_s(frames: int) -> float:
    """Return the longest clip for a backbone with that many frames, in seconds; at most 10."""
    # With one more sample the clip has one frame more than the backbone has positions.
    return min(LONGEST_S, (FRAME_SAMPLES + frames * HOP_SAMPLES - 1) / SAMPLE_RATE_HZ)
