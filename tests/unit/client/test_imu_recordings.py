"""Recordings: read from EuRoC's and KITTI's layouts, made, cut into windows, integrated and measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pypose
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pypose.metric.ape_rpe import StampedSE3, compute_error
from scipy.spatial.transform import Rotation

from slipway_client.imu.read import read_recording, write_euroc
from slipway_client.imu.recording import Motion, Recording
from slipway_client.imu.synthetic import PERFECT, Sensor, make_recording
from slipway_client.imu.trajectory import errors, integrate
from slipway_client.imu.windows import correct, split_windows
from slipway_serving.protocol.errors import InvalidRequest


def changed(recording: Recording, **arrays: np.ndarray) -> Recording:
    return Recording(**{**vars(recording), **arrays})


def test_written_recording_reads_back(tmp_path: Path) -> None:
    made = make_recording(2.0, 100.0, seed=3)
    write_euroc(tmp_path, made)
    for path in (tmp_path, tmp_path / "mav0"):
        read = read_recording(path)
        np.testing.assert_array_equal(read.time_ns, made.time_ns)
        np.testing.assert_allclose(read.acc, made.acc, rtol=1e-10)
        np.testing.assert_allclose(read.gyro, made.gyro, rtol=1e-10)
        assert read.truth is not None
        assert made.truth is not None
        for name, array in vars(made.truth).items():
            np.testing.assert_allclose(getattr(read.truth, name), array, atol=1e-9)
    alone = read_recording(tmp_path / "mav0/imu0/data.csv")
    assert alone.truth is None
    truth = tmp_path / "mav0/state_groundtruth_estimate0/data.csv"
    assert read_recording(tmp_path / "mav0/imu0/data.csv", truth).truth is not None


def test_times_of_today_keep_their_nanoseconds(tmp_path: Path) -> None:
    made = make_recording(0.5, 200.0)
    write_euroc(tmp_path, changed(made, time_ns=made.time_ns + 1403636579758555393))
    read = read_recording(tmp_path)
    np.testing.assert_array_equal(read.time_ns, made.time_ns + 1403636579758555393)
    np.testing.assert_allclose(read.time_s, made.time_s, atol=1e-12)


def test_recording_is_cut_to_what_the_ground_truth_covers(tmp_path: Path) -> None:
    made = make_recording(2.0, 100.0)
    write_euroc(tmp_path, made)
    path = tmp_path / "mav0/state_groundtruth_estimate0/data.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[21:101:2]]))
    read = read_recording(tmp_path)
    assert made.truth is not None
    assert read.truth is not None
    assert (read.time_ns[0], read.time_ns[-1]) == (made.time_ns[20], made.time_ns[98])
    # Every second one is interpolated.
    np.testing.assert_allclose(read.truth.positions, made.truth.positions[20:99], atol=1e-3)
    turned = pypose.SO3(torch.from_numpy(read.truth.rotations)).Inv() @ pypose.SO3(
        torch.from_numpy(made.truth.rotations[20:99])
    )
    assert float(turned.Log().norm(dim=-1).max()) < 1e-3


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("#t,a\n", "must have rows of numbers, got none"),
        ("#t\n1,2,3\n", "must have 7 or 13 columns, got 3 columns"),
        ("1,2,3,4,5,6,seven\n", "row 1 must contain numbers only, got 'seven' in column 7"),
        ("\n1,2,3,4,5,6,7\n2,2,3,4,5,6,7\n2,2,3\n", "row 4 must have 7 columns like the others, got 3"),
        ("1,1,1,1,1,1,nan\n", "acc must be finite, got nan in frame 0"),
        (
            "5,1,1,1,1,1,1\n5,1,1,1,1,1,1\n",
            "time must increase from row to row, got the same time as .* in row 2",
        ),
    ],
)
def test_file_that_is_no_recording_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=problem):
        read_recording(path)


def test_folder_and_file_that_are_missing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="must be a CSV file or a folder with"):
        read_recording(tmp_path)
    with pytest.raises(InvalidRequest, match="must be a CSV of numbers, got"):
        read_recording(tmp_path / "none.csv")


def test_signals_of_different_lengths_are_refused() -> None:
    made = make_recording(1.0, 10.0)
    with pytest.raises(InvalidRequest, match="10 of time_ns, 9 of acc, 10 of gyro"):
        changed(made, acc=made.acc[:-1])


def write_kitti(folder: Path, angles: np.ndarray, rows: np.ndarray) -> None:
    data = folder / "oxts/data"
    data.mkdir(parents=True)
    rows[:, 13] += 9.8
    stamps = [f"2011-09-26 13:02:{25 + i // 10:02}.{i % 10}64389445" for i in range(len(rows))]
    (folder / "oxts/timestamps.txt").write_text("\n".join(stamps) + "\n")
    for i, row in enumerate(rows):
        (data / f"{i:010}.txt").write_text(" ".join(f"{value:.15g}" for value in row))


def test_kitti_drive_reads_with_its_ground_truth(tmp_path: Path) -> None:
    frames = 15
    rows = np.random.default_rng(0).standard_normal((frames, 30))
    # Due north at 1 m/s, turned to the north: yaw is 90 degrees from east.
    rows[:, 0] = 49.0 + np.degrees(np.arange(frames) * 0.1 / 6378137.0)
    rows[:, 1], rows[:, 2] = 8.4, 100.0 + 0.01 * np.arange(frames)
    rows[:, 3:6] = 0, 0, np.pi / 2
    rows[:, 8:11] = 1, 0, 0.1
    write_kitti(tmp_path, rows[:, 3:6], rows)
    read = read_recording(tmp_path)
    np.testing.assert_allclose(np.diff(read.time_s), 0.1)
    np.testing.assert_allclose(read.acc, rows[:, 11:14])
    np.testing.assert_allclose(read.gyro, rows[:, 17:20])
    assert read.truth is not None
    np.testing.assert_allclose(np.diff(read.truth.positions, axis=0), [[0, 0.1, 0.01]] * 14, atol=1e-6)
    np.testing.assert_allclose(read.truth.velocities, [[0, 1, 0.1]] * frames, atol=1e-12)
    with pytest.raises(InvalidRequest, match="--ground-truth must be left out for KITTI"):
        read_recording(tmp_path, tmp_path / "data.csv")


def test_kitti_rotations_are_pyposes(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((20, 30))
    write_kitti(tmp_path, rows[:, 3:6], rows)
    truth = read_recording(tmp_path).truth
    assert truth is not None
    theirs = pypose.euler2SO3(torch.from_numpy(rows[:, 3:6]))
    sign = np.sign(np.sum(truth.rotations * theirs.tensor().numpy(), axis=1, keepdims=True))
    np.testing.assert_allclose(sign * truth.rotations, theirs.tensor().numpy(), atol=1e-12)
    np.testing.assert_allclose(
        truth.velocities, (theirs @ torch.from_numpy(rows[:, 8:11])).numpy(), atol=1e-12
    )


def write_turn(folder: Path, times: list[int], truth: list[list[float]]) -> tuple[Path, Path]:
    """A recording at such times, ms, and ground truth of such times and quaternions (w, x, y, z)."""
    signals, poses = folder / "data.csv", folder / "truth.csv"
    signals.write_text("".join(f"{time}000000,0,0,0,0,0,9.8\n" for time in times))
    poses.write_text("".join(f"{time:.0f}e6,0,0,0,{w},{x},{y},{z},0,0,0\n" for time, w, x, y, z in truth))
    return signals, poses


def test_rotations_between_turn_at_constant_speed_the_short_way(tmp_path: Path) -> None:
    ends = [[np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)] for yaw in (0.2, 1.0)]
    truth = [[0, *ends[0]], [100, *(-value for value in ends[1])]]
    read = read_recording(*write_turn(tmp_path, [0, 25, 50, 100], truth))
    assert read.truth is not None
    yaw = 2 * np.arctan(read.truth.rotations[:, 2] / read.truth.rotations[:, 3])
    np.testing.assert_allclose(yaw, [0.2, 0.4, 0.6, 1.0], atol=1e-12)
    alone = read_recording(*write_turn(tmp_path, [0, 25], truth[:1])).truth
    assert alone is not None
    np.testing.assert_allclose(alone.rotations, [[0, 0, np.sin(0.1), np.cos(0.1)]], atol=1e-12)


def test_ground_truth_is_refused_when_nothing_lies_between_its_rows(tmp_path: Path) -> None:
    unit = [1, 0, 0, 0]
    for truth, problem in (
        ([[0, 0, 0, 0, 0], [100, *unit]], "rotation must be a unit quaternion, got a norm of 0 in row 1"),
        (
            [[0, *unit], [100, 0.5, 0.5, 0, 0]],
            "rotation must be a unit quaternion, got a norm of 0.707 in row 2",
        ),
        ([[0, *unit], [100, *unit], [100, *unit]], "time must increase.*got the same time as .* in row 3"),
        ([[0, *unit], [1500, *unit]], "ground truth must have no gap over 1 s, got 1.5 s after row 1"),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            read_recording(*write_turn(tmp_path, [0, 25], truth))


@pytest.mark.parametrize("direction", [[0, 0, 1], [0, 0, -1], [1, 0, 0], [-0.6, 0, 0.8], [0.1, -0.9, -0.2]])
def test_without_ground_truth_the_acceleration_is_up(direction: list[float]) -> None:
    acc = 9.8 * np.array([direction]) / np.linalg.norm(direction)
    still = Recording("still", np.array([0]), acc, np.zeros((1, 3)))
    turned = Rotation.from_quat(still.rotation_at(0)).apply(acc)
    np.testing.assert_allclose(turned, [[0, 0, 9.8]], atol=1e-9)


def test_without_ground_truth_a_fall_has_no_rotation() -> None:
    falling = Recording("falling", np.array([0]), np.zeros((1, 3)), np.zeros((1, 3)))
    with pytest.raises(InvalidRequest, match="acc must show gravity.*try --ground-truth"):
        falling.rotation_at(0)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 70), st.data())
def test_windows_take_every_frame_once(frames: int, size: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, size))
    taken: list[int] = []
    for window in split_windows(frames, size, step):
        assert 0 <= window.start <= window.first_used < window.stop <= min(frames, window.start + size)
        taken += range(window.first_used, window.stop)
    assert taken == list(range(frames))


@pytest.mark.parametrize(("size", "step"), [(0, 1), (10, 0), (10, 11), (-1, -1)])
def test_windows_that_leave_frames_out_are_refused(size: int, step: int) -> None:
    with pytest.raises(InvalidRequest, match="-size must be"):
        list(split_windows(100, size, step))


def test_corrections_of_windows_are_joined_in_order() -> None:
    made = make_recording(1.05, 100.0)
    asked = []

    def by_index(acc: np.ndarray, gyro: np.ndarray, rotation: np.ndarray) -> dict[str, np.ndarray]:
        asked.append(len(acc))
        count = np.arange(len(acc), dtype=np.float32)[:, None].repeat(3, axis=1)
        return {"correction_acc": count, "correction_gyro": -count}

    done = correct(made, by_index, 40, 30, lambda frames: None)
    assert asked == [40, 40, 40, 15]
    assert (done.windows, done.variances) == (4, ())
    count = np.round(done.recording.acc - made.acc).astype(int)[:, 0]
    np.testing.assert_array_equal(count, [*range(40), *range(10, 40), *range(10, 40), *range(10, 15)])
    np.testing.assert_allclose(done.recording.gyro, made.gyro - count[:, None])


def test_made_recording_repeats_with_its_seed() -> None:
    first, second, other = (make_recording(1.0, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.acc, second.acc)
    assert np.abs(first.acc - other.acc).max() > 0.1


def test_perfect_sensor_is_integrated_to_the_ground_truth_as_the_steps_get_shorter() -> None:
    """The integrator is of first order: half the step, half the error."""
    found = [
        errors(made, integrate(made), round(rate))
        for rate in (200.0, 400.0)
        if (made := make_recording(10.0, rate, seed=1, sensor=PERFECT))
    ]
    assert found[0].ate_m < 0.3
    assert found[0].aoe_deg < 0.1
    for name in ("ate_m", "aoe_deg", "rte_m", "roe_deg"):
        assert getattr(found[0], name) / getattr(found[1], name) == pytest.approx(2, rel=0.1)


def test_errors_are_the_means_of_distances_and_angles() -> None:
    made = make_recording(3.0, 100.0, sensor=PERFECT)
    assert made.truth is not None
    turn = Rotation.from_euler("xyz", [[0, 0, np.radians(3)]]).as_quat().repeat(300, axis=0)
    turned = (
        pypose.SO3(torch.from_numpy(made.truth.rotations)) @ pypose.SO3(torch.from_numpy(turn))
    ).tensor()
    off = Motion(made.truth.positions + np.array([3.0, 0, 4.0]), turned.numpy(), made.truth.velocities)
    found = errors(made, off, 400)
    assert found.ate_m == pytest.approx(5.0)
    assert found.aoe_deg == pytest.approx(3.0, abs=1e-4)
    assert (found.rte_m, found.roe_deg) == (None, None)


def test_bias_of_the_gyroscope_shows_in_the_relative_rotation() -> None:
    bias = Sensor(0, 0.01, 0, 0)
    made = make_recording(10.0, 200.0, sensor=bias)
    found = errors(made, integrate(made), 200)
    # 0.01 rad/s for 1 s.
    assert found.roe_deg == pytest.approx(np.degrees(0.01), rel=0.1)


def test_one_frame_is_a_trajectory() -> None:
    made = make_recording(0.01, 100.0)
    assert integrate(made).positions.shape == (1, 3)


def test_trajectory_is_the_sum_of_its_steps_when_rate_and_acceleration_are_constant() -> None:
    frames, rate_hz, turn_rad_s, push_m_s2 = 500, 100.0, 0.7, 0.3
    time_s = np.arange(frames) / rate_hz
    acc = np.tile([push_m_s2, 0, float(np.float32(9.81007))], (frames, 1))
    gyro = np.tile([0, 0, turn_rad_s], (frames, 1))
    still = Motion(np.zeros((frames, 3)), np.tile([0.0, 0, 0, 1], (frames, 1)), np.zeros((frames, 3)))
    found = integrate(Recording("turning", np.round(time_s * 1e9).astype(np.int64), acc, gyro, still))
    yaw = turn_rad_s * time_s
    np.testing.assert_allclose(np.unwrap(2 * np.arctan2(*found.rotations[:, 2:].T)), yaw, atol=1e-12)
    pushes = push_m_s2 * np.stack([np.cos(yaw), np.sin(yaw)], axis=1)
    speeds = np.zeros((frames, 2))
    places = np.zeros((frames, 2))
    for i in range(1, frames):
        speeds[i] = speeds[i - 1] + pushes[i - 1] / rate_hz
        places[i] = places[i - 1] + speeds[i - 1] / rate_hz + pushes[i - 1] / rate_hz**2 / 2
    np.testing.assert_allclose(found.velocities[:, :2], speeds, atol=1e-12)
    np.testing.assert_allclose(found.positions[:, :2], places, atol=1e-12)
    np.testing.assert_allclose(found.positions[:, 2], 0, atol=1e-12)


@pytest.mark.parametrize(("seconds", "rate_hz"), [(0.02, 100.0), (10.0, 200.0), (60.0, 200.0)])
@pytest.mark.parametrize("sensor", [PERFECT, Sensor()])
def test_trajectory_and_errors_are_pyposes(seconds: float, rate_hz: float, sensor: Sensor) -> None:
    made = make_recording(seconds, rate_hz, seed=2, sensor=sensor)
    assert made.truth is not None
    found, expected = integrate(made), by_pypose(made, made.truth)
    for name in ("positions", "velocities"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-9)
    sign = np.sign(np.sum(found.rotations * expected.rotations, axis=1, keepdims=True))
    np.testing.assert_allclose(sign * found.rotations, expected.rotations, atol=1e-9)
    poses = [
        StampedSE3(poses_SE3=pypose.SE3(torch.from_numpy(np.hstack([each.positions, each.rotations]))))
        for each in (made.truth, expected)
    ]
    measured = errors(made, found, 200)
    for value, kind in ((measured.ate_m, "translation"), (measured.aoe_deg, "degree")):
        assert value == pytest.approx(float(compute_error(*poses, kind, otype="Mean")), abs=1e-9)


def by_pypose(recording: Recording, truth: Motion) -> Motion:
    """Integrate by the library that upstream integrates with."""
    integrator = pypose.module.IMUPreintegrator(prop_cov=False, reset=True).double()
    state = {
        "pos": torch.from_numpy(truth.positions[:1]),
        "rot": pypose.SO3(torch.from_numpy(truth.rotations[:1])),
        "vel": torch.from_numpy(truth.velocities[:1]),
    }
    after = integrator(
        dt=torch.from_numpy(np.diff(recording.time_s))[None, :, None],
        gyro=torch.from_numpy(recording.gyro[None, :-1]),
        acc=torch.from_numpy(recording.acc[None, :-1]),
        init_state=state,
    )
    parts = (after["pos"], after["rot"].tensor(), after["vel"])
    return Motion(
        *(
            np.concatenate([first[:1], part[0].numpy()])
            for first, part in zip(vars(truth).values(), parts, strict=True)
        )
    )
