"""Trajectories of a recording before and after its correction, and their errors against the ground truth.

A form brings the signals, as `POST /v1/imu` takes them, and perhaps the ground truth. The model corrects the
whole recording, since it learns a sensor's errors while the sensor rests. Then a part of some seconds is
integrated twice: with the raw signals and with the corrected ones.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field
from starlette.datastructures import FormData, UploadFile

from slipway_client import Corrections, CorrectionStreamRequest, CorrectionTurn
from slipway_client.imu.read import read_recording, write_euroc
from slipway_client.imu.recording import Motion, Recording
from slipway_client.imu.synthetic import Style, make_recording
from slipway_client.imu.trajectory import errors, integrate
from slipway_client.imu.units import Units
from slipway_gateway.errors import ApiError
from slipway_gateway.realtime.imu import MOST_BYTES, correct_whole, read_body
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import InvalidRequest

MOST_SECONDS = 120.0
_WHERE = "imu"
_MOST_POINTS = 1500
_SEGMENT_FRAMES = 200
_EXAMPLE_S, _EXAMPLE_REST_S = 20.0, 2.0
_EXAMPLE_FILES = {
    "signals": "mav0/imu0/data.csv",
    "ground_truth": "mav0/state_groundtruth_estimate0/data.csv",
}
Points = list[tuple[float, float, float]]

_FILE = {"type": "string", "format": "binary"}
TRAJECTORY_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {**_FILE, "description": "Signals: CSV, or npz or JSON with dt."},
                        "ground_truth": {**_FILE, "description": "Ground truth of a CSV file, as CSV."},
                    },
                }
            }
        },
    }
}
"""Description of the form for OpenAPI."""


class TrajectoryErrors(BaseModel):
    """Errors of a trajectory against the ground truth."""

    ate_m: float = Field(description="Mean error of the position, in metres.")
    aoe_deg: float = Field(description="Mean error of the rotation, in degrees.")
    rte_m: float | None = Field(
        description="Error of the position after 200 frames; null if there are fewer."
    )
    roe_deg: float | None = Field(description="Error of the rotation after 200 frames, likewise.")


class BothErrors(BaseModel):
    """Errors before and after the correction."""

    raw: TrajectoryErrors
    corrected: TrajectoryErrors


class TrajectoryAnswer(BaseModel):
    """Trajectories of a part of a recording."""

    object: str = "imu.trajectory"
    frames: int = Field(description="Number of frames of the recording.")
    recording_s: float = Field(description="Length of the recording, in seconds.")
    start_s: float = Field(description="Beginning of the trajectories, in seconds.")
    time_s: list[float] = Field(description="Time of each point since that beginning, in seconds.")
    raw: Points = Field(description="Positions by the raw signals, in metres.")
    corrected: Points = Field(description="Positions by the corrected signals, in metres.")
    truth: Points | None = Field(description="Positions by the ground truth, in metres; null without one.")
    errors: BothErrors | None = Field(description="Errors against the ground truth; null without one.")
    mean_correction_acc: tuple[float, float, float] = Field(description="Mean of the part, in m/s².")
    mean_correction_gyro: tuple[float, float, float] = Field(description="Mean of the part, in rad/s.")


async def compare_trajectories(
    request: Request, replicas: Replicas, units: Units, start_s: float, seconds: float
) -> TrajectoryAnswer:
    """Answer `POST /v1/imu/trajectory`.

    Args:
        request: Request with the form.
        replicas: Replicas of the gateway.
        units: Units of a CSV file that the caller states.
        start_s: Beginning of the part, in seconds.
        seconds: Length of the part, in seconds.

    Raises:
        SlipwayError: A file is refused, or the model fails.
    """
    signals, truth = await _files(request)
    recording = await run_in_threadpool(read_files, signals, truth, units)
    opening = CorrectionStreamRequest(recording.rotation_at(0).astype(np.float32)[None])
    turn = CorrectionTurn(recording.acc.astype(np.float32)[None], recording.gyro.astype(np.float32)[None])
    parts = await correct_whole(replicas, opening, turn)
    return await run_in_threadpool(compare, recording, parts, start_s, seconds)


async def _files(request: Request) -> tuple[bytes, bytes | None]:
    """Return the parts of the form.

    Raises:
        ApiError: The body is no form, or a part is too large.
        InvalidRequest: There are no signals.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ApiError(
            f"{_WHERE}: body must be a form (multipart/form-data) with file, got another type",
            status=415,
            code="unsupported_media_type",
            final=True,
        )
    form = await request.form(max_files=2, max_fields=4)
    try:
        signals, truth = await _part(form, "file"), await _part(form, "ground_truth")
    finally:
        await form.close()
    if signals is None:
        raise InvalidRequest(f"{_WHERE}: file must be a file of the form, got none")
    return signals, truth


async def _part(form: FormData, name: str) -> bytes | None:
    file = form.get(name)
    if not isinstance(file, UploadFile):
        return None
    content = await file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ApiError(
            f"{_WHERE}: {name} must have at most {MOST_BYTES >> 20} MiB",
            status=413,
            code="body_too_large",
            param=name,
        )
    return content


def read_files(signals: bytes, truth: bytes | None, units: Units) -> Recording:
    """Read a recording with its ground truth.

    Args:
        signals: Content of a CSV, npz or JSON file.
        truth: Content of a CSV file; None without ground truth.
        units: Units that the caller states.

    Raises:
        InvalidRequest: A file breaks a rule.
    """
    if signals[:2] == b"PK" or signals.lstrip()[:1] == b"{":
        if truth is not None:
            raise InvalidRequest(
                f"{_WHERE}: ground_truth must come with signals as CSV, whose times it needs, got npz or JSON"
            )
        read = read_body(signals, units)
        if read.dt is None:
            raise InvalidRequest(
                f"{_WHERE}: dt must be given, the time between two frames in seconds, got none"
            )
        acc, gyro = read.turn.acc[0].astype(float), read.turn.gyro[0].astype(float)
        time_ns = np.round(np.arange(len(acc)) * read.dt * 1e9).astype(np.int64)
        return Recording("recording", time_ns, acc, gyro)
    with tempfile.TemporaryDirectory(prefix="slipway-imu") as folder:
        files = {"recording.csv": signals, "ground_truth.csv": truth}
        paths = {name: Path(folder) / name for name, content in files.items() if content is not None}
        for name, path in paths.items():
            path.write_bytes(files[name] or b"")
        try:
            return read_recording(paths["recording.csv"], paths.get("ground_truth.csv"), units)
        except InvalidRequest as error:
            raise InvalidRequest(f"{_WHERE}: {str(error).replace(f'{folder}/', '')}") from None


def compare(
    recording: Recording, parts: list[Corrections], start_s: float, seconds: float
) -> TrajectoryAnswer:
    """Integrate a part of a recording with the raw and with the corrected signals.

    Args:
        recording: Whole recording.
        parts: Corrections of all frames, in their order.
        start_s: Beginning of the part, in seconds.
        seconds: Length of the part, in seconds.

    Raises:
        InvalidRequest: The part has fewer than two frames.
    """
    time_s = recording.time_s
    frames = np.flatnonzero((time_s >= start_s) & (time_s <= start_s + seconds))
    if len(frames) < 2:
        raise InvalidRequest(
            f"{_WHERE}: start_s must leave two frames or more before the end at {time_s[-1]:.4g} s, got"
            f" {start_s:g}; try 0"
        )
    part = slice(int(frames[0]), int(frames[-1]) + 1)
    acc, gyro = (
        np.concatenate([getattr(each, name)[0] for each in parts]).astype(float)[part]
        for name in ("correction_acc", "correction_gyro")
    )
    raw = _cut(recording, part)
    both = {"raw": raw, "corrected": raw.with_signals(raw.acc + acc, raw.gyro + gyro)}
    # Without ground truth, each begins with the rotation that its own first acceleration gives.
    motions = {"raw": integrate(raw), "corrected": integrate(both["corrected"])}
    kept = np.unique(np.linspace(0, len(raw) - 1, min(len(raw), _MOST_POINTS)).astype(int))
    return TrajectoryAnswer(
        frames=len(recording),
        recording_s=round(float(time_s[-1]), 6),
        start_s=round(float(time_s[part.start]), 6),
        time_s=np.round(raw.time_s[kept], 6).tolist(),
        raw=_points(motions["raw"], kept),
        corrected=_points(motions["corrected"], kept),
        truth=_points(raw.truth, kept) if raw.truth else None,
        errors=BothErrors(**{name: _errors(both[name], motions[name]) for name in both})
        if raw.truth
        else None,
        mean_correction_acc=tuple(np.round(acc.mean(axis=0), 9).tolist()),
        mean_correction_gyro=tuple(np.round(gyro.mean(axis=0), 9).tolist()),
    )


def _cut(recording: Recording, part: slice) -> Recording:
    truth = recording.truth.between(part.start, part.stop) if recording.truth else None
    return Recording(
        recording.name, recording.time_ns[part], recording.acc[part], recording.gyro[part], truth
    )


def _points(motion: Motion, kept: np.ndarray[Any, Any]) -> Points:
    found: Points = np.round(motion.positions[kept], 5).tolist()
    return found


def _errors(recording: Recording, motion: Motion) -> TrajectoryErrors:
    return TrajectoryErrors(**asdict(errors(recording, motion, _SEGMENT_FRAMES)))


@functools.cache
def example_file(part: str) -> bytes:
    """Return a file of a made recording: "signals" or "ground_truth", CSV in EuRoC's columns."""
    recording = make_recording(_EXAMPLE_S, style=Style(rest_s=_EXAMPLE_REST_S))
    with tempfile.TemporaryDirectory(prefix="slipway-imu") as folder:
        write_euroc(Path(folder), recording)
        return (Path(folder) / _EXAMPLE_FILES[part]).read_bytes()
