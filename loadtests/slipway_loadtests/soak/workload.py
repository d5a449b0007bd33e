"""Requests to each served model: valid ones from a seed, and the same with one field that breaks its rule.

An :class:`Ask` is one request, or one session of a few turns; :func:`answers` sends it. :func:`same` compares
two answers to one ask and ignores the times that the server measured.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from slipway_client.client import Client
from slipway_client.served_model import ServedModel
from slipway_loadtests.load import payloads
from slipway_serving.families.airimu.request import CorrectionRequest, CorrectionStreamRequest, CorrectionTurn
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.families.matrix_game.keys import actions_of
from slipway_serving.families.matrix_game.request import REQUESTS
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ, ClipsRequest, ListenRequest, ListenTurn
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.requests import Request

TURNS = 2
"""Number of turns of a session."""
_PIECE_S = 0.5
# Answers from different Triton batches differ in their last bits, and so can a rounded pixel.
_CLOSE, _CLOSE_PIXELS = 1e-3, 1


@dataclass(frozen=True)
class Ask:
    """One request, or one session.

    Attributes:
        opening: Request, or the request that opens the session.
        turns: Turns of the session, in their order.
        refused_for: Name of the field for which the server must refuse the request; "" if it must answer.
    """

    opening: Request
    turns: tuple[Request, ...] = ()
    refused_for: str = ""


@dataclass(frozen=True)
class Kind:
    """One kind of traffic.

    Attributes:
        model: Name of the served model.
        share: Relative frequency of this kind; a video takes as long as many short requests.
        make: Function that returns the valid request of a seed.
        bad: Functions that turn a field's value into one that breaks its rule, by name of the field of the
            request or of its first turn.
        fit: Function that returns the kind for what the served model says about itself; None if the requests
            suit every checkpoint.
    """

    model: str
    share: int
    make: Callable[[int], Ask]
    bad: Mapping[str, Callable[[Any], Any]]
    fit: Callable[[ServedModel], Kind] | None = None


def spoiled(ask: Ask, field: str, change: Callable[[Any], Any]) -> Ask:
    """Return an ask with one field that breaks its rule, which the client's own checks would not allow."""
    at_start = any(each.name == field for each in dataclasses.fields(ask.opening))  # type: ignore[arg-type]
    bad = copy.copy(ask.opening if at_start else ask.turns[0])
    object.__setattr__(bad, field, change(getattr(bad, field)))
    changed = {"opening": bad} if at_start else {"turns": (bad, *ask.turns[1:])}
    return replace(ask, refused_for=field, **changed)


def stated(kind: Kind, fields: Mapping[str, Any]) -> Kind:
    """Return a kind whose requests have the given values in some fields.

    Raises:
        InvalidRequest: The requests have no such field.
    """
    if not fields:
        return kind
    known = {each.name for each in dataclasses.fields(kind.make(0).opening)}  # type: ignore[arg-type]
    if unknown := sorted(set(fields) - known):
        raise InvalidRequest(f"soak: fields of {kind.model} must be of {sorted(known)}, got {unknown}")

    def make(seed: int) -> Ask:
        ask = kind.make(seed)
        return replace(ask, opening=replace(ask.opening, **fields))  # type: ignore[type-var]

    return replace(kind, make=make)


def answers(client: Client, ask: Ask, limit_s: float) -> Generator[Event, None, None]:
    """Send an ask and yield its events as they arrive; closing the generator cancels the request.

    Args:
        client: Connected client.
        ask: Valid or invalid ask.
        limit_s: Time limit of each request that has no limit of its own, in seconds.

    Raises:
        SlipwayError: The request fails as in :meth:`Client.stream` or :meth:`ClientSession.step`.
    """
    if not ask.turns:
        yield from client.stream(
            ask.opening, timeout_s=None if hasattr(ask.opening, "timeout_s") else limit_s
        )
        return
    with client.session(ask.opening) as session:
        for number, turn in enumerate(ask.turns, 1):
            yield from session.step(turn, last=number == len(ask.turns), timeout_s=limit_s)


def same(first: Sequence[Event], other: Sequence[Event]) -> bool:
    """Return whether two answers to one ask agree."""
    return len(first) == len(other) and all(
        type(one) is type(two) and all(map(_agree, _said(one), _said(two)))
        for one, two in zip(first, other, strict=True)
    )


def _said(event: Event) -> list[Any]:
    """Return the values of an event without the numbers of seconds, which come from the server's clock."""
    values = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}  # type: ignore[arg-type]
    return [value for name, value in values.items() if not (name.endswith("_s") and np.isscalar(value))]


def _agree(one: Any, two: Any) -> bool:
    if not (isinstance(one, np.ndarray) and isinstance(two, np.ndarray)):
        return bool(one == two)
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.dtype.kind not in "fu":
        return bool(np.array_equal(one, two))
    # Compare as float64, because a difference of unsigned numbers would wrap around.
    distance = np.abs(one.astype(np.float64) - two)
    return bool((distance <= (_CLOSE_PIXELS if one.dtype.kind == "u" else _CLOSE * (1 + np.abs(two)))).all())


def _text_to_video(limit_s: float, seed: int) -> Ask:
    return Ask(
        TextToVideoRequest(
            payloads.prompt(np.random.default_rng(seed)), frames=5, height=48, width=48, steps=4, seed=seed,
            output="frames", timeout_s=limit_s,
        )
    )  # fmt: skip


def _image_to_video(limit_s: float, seed: int) -> Ask:
    return Ask(
        ImageToVideoRequest(
            payloads.picture(seed), payloads.said(seed), seconds=1.2, height=32, width=48, steps=2, seed=seed,
            output="frames", timeout_s=limit_s,
        )
    )  # fmt: skip


def _world(mode: str, seed: int) -> Ask:
    random, opening = np.random.default_rng(seed), REQUESTS[mode](image=payloads.land(seed, mode), seed=seed)
    turn: Any = opening.turn
    held = [payloads.keys(random, mode) for _ in range(TURNS)]
    return Ask(opening, tuple(turn(**actions_of(each, mode)) for each in held))


def _clip(seed: int) -> Ask:
    rate = np.array([[SAMPLE_RATE_HZ]], np.int64)
    return Ask(ClipsRequest(payloads.speech(seed, 1.0, SAMPLE_RATE_HZ)[None], rate))


def _listening(seed: int) -> Ask:
    pieces = [payloads.speech(seed + number, _PIECE_S, SAMPLE_RATE_HZ) for number in range(TURNS)]
    return Ask(ListenRequest(), tuple(ListenTurn((32_767 * each).astype(np.int16)[None]) for each in pieces))


def _recordings(seed: int) -> Ask:
    return Ask(CorrectionRequest(**payloads.motion(seed, 2, payloads.IMU_HZ)))


def _sensor(seed: int) -> Ask:
    frames = round(_PIECE_S * payloads.IMU_HZ)
    pieces = [payloads.motion(seed + number, 1, frames) for number in range(TURNS)]
    return Ask(CorrectionStreamRequest(), tuple(CorrectionTurn(**each) for each in pieces))


def not_a_number(array: Any) -> Any:
    """Return an array of the same shape filled with NaN."""
    return np.full_like(array, np.nan)


def kinds(limit_s: float) -> tuple[Kind, ...]:
    """Return traffic with contents of real users, small enough for tiny checkpoints.

    Args:
        limit_s: Time limit of each video, in seconds.
    """
    numbers = {"steps": lambda _: 0, "seed": lambda _: -1}
    pressed = {"keyboard_cond": lambda keys: keys + 2}
    return (
        Kind("wan_t2v", 2, partial(_text_to_video, limit_s), numbers),
        Kind("framepack_i2v", 1, partial(_image_to_video, limit_s), numbers),
        *(Kind(REQUESTS[mode].model, 1, partial(_world, mode), pressed) for mode in REQUESTS),
        Kind("wakeword", 8, _clip, {"audio": not_a_number, "sample_rate": np.zeros_like}),
        Kind("wakeword_stream", 8, _listening, {"sample_rate": lambda _: 8000}),
        Kind("airimu", 8, _recordings, {"acc": not_a_number, "gyro": not_a_number}),
        Kind("airimu_stream", 8, _sensor, {"acc": not_a_number}),
    )
