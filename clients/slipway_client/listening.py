"""Detection of wake words in a recording by a served model.

A recording is sent to `wakeword` as clips, cut here into windows of 1 s that overlap by half, or to
`wakeword_stream` piece by piece, where the server cuts the same windows. Either way the last window is padded
with silence, so that windows cover every sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from slipway_client.client import Client
from slipway_client.sound import Recording
from slipway_serving.families.wakeword.request import (
    SAMPLE_RATE_HZ,
    ClipDecisions,
    ClipsRequest,
    ListenRequest,
    ListenTurn,
    StreamDecisions,
)
from slipway_serving.protocol.errors import InvalidRequest, Malformed
from slipway_serving.protocol.events import Event

PIECE_SAMPLES = 8_000
_CLIPS_PER_REQUEST = 16
_FULL_SCALE = 32_768
_INT16 = np.dtype("<i2")


@dataclass(frozen=True)
class WindowResult:
    """Result of one window for one word.

    Attributes:
        word: Name of the word.
        time_s: End of the window, in seconds from the beginning.
        probability: Probability of the word, 0 to 1.
        threshold: Smallest probability at which the word is detected.
        event: True if the word is detected outside its cooldown.
    """

    word: str
    time_s: float
    probability: float
    threshold: float
    event: bool


def padded_size(size: int, window: int, hop: int) -> int:
    """Return the padded size at which windows cover every sample: the window plus whole hops."""
    return window + max(0, -(-(size - window) // hop)) * hop


def detect_in_clips(
    client: Client, recording: Recording, words: Sequence[str], cooldown_s: float
) -> Iterator[WindowResult]:
    """Classify a recording window by window with the model `wakeword`.

    Args:
        client: Client of the server.
        recording: Recording at any sampling rate that the model takes.
        words: Words to listen for; if empty, every loaded word.
        cooldown_s: Time after an event during which its word triggers no other event, in seconds.
    """
    window, hop = recording.rate_hz, recording.rate_hz // 2
    size = padded_size(recording.samples.size, window, hop)
    padded = np.pad(recording.samples, (0, size - recording.samples.size))
    clips = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    last_s: dict[str, float] = {}
    for first in range(0, len(clips), _CLIPS_PER_REQUEST):
        batch = np.ascontiguousarray(clips[first : first + _CLIPS_PER_REQUEST])
        rates = np.full((len(batch), 1), recording.rate_hz, np.int64)
        request = ClipsRequest(batch, rates, _word_rows(words, len(batch)))
        for decisions in client.generate(request):
            assert isinstance(decisions, ClipDecisions)
            if len(decisions.word) != len(batch):
                raise Malformed(
                    f"{request.model}: word must have one row for each of the {len(batch)} clips, got"
                    f" {len(decisions.word)}; see the server's log"
                )
            for row in range(len(batch)):
                end_s = ((first + row) * hop + window) / recording.rate_hz
                for result in _row_results(decisions, row, end_s):
                    event = result.event and end_s - last_s.get(result.word, -np.inf) >= cooldown_s
                    if event:
                        last_s[result.word] = end_s
                    yield replace(result, event=event)


def _word_rows(words: Sequence[str], rows: int) -> NDArray[np.object_] | None:
    return np.array([list(words)] * rows, np.object_) if words else None


def _row_results(decisions: ClipDecisions, row: int, end_s: float) -> Iterator[WindowResult]:
    columns = (
        decisions.word[row],
        decisions.probability[row],
        decisions.threshold[row],
        decisions.detected[row],
    )
    for word, probability, threshold, detected in zip(*columns, strict=True):
        yield WindowResult(word, end_s, float(probability), float(threshold), bool(detected))


@dataclass
class StreamDetector:
    """PCM stream to the model `wakeword_stream`.

    Args:
        client: Client of the server.
        words: Words to listen for; if empty, every loaded word.
        cooldown_ms: Time after an event during which its word triggers no other event, in milliseconds.
    """

    client: Client
    words: Sequence[str]
    cooldown_ms: int

    def detect(self, pieces: Iterable[NDArray[np.int16]]) -> Iterator[WindowResult]:
        """Yield the results of each full window as soon as they arrive; the session ends with the loop.

        Args:
            pieces: Pieces of int16 samples at 16 kHz, of any sizes.
        """
        size = 0
        with self.client.session(ListenRequest(_word_rows(self.words, 1), self.cooldown_ms)) as session:
            for pcm in pieces:
                size += pcm.size
                yield from _window_results(session.step(ListenTurn(pcm[None])))
            rest = np.zeros(padded_size(size, SAMPLE_RATE_HZ, PIECE_SAMPLES) - size, np.int16)
            yield from _window_results(session.step(ListenTurn(rest[None]), last=True))


def _window_results(events: Iterable[Event]) -> Iterator[WindowResult]:
    """Yield the results of the windows that a piece completes."""
    for decisions in events:
        assert isinstance(decisions, StreamDecisions)
        detections = set(zip(decisions.event_word[0], decisions.event_time_s[0].tolist(), strict=True))
        for row, end_s in enumerate(decisions.end_s[0].tolist()):
            columns = (decisions.word[0], decisions.probability[0, row], decisions.threshold[0, row])
            for word, probability, threshold in zip(*columns, strict=True):
                yield WindowResult(
                    word, end_s, float(probability), float(threshold), (word, end_s) in detections
                )


def split_recording(recording: Recording) -> Iterator[NDArray[np.int16]]:
    """Yield a recording as int16 pieces of half a second; a sample of exactly 1 becomes the largest int16.

    Raises:
        InvalidRequest: The recording is not at 16 kHz.
    """
    if recording.rate_hz != SAMPLE_RATE_HZ:
        raise InvalidRequest(
            f"listen: a streamed recording must have a sampling rate of {SAMPLE_RATE_HZ} Hz, got"
            f" {recording.rate_hz};"
            " try read_recording, which resamples a file"
        )
    scaled = np.minimum(np.round(recording.samples * _FULL_SCALE), _FULL_SCALE - 1).astype(np.int16)
    yield from (scaled[at : at + PIECE_SAMPLES] for at in range(0, scaled.size, PIECE_SAMPLES))


def read_pieces(file: BinaryIO) -> Iterator[NDArray[np.int16]]:
    """Yield raw little-endian int16 samples as they arrive, in pieces of at most half a second.

    Raises:
        InvalidRequest: The file ends in the middle of a sample.
    """
    left = b""
    while raw := file.read(PIECE_SAMPLES * _INT16.itemsize - len(left)):
        raw = left + raw
        whole = len(raw) - len(raw) % _INT16.itemsize
        left = raw[whole:]
        yield np.frombuffer(raw[:whole], _INT16)
    if left:
        raise InvalidRequest("listen: stdin must contain whole 16-bit samples, got an odd number of bytes")
