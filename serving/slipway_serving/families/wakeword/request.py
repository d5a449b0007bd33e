"""Requests and events of the wake word models.

Clips go to `wakeword`, which sends their audio to `wakeword_features`, and the audio with the backbone's
embedding to `wakeword_decide`, which checks the clips. A stream is a session of `wakeword_stream`, whose
turns carry its samples. Training and serving preprocess audio by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.wakeword.words import WORD_RULE, is_word, like, quoted_word
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.fields import BATCH, Array, Rule
from slipway_serving.protocol.requests import Request

SAMPLE_RATE_HZ = 16_000
"""Sampling rate of the backbone, required of a stream."""
SAMPLE_RATES_HZ = (8_000, 192_000)
SHORTEST_S, LONGEST_S = 0.1, 10.0
LONGEST_PIECE_S = 60
LONGEST_COOLDOWN_MS = 60_000
MOST_WORDS = 256

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Names = NDArray[np.object_]
"""Array of texts; a program receives str elements."""

_ROWS = (BATCH, "words")
_AUDIO = Array(
    "float32",
    (BATCH, "samples"),
    f"mono audio of {SHORTEST_S:g} to {LONGEST_S:g} s, at most as long as the backbone's input",
    low=-1,
    high=1,
    fix_values="dividing int16 samples by 32768",
    ragged=True,
)
_RATES = Rule(
    f"{SAMPLE_RATES_HZ[0]} to {SAMPLE_RATES_HZ[1]} Hz",
    lambda rates: not _unsupported_rates(rates).size,
    lambda _: f"{SAMPLE_RATE_HZ}",
    "sampling rates of clips",
    format_value=lambda rates: str(_unsupported_rates(rates)[0]),
)
_SAMPLE_RATE = Array(
    "int64",
    (BATCH, 1),
    f"sampling rate of each clip, in Hz; resampled to {SAMPLE_RATE_HZ} Hz",
    extra_rule=_RATES,
)
_NAMES = Rule(
    WORD_RULE,
    lambda names: all(is_word(name) for name in _texts(names)),
    lambda names: next(like(name) for name in _texts(names) if not is_word(name)),
    "wake words",
    format_value=lambda names: next(quoted_word(name) for name in _texts(names) if not is_word(name)),
)
_WORDS = Array(
    "text",
    _ROWS,
    "wake words to listen for",
    {"words": (0, MOST_WORDS)},
    extra_rule=_NAMES,
    fix="fewer",
    ragged=True,
    default="every loaded word",
)
_STREAM_WORDS = replace(_WORDS, sizes={BATCH: (1, 1), **_WORDS.sizes})
_COOLDOWN = Rule(
    f"0 to {LONGEST_COOLDOWN_MS}",
    lambda cooldown_ms: 0 <= cooldown_ms <= LONGEST_COOLDOWN_MS,
    lambda _: "1000",
    "time after an event in which its word triggers no other, in milliseconds",
    default="1000, or what the model's config.pbtxt says",
)
_STREAM_RATE = Rule(
    f"{SAMPLE_RATE_HZ} Hz in a stream",
    lambda rate: bool(rate == SAMPLE_RATE_HZ),
    lambda _: "resampling it",
    "sampling rate of the samples, in Hz; a stream is not resampled",
)
_PCM = Array(
    "int16",
    (BATCH, "samples"),
    f"next samples of mono audio at {SAMPLE_RATE_HZ} Hz; may be empty",
    {BATCH: (1, 1), "samples": (0, LONGEST_PIECE_S * SAMPLE_RATE_HZ)},
    fix=f"pieces of at most {LONGEST_PIECE_S} s",
    ragged=True,
)
# A model computed these, so non-finite values are the server's fault; the deciding model reports them so.
_EMBEDDING = Array("float32", (BATCH, "channels"), "embedding of each clip from the backbone", finite=False)
_GIVEN_RMS = Array("float32", (BATCH, 1), "root mean square of each clip's samples", finite=False)
_RMS = Array("float32", (BATCH, 1), "root mean square of each clip's original samples, 0 to 1")
_WORD = Array("text", _ROWS, "wake word of each column")
_PROBABILITY = Array(
    "float32", _ROWS, "probability of each word, 0 to 1; 0 in a clip with an RMS below 0.005"
)
_THRESHOLD = Array("float32", _ROWS, "smallest probability at which the word is detected")
_DETECTED = Array("bool", _ROWS, "true where probability >= threshold in a clip that is not silent")
_STREAM_WORD = replace(_WORD, shape=(1, "words"))
_END_S = Array("float64", (1, "windows"), "end of each completed window, in seconds from the beginning")
_STREAM_PROBABILITY = Array(
    "float32", (1, "windows", "words"), "probability of each word, 0 to 1; 0 in a silent window"
)
_STREAM_THRESHOLD = replace(_THRESHOLD, shape=(1, "windows", "words"))
_EVENT_WORD = Array("text", (1, "events"), "word of each detection outside its word's cooldown")
_EVENT_TIME_S = Array("float64", (1, "events"), "end of the event's window, in seconds from the beginning")
_EVENT_PROBABILITY = Array("float32", (1, "events"), "probability of the event")


def _unsupported_rates(rates: NDArray[np.int64]) -> NDArray[np.int64]:
    return rates[(rates < SAMPLE_RATES_HZ[0]) | (rates > SAMPLE_RATES_HZ[1])]


def _texts(names: NDArray[Any]) -> list[str]:
    return [name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in names.flat]


@dataclass(frozen=True)
class Clips(Request):
    """Clips of equal length.

    Attributes:
        audio: Mono samples, [batch, samples], float32, -1 to 1.
        sample_rate: Sampling rates, [batch, 1], int64, Hz, 8,000 to 192,000.

    Raises:
        InvalidRequest: A field breaks its rule, or a clip is too short or too long; all problems are named.
    """

    streams: ClassVar[bool] = False

    audio: Annotated[Float32, _AUDIO]
    sample_rate: Annotated[NDArray[np.int64], _SAMPLE_RATE]

    @classmethod
    def sample_values(cls, random: np.random.Generator) -> Mapping[str, Any]:
        """Return a second of noise, since the number of samples must suit the rate."""
        audio = random.uniform(-1, 1, (1, SAMPLE_RATE_HZ)).astype(np.float32)
        return {"audio": audio, "sample_rate": np.full((1, 1), SAMPLE_RATE_HZ, np.int64)}

    def conflicts(self) -> list[str]:
        """Return the problems of the clips' lengths that do not depend on the backbone."""
        short_s = [length_s for length_s in self._lengths_s() if length_s < SHORTEST_S]
        problems = [
            f"audio must be at least {SHORTEST_S:g} s long, got {length_s:.2f} s" for length_s in short_s
        ]
        return problems + self.too_long(LONGEST_S)

    def too_long(self, longest_s: float) -> list[str]:
        """Return a sentence for each clip length that is too long.

        Args:
            longest_s: Longest clip that the backbone sees completely, in seconds.
        """
        return [
            f"audio must be at most {longest_s:.2f} s long, got {length_s:.2f} s;"
            " try wakeword_stream for longer ones"
            for length_s in self._lengths_s()
            if length_s > longest_s
        ]

    def _lengths_s(self) -> list[float]:
        return [self.audio.shape[1] / int(rate) for rate in np.unique(self.sample_rate)]


@dataclass(frozen=True)
class Decisions(Event):
    """Decisions of the heads on clips.

    Attributes:
        word: Words of the columns, [batch, words], texts.
        probability: Probabilities, [batch, words], float32, 0 to 1; 0 in a silent clip.
        threshold: Smallest probabilities at which a word is detected, [batch, words], float32.
        detected: True where a word is detected, [batch, words], bool.
    """

    word: Annotated[Names, _WORD]
    probability: Annotated[Float32, _PROBABILITY]
    threshold: Annotated[Float32, _THRESHOLD]
    detected: Annotated[NDArray[np.bool_], _DETECTED]


@dataclass(frozen=True)
class DecideRequest(Clips):
    """Decide from clips and their embeddings which wake words were said.

    Attributes:
        embedding: Embeddings from the backbone, [batch, channels], float32.
        rms: Root mean square of each clip's samples, [batch, 1], float32.
        words: Words to listen for, [batch, words], texts; None means every loaded word.

    Raises:
        InvalidRequest: A rule is broken, as in :class:`Clips`.
    """

    model: ClassVar[str] = "wakeword_decide"
    events: ClassVar[tuple[type[Event], ...]] = (Decisions,)

    embedding: Annotated[Float32, _EMBEDDING]
    rms: Annotated[Float32, _GIVEN_RMS]
    words: Annotated[Names | None, _WORDS] = None


@dataclass(frozen=True)
class ClipDecisions(Decisions):
    """Decisions of the heads on clips, with the loudness of the clips.

    Attributes:
        rms: Root mean square of each clip's original samples, [batch, 1], float32, 0 to 1.
    """

    rms: Annotated[Float32, _RMS]


@dataclass(frozen=True)
class ClipsRequest(Clips):
    """Detect wake words in clips of equal length.

    Attributes:
        words: Words to listen for, [batch, words], texts; None means every loaded word.

    Raises:
        InvalidRequest: A rule is broken, as in :class:`Clips`.
    """

    model: ClassVar[str] = "wakeword"
    events: ClassVar[tuple[type[Event], ...]] = (ClipDecisions,)

    words: Annotated[Names | None, _WORDS] = None


@dataclass(frozen=True)
class StreamDecisions(Event):
    """Results of the windows that a piece of a stream completed.

    Attributes:
        word: Words of the columns, [1, words], texts.
        end_s: End of each window, [1, windows], float64, seconds from the stream's beginning.
        probability: Probabilities, [1, windows, words], float32, 0 to 1.
        threshold: Smallest probabilities at which a word is detected, [1, windows, words], float32.
        event_word: Word of each detection outside its word's cooldown, [1, events], texts.
        event_time_s: End of each event's window, [1, events], float64.
        event_probability: Probability of each event, [1, events], float32.
    """

    word: Annotated[Names, _STREAM_WORD]
    end_s: Annotated[Float64, _END_S]
    probability: Annotated[Float32, _STREAM_PROBABILITY]
    threshold: Annotated[Float32, _STREAM_THRESHOLD]
    event_word: Annotated[Names, _EVENT_WORD]
    event_time_s: Annotated[Float64, _EVENT_TIME_S]
    event_probability: Annotated[Float32, _EVENT_PROBABILITY]


@dataclass(frozen=True)
class ListenTurn(Request):
    """Next samples of a stream.

    Attributes:
        pcm: Mono samples at 16 kHz, [1, samples], int16; may be empty.

    Raises:
        InvalidRequest: The samples break their rule.
    """

    model: ClassVar[str] = "wakeword_stream"

    pcm: Annotated[NDArray[np.int16], _PCM]


@dataclass(frozen=True)
class ListenRequest(Request):
    """Open a session for a stream, whose turns carry the samples.

    Attributes:
        words: Words to listen for, [1, words], texts; None means every loaded word.
        cooldown_ms: Time after an event during which its word triggers no other event, in milliseconds; None
            means the model's default.
        sample_rate: Sampling rate in Hz; any other value than 16,000 is refused with an explanation.

    Raises:
        InvalidRequest: A field breaks its rule; all such fields are named.
    """

    model: ClassVar[str] = "wakeword_stream"
    events: ClassVar[tuple[type[Event], ...]] = (StreamDecisions,)
    streams: ClassVar[bool] = False
    turn: ClassVar[type[Request] | None] = ListenTurn

    words: Annotated[Names | None, _STREAM_WORDS] = None
    cooldown_ms: Annotated[int | None, _COOLDOWN] = None
    sample_rate: Annotated[int, _STREAM_RATE] = SAMPLE_RATE_HZ
