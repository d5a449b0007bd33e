"""The program wakeword_stream: PCM as it comes in, events out, for as many streams at a time as are allowed.

Each request is a piece of one stream, which its correlation id names. Samples that do not fill a window yet
wait here; the full windows of all streams of a batch go to the model `wakeword` together. What a stream
answers depends on its samples only, never on how they were cut into pieces.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import Cancelled, Overloaded, SlipwayError, Unrecoverable
from slipway_serving.events import tensors
from slipway_serving.program import Call, Models, Settings, Single, Tensors
from slipway_serving.requests import decode_turn, encode
from slipway_serving.sessions import Sessions
from slipway_serving.wakeword.decide import every_word
from slipway_serving.wakeword.request import SAMPLE_RATE_HZ, ClipsRequest, ListenRequest, ListenTurn, Windows

# As WakeBuilder listens: windows of 1 s that overlap by half.
WINDOW_SAMPLES, HOP_SAMPLES = 16_000, 8_000
FULL_SCALE = 32_768.0
# The windows of a batch go to the ensemble in several calls at a time, so that its models work side by side:
# one makes features of some while the backbone has others.
_WINDOWS_PER_CALL, _CALLS_AT_A_TIME = 4, 4
# A stream is over when its windows fail, so they come again when the clips of others have filled the queue.
_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)

Pcm = NDArray[np.int16]


@dataclass
class Listening:
    """A stream under way.

    Attributes:
        names: of the words that it asked for; none for every loaded word.
        cooldown_s: seconds after an event in which its word makes no other.
        tail: samples that begin the next window.
        offset: place of the tail's first sample in the stream.
        last_s: time of each word's last event, seconds.
        broken: why the stream cannot go on.
    """

    names: tuple[str, ...]
    cooldown_s: float
    tail: Pcm = field(default_factory=lambda: np.zeros(0, np.int16))
    offset: int = 0
    last_s: dict[str, float] = field(default_factory=dict)
    broken: SlipwayError | None = None

    def feed(self, pcm: Pcm) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Take the next samples in.

        Returns:
            The windows that are full now, [windows, 16000], -1 to 1; the time at which each ends, seconds.
        """
        samples = np.concatenate([self.tail, pcm])
        count = max(0, (samples.size - WINDOW_SAMPLES) // HOP_SAMPLES + 1)
        starts = np.arange(count) * HOP_SAMPLES
        windows = [samples[start : start + WINDOW_SAMPLES] for start in starts]
        ends_s = (self.offset + starts + WINDOW_SAMPLES) / SAMPLE_RATE_HZ
        # A copy: a view would hold the whole piece.
        self.tail = samples[count * HOP_SAMPLES :].copy()
        self.offset += count * HOP_SAMPLES
        scaled = np.array(windows, np.float32).reshape(count, WINDOW_SAMPLES) / np.float32(FULL_SCALE)
        return scaled, ends_s

    def is_event(self, word: str, time_s: float) -> bool:
        """Tell whether a detection is an event or falls into its word's cooldown; remember an event."""
        if time_s - self.last_s.get(word, -np.inf) < self.cooldown_s:
            return False
        self.last_s[word] = time_s
        return True


@dataclass
class Piece:
    """One request's part in a batch: its stream, its words and its windows with what they were judged."""

    call: Call
    listening: Listening
    words: tuple[str, ...]
    windows: NDArray[np.float32]
    ends_s: NDArray[np.float64]
    probability: NDArray[np.float32] | None = None
    threshold: NDArray[np.float32] | None = None


class WakewordStream(Single):
    """Listens to streams, one session each.

    A :class:`ListenRequest` opens a session, each :class:`ListenTurn` brings samples and gets
    :class:`Windows`: what was said of each window that became full, and the events in it. So an answer comes
    with the last sample of a window; what is left at the end and fills none is dropped.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._repository = settings.repository
        self._cooldown_ms = settings.positive("cooldown_ms")
        self._sessions: Sessions[Listening] = Sessions.of_model(settings)
        self._callers = ThreadPoolExecutor(_CALLS_AT_A_TIME, thread_name_prefix=self._model)

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the answer to each piece, or why there is none; a stream that failed is over."""
        begun = [self._begin(call) for call in calls]
        pieces = [piece for piece in begun if isinstance(piece, Piece)]
        try:
            for words in dict.fromkeys(piece.words for piece in pieces):
                self._judge(words, [piece for piece in pieces if piece.words == words])
        except BaseException:
            for piece in pieces:
                self._sessions.free(piece.call.turn)
            raise
        return [self._finish(piece) if isinstance(piece, Piece) else piece for piece in begun]

    def close(self) -> None:
        """Free all streams."""
        self._callers.shutdown()
        self._sessions.close()

    def _begin(self, call: Call) -> Piece | SlipwayError:
        """Take a piece in; its stream stays where the next piece, perhaps of this batch, finds it."""
        try:
            if call.is_cancelled():
                raise Cancelled(f"{self._model}: cancelled by the caller before it ran")
            opening, content = self._read(call)
            listening = self._sessions.take(call.turn, lambda: self._started(opening))
            windows, ends_s = listening.feed(content.pcm[0])
            words = listening.names
            if not words and len(windows):
                words = every_word(self._repository, call.models, self._model)
        except SlipwayError as error:
            self._sessions.free(call.turn)
            return error
        self._sessions.keep(call.turn, listening)
        return Piece(call, listening, words, windows, ends_s)

    def _read(self, call: Call) -> tuple[ListenRequest | None, ListenTurn]:
        read: tuple[ListenRequest | None, ListenTurn]
        read = decode_turn(ListenRequest, call.tensors, self._model, call.turn)
        self._sessions.check(call.turn, fix="one of your own for each stream")
        return read

    def _started(self, opening: ListenRequest | None) -> Listening:
        request = opening or ListenRequest()
        cooldown_ms = self._cooldown_ms if request.cooldown_ms is None else request.cooldown_ms
        names = () if request.words is None else tuple(request.words[0].tolist())
        return Listening(names, cooldown_ms / 1000)

    def _judge(self, words: tuple[str, ...], pieces: Sequence[Piece]) -> None:
        """Have the windows of pieces that want the same words judged, together; one by one if that fails."""
        windows = np.concatenate([piece.windows for piece in pieces])
        try:
            judged = self._ask(words, windows, pieces[0].call.models)
        except SlipwayError as error:
            if len(pieces) == 1:
                pieces[0].listening.broken = error
            else:
                for piece in pieces:
                    self._judge(words, [piece])
            return
        start = 0
        for piece in pieces:
            part = slice(start, start + len(piece.windows))
            piece.probability, piece.threshold = judged["probability"][part], judged["threshold"][part]
            start = part.stop

    def _ask(self, words: tuple[str, ...], windows: NDArray[np.float32], models: Models) -> dict[str, Any]:
        outputs = ["probability", "threshold"]
        starts = range(0, len(windows), _WINDOWS_PER_CALL)

        def ask(start: int) -> dict[str, NDArray[Any]]:
            audio = windows[start : start + _WINDOWS_PER_CALL]
            clips = ClipsRequest(
                audio=audio,
                sample_rate=np.full((len(audio), 1), SAMPLE_RATE_HZ, np.int64),
                words=np.array([words] * len(audio), np.object_),
            )
            for wait_s in _WAITS_S:
                try:
                    return models.call(clips.model, encode(clips), outputs)
                except Overloaded:
                    time.sleep(wait_s)
            return models.call(clips.model, encode(clips), outputs)

        answers = list(self._callers.map(ask, starts))
        none = np.zeros((0, len(words)), np.float32)
        return {name: np.concatenate([none, *(answer[name] for answer in answers)]) for name in outputs}

    def _finish(self, piece: Piece) -> Tensors | SlipwayError:
        """Return a piece's answer; what it detected becomes events in the order of the stream."""
        if piece.listening.broken is not None:
            self._sessions.free(piece.call.turn)
            return piece.listening.broken
        if piece.probability is None or piece.threshold is None:
            return Unrecoverable(f"{self._model}: a piece must be judged before it is answered, got none")
        events = [
            (word, float(end_s), probability)
            for end_s, row, bounds in zip(piece.ends_s, piece.probability, piece.threshold, strict=True)
            for word, probability, threshold in zip(piece.words, row, bounds, strict=True)
            if probability >= threshold and piece.listening.is_event(word, float(end_s))
        ]
        return tensors(
            Windows(
                word=np.array([piece.words], np.object_),
                end_s=piece.ends_s[None],
                probability=piece.probability[None],
                threshold=piece.threshold[None],
                event_word=np.array([[word for word, _, _ in events]], np.object_),
                event_time_s=np.array([[time_s for _, time_s, _ in events]], np.float64),
                event_probability=np.array([[p for _, _, p in events]], np.float32),
            )
        )
