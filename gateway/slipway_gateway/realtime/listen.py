"""The socket of microphones: sound in, probabilities and detections of wake words out.

One task reads the socket and feeds the decoder, and one sends the decoded samples to a session of the served
model. What the model answers goes to the caller at once. The session ends on the server however the socket
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway_client import AsyncSession, ListenRequest, ListenTurn, StreamDecisions
from slipway_client.listening import PIECE_SAMPLES, padded_size
from slipway_gateway.realtime.audio import DECODERS, SAMPLE_RATE_HZ, Decoder, Pcm
from slipway_gateway.realtime.channel import CallerSilent, Channel, Disconnected, Message, Refused
from slipway_gateway.realtime.failures import SessionFailures
from slipway_gateway.realtime.limits import BLOCK_S, IDLE_S, START_S, CloseCode
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.protocol.texts import short

_WHERE = "listen"
_PIECE_BYTES = 256 << 10
_START_FIELDS = {"type", "words", "cooldown_ms", "format", "sample_rate"}


@dataclass(frozen=True)
class Listening:
    """What a caller asks for with `listen.start`.

    Attributes:
        request: Request that opens the session.
        format: Format of the sound, a key of :data:`~slipway_gateway.realtime.audio.DECODERS`.
    """

    request: ListenRequest
    format: str


async def serve_listen(channel: Channel, replicas: Replicas, failures: SessionFailures) -> None:
    """Serve one microphone until the socket ends.

    Args:
        channel: Accepted socket.
        replicas: Replicas of the gateway.
        failures: Failures of sessions, to which that of this one is added.
    """
    try:
        listening = await _start(channel)

        async def tell(position: int, depth: int) -> None:
            await channel.send({"type": "queue_status", "position": position, "queue_depth": depth})

        place = await replicas.take_session(ListenRequest.model, timeout_s=IDLE_S, on_position=tell)
        async with place, place.replica.client.session(listening.request) as session:
            await channel.send({"type": "listen.ready"})
            await _run(channel, session, DECODERS[listening.format]())
        await channel.close(CloseCode.DONE)
    except Disconnected:
        return
    except SlipwayError as error:
        failures.record(f"listen_{secrets.token_hex(8)}", ListenRequest.model, error)
        await channel.fail(error)


async def _start(channel: Channel) -> Listening:
    try:
        message = await channel.receive(timeout_s=START_S)
    except TimeoutError:
        raise CallerSilent(f"{_WHERE}: listen.start must come within {START_S:g} s") from None
    if isinstance(message, bytes) or message["type"] != "listen.start":
        got = "a binary message" if isinstance(message, bytes) else short(message["type"])
        raise InvalidRequest(f"{_WHERE}: first message must be listen.start, got {got}")
    return parse_listen_start(message)


def parse_listen_start(message: Message) -> Listening:
    """Parse a `listen.start` message.

    Raises:
        InvalidRequest: A field breaks its rule.
    """
    if unknown := message.keys() - _START_FIELDS:
        names = ", ".join(sorted(_START_FIELDS - {"type"}))
        raise InvalidRequest(f"{_WHERE}: {short(min(unknown))} must be left out; try one of {names}")
    sound, rate = message.get("format", "pcm16"), message.get("sample_rate", SAMPLE_RATE_HZ)
    if not isinstance(sound, str) or sound not in DECODERS:
        raise InvalidRequest(f"{_WHERE}: format must be {' or '.join(DECODERS)}, got {short(sound)}")
    if sound == "pcm16" and rate != SAMPLE_RATE_HZ:
        raise InvalidRequest(
            f"{_WHERE}: sample_rate must be {SAMPLE_RATE_HZ}, got {short(rate)}; try resampling the sound"
        )
    words = message.get("words")
    if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise InvalidRequest(f"{_WHERE}: words must be a list of texts, got {short(words)}")
    values: dict[str, Any] = {"words": np.array([words], np.object_)} if words else {}
    if message.get("cooldown_ms") is not None:
        values["cooldown_ms"] = message["cooldown_ms"]
    return Listening(ListenRequest(**values), sound)


async def _run(channel: Channel, session: AsyncSession, decoder: Decoder) -> None:
    """Read sound and answer until the caller stops."""
    answering = asyncio.create_task(_answer(channel, session, decoder.samples()))
    reading = asyncio.create_task(_read(channel, decoder))
    try:
        await asyncio.wait({answering, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            reading.result()  # the caller is gone or broke a rule, or it stopped
            await answering
        answering.result()
    finally:
        decoder.close()
        for task in (answering, reading):
            task.cancel()
        await asyncio.gather(answering, reading, return_exceptions=True)


async def _read(channel: Channel, decoder: Decoder) -> None:
    """Feed the decoder until `listen.stop`."""
    while True:
        try:
            message = await channel.receive(binary_bytes=_PIECE_BYTES, timeout_s=IDLE_S)
        except TimeoutError:
            raise CallerSilent(f"{_WHERE}: the next piece of sound must come within {IDLE_S:g} s") from None
        if isinstance(message, bytes):
            await decoder.feed(message)
        elif message["type"] == "listen.stop":
            await decoder.end()
            return
        else:
            raise Refused(
                f"{_WHERE}: message must be sound or listen.stop, got {short(message['type'])}",
                CloseCode.WRONG_KIND,
            )


async def _answer(channel: Channel, session: AsyncSession, samples: AsyncIterator[Pcm]) -> None:
    """Send samples to the model and its answers to the caller, until the end of the sound."""
    size = 0
    async for pcm in samples:
        for at in range(0, pcm.size, PIECE_SAMPLES):
            piece = pcm[at : at + PIECE_SAMPLES]
            size += piece.size
            await _turn(channel, session, piece, last=False)
    rest = np.zeros(padded_size(size, SAMPLE_RATE_HZ, PIECE_SAMPLES) - size, np.int16)
    await _turn(channel, session, rest, last=True)
    await channel.send({"type": "listen.done", "seconds": round(size / SAMPLE_RATE_HZ, 3)})


async def _turn(channel: Channel, session: AsyncSession, pcm: Pcm, *, last: bool) -> None:
    async with contextlib.aclosing(
        session.step(ListenTurn(pcm[None]), last=last, timeout_s=BLOCK_S)
    ) as events:
        async for decisions in events:
            assert isinstance(decisions, StreamDecisions)
            for message in messages_of(decisions):
                await channel.send(message)


def messages_of(decisions: StreamDecisions) -> list[Message]:
    """Return the messages for the windows that a piece completed: each window, then its detections."""
    words = [str(word) for word in decisions.word[0]]
    detections = list(
        zip(
            map(str, decisions.event_word[0]),
            decisions.event_time_s[0].tolist(),
            decisions.event_probability[0].tolist(),
            strict=True,
        )
    )
    found: list[Message] = []
    for row, end_s in enumerate(decisions.end_s[0].tolist()):
        found.append(
            {
                "type": "listen.windows",
                "end_s": end_s,
                "words": words,
                "probability": decisions.probability[0, row].tolist(),
                "threshold": decisions.threshold[0, row].tolist(),
            }
        )
        found += [
            {"type": "listen.detection", "word": word, "time_s": time_s, "probability": probability}
            for word, time_s, probability in detections
            if time_s == end_s
        ]
    return found
