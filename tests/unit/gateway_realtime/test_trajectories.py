"""Trajectories of a recording before and after a correction that the test knows, without a server."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest

from slipway_client import Corrections
from slipway_client.imu.recording import Recording
from slipway_client.imu.synthetic import PERFECT, Style, make_recording
from slipway_client.imu.units import Units
from slipway_gateway.realtime.trajectories import compare, example_file, read_files
from slipway_serving.protocol.errors import InvalidRequest


def corrections(correct: Recording, measured: Recording, pieces: int = 3) -> list[Corrections]:
    """The corrections that make a measured recording the correct one, in pieces."""
    acc, gyro = correct.acc - measured.acc, correct.gyro - measured.gyro
    edges = np.linspace(0, len(acc), pieces + 1).astype(int)
    return [
        Corrections(
            *(
                array[None, start:end].astype(np.float32)
                for array in (measured.acc + acc, measured.gyro + gyro, acc, gyro)
            )
        )
        for start, end in itertools.pairwise(edges)
    ]


@pytest.fixture(scope="module")
def measured() -> Recording:
    return make_recording(20, style=Style(rest_s=2))


@pytest.fixture(scope="module")
def known(measured: Recording) -> list[Corrections]:
    return corrections(make_recording(20, sensor=PERFECT, style=Style(rest_s=2)), measured)


def test_known_corrections_bring_the_trajectory_to_the_truth(
    measured: Recording, known: list[Corrections]
) -> None:
    answer = compare(measured, known, 0, 15)
    assert answer.errors is not None and answer.truth is not None
    assert answer.errors.corrected.ate_m < 0.05 < answer.errors.raw.ate_m
    assert answer.errors.corrected.aoe_deg < 0.1 < answer.errors.raw.aoe_deg
    assert answer.errors.raw.rte_m is not None
    assert len(answer.time_s) == len(answer.raw) == len(answer.corrected) == len(answer.truth) == 1500
    assert (answer.time_s[0], answer.time_s[-1]) == (0, 15) and answer.frames == 4000
    assert answer.raw[0] == answer.corrected[0] == answer.truth[0]


def test_part_begins_where_the_caller_says(measured: Recording, known: list[Corrections]) -> None:
    answer = compare(measured, known, 12, 4)
    assert answer.start_s == 12 and answer.time_s[-1] == 4 and len(answer.time_s) == 801
    rest = compare(measured, known, 18, 60)
    assert rest.time_s[-1] == pytest.approx(1.995)


def test_part_without_frames_is_refused_with_the_length(
    measured: Recording, known: list[Corrections]
) -> None:
    with pytest.raises(InvalidRequest, match="start_s must leave two frames or more before the end at 20"):
        compare(measured, known, 30, 5)


def test_recording_without_truth_has_no_errors(measured: Recording, known: list[Corrections]) -> None:
    alone = Recording("alone", measured.time_ns, measured.acc, measured.gyro)
    answer = compare(alone, known, 0, 5)
    assert answer.truth is None and answer.errors is None and answer.raw[0] == (0, 0, 0)


def test_example_is_a_recording_with_its_truth() -> None:
    recording = read_files(example_file("signals"), example_file("ground_truth"), Units())
    assert recording.truth is not None and len(recording) == 4000
    assert np.ptp(recording.truth.positions[:399], axis=0).max() < 1e-9 < np.ptp(recording.truth.positions)


def test_npz_needs_the_time_between_frames(measured: Recording) -> None:
    file = io.BytesIO()
    np.savez(file, acc=measured.acc[:50], gyro=measured.gyro[:50])
    with pytest.raises(InvalidRequest, match="dt must be given"):
        read_files(file.getvalue(), None, Units())
    file = io.BytesIO()
    np.savez(file, acc=measured.acc[:50], gyro=measured.gyro[:50], dt=0.005)
    assert read_files(file.getvalue(), None, Units()).time_s[-1] == pytest.approx(0.245)
    with pytest.raises(InvalidRequest, match="ground_truth must come with signals as CSV"):
        read_files(file.getvalue(), b"#timestamp", Units())


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\0\1"])
def test_file_that_is_no_recording_is_refused_without_a_path(content: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_files(content, None, Units())
    assert str(refused.value).startswith("imu: recording.csv: ") and "/tmp" not in str(refused.value)
