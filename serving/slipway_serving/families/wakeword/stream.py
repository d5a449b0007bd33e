"""The program wakeword_stream, which detects wake words in concurrent PCM streams.

Each stream is a session, and each request is its next piece. Samples that do not fill a window yet are kept
until the next piece. The full windows of a batch of pieces are evaluated a few at a time in threads, while
the next pieces are read: this model's own graph computes features, then the backbone and the heads are
called. A stream's answers depend only on its samples, not on how they were cut.

A stream without words is answered by every loaded head. All heads of the repository are called, and those
that turn out not to be loaded are left out: to ask Triton before whether each is loaded took a fifth of this
program's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.wakeword.audio_limits import is_silent, longest_s
from slipway_serving.families.wakeword.heads import Heads
from slipway_serving.families.wakeword.request import (
    SAMPLE_RATE_HZ,
    ListenRequest,
    ListenTurn,
    StreamDecisions,
)
from slipway_serving.families.wakeword.words import BACKBONE
from slipway_serving.protocol.errors import InvalidRequest, NotReady, SlipwayError, without_traceback
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode_turn
from slipway_serving.runtime.graph import Graph
from slipway_serving.runtime.program import BatchOfOne, Call, Models, Settings, Tensors
from slipway_serving.runtime.sessions import Sessions

# Windows are 1 s long and overlap by half, as in WakeBuilder.
WINDOW_SAMPLES, HOP_SAMPLES = 16_000, 8_000
FULL_SCALE = 32_768.0
# Features of more windows at a time exceed the processor's caches. Threads compute the features of some
# windows while the backbone works on others.
_WINDOWS_AT_ONCE, _THREADS = 4, 4
_GRAPH = "features.onnx"

Pcm = NDArray[np.int16]
Values = NDArray[np.float32]
WindowScores = dict[str, tuple[np.float32, np.float32]]
"""Probability and threshold of each requested word of a window."""


@dataclass
class AudioStreamState:
    """State of an open stream.

    Attributes:
        names: Requested words; empty for every loaded word.
        cooldown_s: Time after an event during which its word triggers no other event, in seconds.
        tail: Samples that begin the next window.
        offset: Place of the tail's first sample in the stream.
        last_s: Time of each word's last event, in seconds.
        failure: Error because of which the stream cannot continue; None while it can.
    """

    names: tuple[str, ...]
    cooldown_s: float
    tail: Pcm = field(default_factory=lambda: np.zeros(0, np.int16))
    offset: int = 0
    last_s: dict[str, float] = field(default_factory=dict)
    failure: SlipwayError | None = None

    def feed(self, pcm: Pcm) -> tuple[Values, NDArray[np.float64]]:
        """Add the next samples.

        Returns:
            The windows that are now full, [windows, 16000], -1 to 1, and their end times in seconds.
        """
        samples = np.concatenate([self.tail, pcm])
        count = max(0, (samples.size - WINDOW_SAMPLES) // HOP_SAMPLES + 1)
        starts = np.arange(count) * HOP_SAMPLES
        windows = [samples[start : start + WINDOW_SAMPLES] for start in starts]
        ends_s = (self.offset + starts + WINDOW_SAMPLES) / SAMPLE_RATE_HZ
        # Copied, because a view would keep the whole piece in memory.
        self.tail = samples[count * HOP_SAMPLES :].copy()
        self.offset += count * HOP_SAMPLES
        scaled = np.array(windows, np.float32).reshape(count, WINDOW_SAMPLES) / np.float32(FULL_SCALE)
        return scaled, ends_s

    def is_event(self, word: str, time_s: float) -> bool:
        """Return True and record the event if a detection is outside its word's cooldown."""
        if time_s - self.last_s.get(word, -np.inf) < self.cooldown_s:
            return False
        self.last_s[word] = time_s
        return True


@dataclass
class StreamPiece:
    """Request of a batch: its stream, the words to try, and its full windows with their end times."""

    call: Call
    state: AudioStreamState
    words: tuple[str, ...]
    windows: Values
    ends_s: NDArray[np.float64]


@dataclass(frozen=True)
class StreamWindow:
    """Full window to be evaluated.

    Attributes:
        samples: Samples, [16000], -1 to 1.
        words: Words to detect in the window.
        are_named: True if the caller has named the words, False if words that are not loaded are left out.
    """

    samples: Values
    words: tuple[str, ...]
    are_named: bool


class WakewordStream(BatchOfOne):
    """Program that detects wake words in streams, one session each.

    A :class:`ListenRequest` opens a session. Each :class:`ListenTurn` carries samples and is answered with
    :class:`StreamDecisions`: the results of each window that became full, and the events in it. An answer
    thus comes with the last sample of a window; samples that do not fill a window at the end are dropped. The
    program does not check whether a caller has cancelled, since the check took a fifteenth of a turn. Triton
    drops cancelled requests from its queue, except those of the next batch, whose answers are then discarded.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._heads = Heads(settings.repository, settings.model)
        self._cooldown_ms = settings.positive_integer("cooldown_ms")
        self._features = Graph(settings, _GRAPH)
        _, frames, _ = self._features.shape("input_values")
        self._longest_s = longest_s(frames)
        self._sessions: Sessions[AudioStreamState] = Sessions.from_settings(settings)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=self._model)

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the answer or the error for each piece; an error ends its stream."""
        pieces: list[StreamPiece | SlipwayError] = []
        pending: list[StreamWindow] = []
        futures: list[Future[list[WindowScores | SlipwayError]]] = []
        try:
            for call in calls:
                piece = self._begin(call)
                pieces.append(piece)
                if isinstance(piece, StreamPiece):
                    named = bool(piece.state.names)
                    pending += [StreamWindow(samples, piece.words, named) for samples in piece.windows]
                last = len(pieces) == len(calls)
                while len(pending) >= _WINDOWS_AT_ONCE or (pending and last):
                    few, pending = pending[:_WINDOWS_AT_ONCE], pending[_WINDOWS_AT_ONCE:]
                    futures.append(self._threads.submit(self._score_windows, few, call.models))
            scores = chain.from_iterable(part.result() for part in futures)
            return [self._finish(each, scores) if isinstance(each, StreamPiece) else each for each in pieces]
        except BaseException:
            for each in pieces:
                if isinstance(each, StreamPiece):
                    self._sessions.drop(each.call.turn)
            raise

    def close(self) -> None:
        """Free all streams."""
        self._threads.shutdown()
        self._sessions.close()

    def _begin(self, call: Call) -> StreamPiece | SlipwayError:
        """Add a piece to its stream, and keep the stream for the next piece, perhaps of this batch."""
        try:
            opening, content = self._read(call)
            state = self._sessions.acquire(call.turn, lambda: self._new_state(opening))
            windows, ends_s = state.feed(content.pcm[0])
            words = state.names
            if not words and len(windows):
                words = tuple(self._heads.words())
        except SlipwayError as error:
            self._sessions.drop(call.turn)
            return error
        self._sessions.store(call.turn, state)
        return StreamPiece(call, state, words, windows, ends_s)

    def _read(self, call: Call) -> tuple[ListenRequest | None, ListenTurn]:
        read: tuple[ListenRequest | None, ListenTurn]
        read = decode_turn(ListenRequest, call.tensors, self._model, call.turn)
        self._sessions.check_id(call.turn, fix="a unique id for each stream")
        return read

    def _new_state(self, opening: ListenRequest | None) -> AudioStreamState:
        if self._longest_s < WINDOW_SAMPLES / SAMPLE_RATE_HZ:
            raise InvalidRequest(
                f"{self._model}: the backbone must take windows of 1 s, got one that takes at most"
                f" {self._longest_s:.2f} s; try the model wakeword with shorter clips"
            )
        request = opening or ListenRequest()
        cooldown_ms = self._cooldown_ms if request.cooldown_ms is None else request.cooldown_ms
        names = () if request.words is None else tuple(request.words[0].tolist())
        return AudioStreamState(names, cooldown_ms / 1000)

    def _score_windows(
        self, windows: Sequence[StreamWindow], models: Models
    ) -> list[WindowScores | SlipwayError]:
        """Return the answers of the heads for each window, or an error if one of them fails."""
        try:
            audio = np.stack([window.samples for window in windows])
            features = self._features.run({"audio": audio}, in_memory=("input_values", "rms"))
            values, rms = features["input_values"].numpy(), features["rms"].numpy()[:, 0]
            embedding = models.call(BACKBONE, {"input_values": values}, ["embedding"])["embedding"]
        except SlipwayError as error:
            return [error] * len(windows)
        scores: list[WindowScores | SlipwayError] = [{} for _ in windows]
        for word in dict.fromkeys(word for window in windows for word in window.words):
            rows = [row for row, window in enumerate(windows) if word in window.words]
            try:
                answers = self._heads.score(word, embedding[rows], models)
            except SlipwayError as error:
                is_missing = isinstance(error, NotReady) and not self._heads.is_loaded(word, models)
                for row in rows:
                    if windows[row].are_named or not is_missing:
                        scores[row] = without_traceback(error)
                continue
            for row, probability, threshold in zip(rows, *answers, strict=True):
                if isinstance(window_scores := scores[row], dict):
                    silent = is_silent(float(rms[row]))
                    window_scores[word] = (np.float32(0) if silent else probability, threshold)
        return scores

    def _finish(
        self, piece: StreamPiece, scores: Iterator[WindowScores | SlipwayError]
    ) -> Tensors | SlipwayError:
        """Return a piece's answer, and record its detections as events in the order of the stream.

        Args:
            piece: Next piece of the batch.
            scores: Results of the piece's windows, followed by those of later pieces.
        """
        own = list(islice(scores, len(piece.windows)))
        failed = [each for each in own if isinstance(each, SlipwayError)]
        # Words that the caller has not named may be missing from some windows.
        scored = [each for each in own if isinstance(each, dict)]
        words = tuple(word for word in piece.words if all(word in each for each in scored))
        if own and not words:
            failed = [self._heads.none_loaded()]
        if failed and piece.state.failure is None:
            piece.state.failure = failed[0]
        if piece.state.failure is not None:
            self._sessions.drop(piece.call.turn)
            return piece.state.failure
        table = np.array(
            [[window_scores[word] for word in words] for window_scores in scored], np.float32
        ).reshape(len(own), len(words), 2)
        probabilities, thresholds = table[:, :, 0], table[:, :, 1]
        events = [
            (word, float(end_s), probability)
            for end_s, row, bounds in zip(piece.ends_s, probabilities, thresholds, strict=True)
            for word, probability, threshold in zip(words, row, bounds, strict=True)
            if probability >= threshold and piece.state.is_event(word, float(end_s))
        ]
        return tensors(
            StreamDecisions(
                word=np.array([words], np.object_),
                end_s=piece.ends_s[None],
                probability=probabilities[None],
                threshold=thresholds[None],
                event_word=np.array([[word for word, _, _ in events]], np.object_),
                event_time_s=np.array([[time_s for _, time_s, _ in events]], np.float64),
                event_probability=np.array([[p for _, _, p in events]], np.float32),
            )
        )
