"""Corrections of inertial recordings: whole ones by POST, and chunks over a socket.

A recording is JSON, a CSV file, or an npz file with `acc` and `gyro`. Both ways use a session of the model
for streams, whose corrections equal those of a whole recording. So the size of the body is the only limit of
a recording.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from slipway_client import AsyncSession, Corrections, CorrectionStreamRequest, CorrectionTurn
from slipway_client.imu.read import read_recording
from slipway_client.imu.units import AccelerationUnit, RateUnit, Units
from slipway_gateway.errors import ApiError
from slipway_gateway.realtime.channel import Channel, Disconnected, Message
from slipway_gateway.realtime.limits import BLOCK_S, CONTROL_BYTES, IDLE_S, PIECE_BYTES, START_S, CloseCode
from slipway_gateway.realtime.values import build, parse
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import DeadlineExceeded, InvalidRequest, SlipwayError, raise_all
from slipway_serving.protocol.texts import short

MOST_BYTES = 32 << 20
_CHUNK_FRAMES = 2048
_WHERE = "imu"
_SIGNALS = ("acc", "gyro")
_FIELDS = (*_SIGNALS, "initial_rotation", "dt")


@dataclass(frozen=True, eq=False)
class Recording:
    """Recording to correct.

    Attributes:
        opening: Request that opens the session.
        turn: All frames.
        dt: Time between two frames, in seconds; None if it is not known.
    """

    opening: CorrectionStreamRequest
    turn: CorrectionTurn
    dt: float | None


async def correct_recording(
    request: Request, replicas: Replicas, rate_unit: str | None, acceleration_unit: str | None
) -> dict[str, Any]:
    """Answer `POST /v1/imu`.

    Args:
        request: Request, whose body is the recording.
        replicas: Replicas of the gateway.
        rate_unit: Unit of a CSV file's rates of rotation.
        acceleration_unit: Unit of a CSV file's acceleration.

    Raises:
        SlipwayError: The recording is refused, or the model fails.
    """
    body = await _body(request)
    units = checked_units(rate_unit, acceleration_unit)
    recording = await asyncio.to_thread(read_body, body, units)
    parts = await correct_whole(replicas, recording.opening, recording.turn)
    frames = recording.turn.acc.shape[1]
    return await asyncio.to_thread(_answer, parts, frames, recording.dt)


async def correct_whole(
    replicas: Replicas, opening: CorrectionStreamRequest, recording: CorrectionTurn
) -> list[Corrections]:
    """Correct a whole recording in one session.

    Args:
        replicas: Replicas of the gateway.
        opening: Request that opens the session.
        recording: All frames.

    Raises:
        SlipwayError: The recording is refused, or the model fails.
    """
    frames = recording.acc.shape[1]
    parts: list[Corrections] = []
    place = await replicas.take_session(CorrectionStreamRequest.model, timeout_s=IDLE_S)
    async with place, place.replica.client.session(opening) as session:
        for start in range(0, frames, _CHUNK_FRAMES):
            end = min(start + _CHUNK_FRAMES, frames)
            turn = CorrectionTurn(recording.acc[:, start:end], recording.gyro[:, start:end])
            parts += await _turn(session, turn, last=end == frames)
    return parts


async def serve_imu(channel: Channel, replicas: Replicas) -> None:
    """Serve one recording in chunks until the socket ends.

    Args:
        channel: Accepted socket.
        replicas: Replicas of the gateway.
    """
    try:
        opening = await _start(channel)
        place = await replicas.take_session(CorrectionStreamRequest.model, timeout_s=IDLE_S)
        async with place, place.replica.client.session(opening) as session:
            await channel.send({"type": "imu.ready"})
            await _run(channel, session)
        await channel.close(CloseCode.DONE)
    except Disconnected:
        return
    except SlipwayError as error:
        await channel.fail(error)


async def _start(channel: Channel) -> CorrectionStreamRequest:
    try:
        message = await channel.receive(timeout_s=START_S)
    except TimeoutError:
        raise DeadlineExceeded(f"{_WHERE}: imu.start must come within {START_S:g} s") from None
    if isinstance(message, bytes) or message["type"] != "imu.start":
        got = "a binary message" if isinstance(message, bytes) else short(message["type"])
        raise InvalidRequest(f"{_WHERE}: first message must be imu.start, got {got}")
    return _opening({name: value for name, value in message.items() if name != "type"})


async def _run(channel: Channel, session: AsyncSession) -> None:
    """Answer chunks until `imu.stop`."""
    frames = sent = 0
    while True:
        try:
            message = await channel.receive(
                json_bytes=PIECE_BYTES, binary_bytes=CONTROL_BYTES, timeout_s=IDLE_S
            )
        except TimeoutError:
            raise DeadlineExceeded(f"{_WHERE}: the next chunk must come within {IDLE_S:g} s") from None
        if isinstance(message, bytes) or message["type"] not in ("imu.chunk", "imu.stop"):
            got = "a binary message" if isinstance(message, bytes) else short(message["type"])
            raise InvalidRequest(f"{_WHERE}: message must be imu.chunk or imu.stop, got {got}")
        is_last = message["type"] == "imu.stop"
        values = {name: value for name, value in message.items() if name != "type"}
        turn = _empty_turn() if is_last and not values else _turn_of(values)
        frames += turn.acc.shape[1]
        for corrections in await _turn(session, turn, last=is_last):
            answer: Message = {"type": "imu.corrections", "first_frame": sent, **_arrays([corrections])}
            sent += corrections.corrected_acc.shape[1]
            await channel.send(answer)
        if is_last:
            await channel.send({"type": "imu.done", "frames": frames})
            return


async def _turn(session: AsyncSession, turn: CorrectionTurn, *, last: bool) -> list[Corrections]:
    found = []
    async for event in session.step(turn, last=last, timeout_s=BLOCK_S):
        assert isinstance(event, Corrections)
        found.append(event)
    return found


async def _body(request: Request) -> bytes:
    """Read the body, or the part `file` of a form, up to the limit.

    Raises:
        ApiError: The body is too large.
    """
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        form = await request.form(max_files=1, max_fields=4)
        file = form.get("file")
        if file is None or isinstance(file, str):
            raise InvalidRequest(f"{_WHERE}: file must be a file of the form, got none")
        body = await file.read(MOST_BYTES + 1)
        await form.close()
    else:
        received = bytearray()
        async for piece in request.stream():
            received += piece
            if len(received) > MOST_BYTES:
                break
        body = bytes(received)
    if len(body) > MOST_BYTES:
        raise ApiError(
            f"{_WHERE}: body must have at most {MOST_BYTES >> 20} MiB; try WS /v1/imu for longer recordings",
            status=413,
            code="body_too_large",
        )
    return body


def read_body(body: bytes, units: Units) -> Recording:
    """Read a recording from a body: JSON, npz or CSV, told apart by the first bytes.

    Raises:
        InvalidRequest: The recording breaks a rule.
    """
    if body.lstrip()[:1] == b"{":
        return _recording(_json(body))
    if body[:2] == b"PK":
        return _recording(_npz(body))
    if not body.strip():
        raise InvalidRequest(f"{_WHERE}: body must be a recording as JSON, CSV or npz, got nothing")
    with tempfile.TemporaryDirectory(prefix="slipway-imu") as folder:
        file = Path(folder) / "recording.csv"
        file.write_bytes(body)
        try:
            read = read_recording(file, units=units)
        except InvalidRequest as error:
            raise InvalidRequest(f"{_WHERE}: {str(error).replace(str(file), 'recording.csv')}") from None
    values = {"acc": read.acc.astype(np.float32)[None], "gyro": read.gyro.astype(np.float32)[None]}
    steps = np.diff(read.time_ns)
    dt = float(np.median(steps)) / 1e9 if len(steps) else None
    return Recording(CorrectionStreamRequest(), CorrectionTurn(**values), dt)


def _json(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{_WHERE}: body must be JSON, CSV or npz, got invalid JSON") from None
    return dict(values)


def _npz(body: bytes) -> dict[str, Any]:
    """Return the arrays of a npz file, whose sizes are checked before anything is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entries = archive.infolist()
            if len(entries) > len(_FIELDS) or sum(entry.file_size for entry in entries) > 2 * MOST_BYTES:
                raise InvalidRequest(
                    f"{_WHERE}: npz must have at most {len(_FIELDS)} arrays of"
                    f" {2 * MOST_BYTES >> 20} MiB together"
                )
        with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InvalidRequest(
            f"{_WHERE}: body must be a npz file of arrays, got a damaged one ({error})"
        ) from None


def _recording(values: dict[str, Any]) -> Recording:
    problems = [
        f"{short(name)} must be left out; try one of {', '.join(_FIELDS)}"
        for name in values
        if name not in _FIELDS
    ]
    raise_all(_WHERE, problems)
    dt = values.pop("dt", None)
    if isinstance(dt, np.ndarray):
        dt = dt.item() if dt.size == 1 else float("nan")
    if dt is not None and not (type(dt) in (int, float) and 0 < dt < 3600):
        raise InvalidRequest(f"{_WHERE}: dt must be above 0 and below 3600 s, got {short(dt)}")
    rotation = values.pop("initial_rotation", None)
    opening = _opening({} if rotation is None else {"initial_rotation": rotation})
    return Recording(opening, _turn_of(values), None if dt is None else float(dt))


def _opening(values: dict[str, Any]) -> CorrectionStreamRequest:
    rotation = values.get("initial_rotation")
    if isinstance(rotation, np.ndarray):
        values = values | {"initial_rotation": rotation.tolist()}
    found = parse(CorrectionStreamRequest, values, _WHERE)
    opening = build(CorrectionStreamRequest, found, _WHERE)
    assert isinstance(opening, CorrectionStreamRequest)
    return opening


def _turn_of(values: dict[str, Any]) -> CorrectionTurn:
    arrays = {name: _signal(name, value) for name, value in values.items() if name in _SIGNALS}
    others = {name: value for name, value in values.items() if name not in _SIGNALS}
    parse(CorrectionTurn, others, _WHERE)
    turn = build(CorrectionTurn, arrays, _WHERE)
    assert isinstance(turn, CorrectionTurn)
    return turn


def _signal(name: str, value: Any) -> NDArray[np.float32]:
    """Return a signal as [1, frames, 3] from [frames, 3]."""
    try:
        array = np.array(value)
        if array.ndim == 2 and array.shape[1] == 3 and array.dtype.kind in "fiu":
            with np.errstate(over="ignore"):
                return array.astype(np.float32)[None]
    except (ValueError, OverflowError, TypeError):
        pass
    raise InvalidRequest(f"{_WHERE}: {name} must be numbers [frames, 3], got {short(value)}")


def _empty_turn() -> CorrectionTurn:
    return CorrectionTurn(np.zeros((1, 0, 3), np.float32), np.zeros((1, 0, 3), np.float32))


def checked_units(rate: str | None, acceleration: str | None) -> Units:
    """Return the units that a caller states.

    Raises:
        InvalidRequest: A unit is unknown.
    """
    problems = [
        f"{name} must be {' or '.join(get_args(kind))}, got {short(value)}"
        for name, value, kind in (
            ("rate_unit", rate, RateUnit),
            ("acceleration_unit", acceleration, AccelerationUnit),
        )
        if value is not None and value not in get_args(kind)
    ]
    raise_all(_WHERE, problems)
    return Units(rate=rate, acceleration=acceleration)  # type: ignore[arg-type]  # checked above


def _answer(parts: list[Corrections], frames: int, dt: float | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"object": "imu.corrections", "frames": frames, **_arrays(parts)}
    return answer | ({"time_s": [round(frame * dt, 9) for frame in range(frames)]} if dt is not None else {})


def _arrays(parts: list[Corrections]) -> dict[str, Any]:
    """Return the arrays of corrections, [frames, 3] each; covariances are absent if the network has none."""
    found = {}
    for field in fields(Corrections):
        arrays = [array for part in parts if (array := getattr(part, field.name)) is not None]
        if arrays:
            found[field.name] = np.concatenate(arrays, axis=1)[0].astype(float).tolist()
    return found
