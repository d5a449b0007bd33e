"""Files of recordings as users have them: other units, headers, separators and layouts, gaps and cut rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway_client.imu.plausibility import describe_gaps
from slipway_client.imu.read import read_recording, write_euroc
from slipway_client.imu.recording import Recording
from slipway_client.imu.synthetic import Style, make_recording
from slipway_client.imu.units import Units
from slipway_serving.protocol.errors import InvalidRequest

START_NS = 1403636579758555392
MADE = replace(made := make_recording(4.0, 200.0, seed=3), time_ns=made.time_ns + START_NS)
ROWS = np.hstack([MADE.gyro, MADE.acc])
EUROC = "#timestamp [ns]," + ",".join(
    [f"w_RS_S_{axis} [rad s^-1]" for axis in "xyz"] + [f"a_RS_S_{axis} [m s^-2]" for axis in "xyz"]
)
G = 9.80665


def write(
    path: Path,
    header: str,
    times: Sequence[object],
    rows: np.ndarray,
    separator: str = ",",
    text: Callable[[str], str] = lambda text: text,
) -> Path:
    cells = [
        [str(time), *(repr(float(value)) for value in row)] for time, row in zip(times, rows, strict=True)
    ]
    lines = ([header] if header else []) + [separator.join(row) for row in cells]
    path.write_text(text("\n".join(lines) + "\n"), encoding="utf-8")
    return path


def assert_same(found: Recording, time_atol_ns: int = 0) -> None:
    np.testing.assert_allclose(found.time_ns - START_NS, MADE.time_ns - START_NS, rtol=0, atol=time_atol_ns)
    np.testing.assert_allclose(found.acc, MADE.acc, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.gyro, MADE.gyro, rtol=1e-12, atol=1e-12)


SCALES = {"us": 10**3, "ms": 10**6, "s": 10**9}


def in_unit(time_ns: int, unit: str) -> str:
    """Return a time in another unit, with all of its digits."""
    whole, rest = divmod(time_ns, SCALES[unit])
    return f"{whole}.{rest:0{len(str(SCALES[unit])) - 1}}"


@pytest.mark.parametrize(
    ("unit", "step_ns", "got"),
    [("us", 5_000, "2e+05 Hz"), ("ms", 5, "2e+08 Hz")],
)
def test_times_in_another_unit_are_refused_until_their_unit_is_stated(
    tmp_path: Path, unit: str, step_ns: int, got: str
) -> None:
    whole = [START_NS // SCALES[unit] + step_ns * frame for frame in range(len(MADE))]
    path = write(tmp_path / "a.csv", EUROC, whole, ROWS)
    with pytest.raises(InvalidRequest) as caught:
        read_recording(path)
    rule = f"sampling rate must be 10 to 10000 Hz, got {got} from times in ns"
    assert str(caught.value) == f"a.csv: {rule}; try --time-unit {unit}, which makes it 200 Hz"
    found = read_recording(path, units=Units(time=unit))  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.diff(found.time_ns), 5_000_000)


def test_seconds_are_refused_until_their_unit_is_stated(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "", [in_unit(time, "s") for time in MADE.time_ns.tolist()], ROWS)
    with pytest.raises(
        InvalidRequest, match=r"must be whole nanoseconds, got 1403636579.75.* in row 1; try --time-unit s"
    ):
        read_recording(path)
    assert_same(read_recording(path, units=Units(time="s")))


def test_rate_that_no_unit_explains_is_refused_until_it_is_said_to_be_right(tmp_path: Path) -> None:
    slow = write(tmp_path / "a.csv", EUROC, [2 * 10**9 * frame for frame in range(len(MADE))], ROWS)
    with pytest.raises(
        InvalidRequest, match="got 0.5 Hz from times in ns; try --time-unit ns if it is right"
    ):
        read_recording(slow)
    assert len(read_recording(slow, units=Units(time="ns"))) == len(MADE)


@pytest.mark.parametrize("rest_s", [0.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_rates_in_degrees_are_refused_until_their_unit_is_stated(
    tmp_path: Path, seed: int, rest_s: float
) -> None:
    moved = make_recording(10.0, 200.0, seed, style=Style(rest_s=rest_s))
    rows = np.hstack([np.degrees(moved.gyro), moved.acc])
    path = write(tmp_path / "a.csv", EUROC, moved.time_ns.tolist(), rows)
    with pytest.raises(
        InvalidRequest, match=r"\|gyro\| must be at most 5 rad/s, got .*deg/s; try --rate-unit deg/s"
    ):
        read_recording(path)
    found = read_recording(path, units=Units(rate="deg/s"))
    np.testing.assert_allclose(found.gyro, moved.gyro, rtol=1e-12, atol=1e-15)


def test_rates_in_degrees_are_known_by_a_rest_and_by_the_ground_truth(tmp_path: Path) -> None:
    still = replace(
        MADE, acc=np.tile([0, 0, 9.81], (len(MADE), 1)), gyro=np.full((len(MADE), 3), 0.4), truth=None
    )
    path = write(tmp_path / "a.csv", EUROC, still.time_ns.tolist(), np.hstack([still.gyro, still.acc]))
    with pytest.raises(
        InvalidRequest, match=r"at most 0.5 rad/s while the acceleration stands still, got 0.693"
    ):
        read_recording(path)
    slow = make_recording(10.0, 200.0, 2, style=Style(turn_s=20.0, tilt_rad=0.5))
    degrees = slow.with_signals(slow.acc, np.degrees(slow.gyro))
    assert np.median(np.linalg.norm(degrees.gyro, axis=1)) < 5
    write_euroc(tmp_path / "slow", degrees)
    with pytest.raises(InvalidRequest, match="at most 10 times what the ground truth shows, got 57.* times"):
        read_recording(tmp_path / "slow")


def test_accelerations_in_g_are_refused_until_their_unit_is_stated(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", EUROC, MADE.time_ns.tolist(), np.hstack([MADE.gyro, MADE.acc / G]))
    with pytest.raises(
        InvalidRequest, match=r"median of \|acc\| must be 5 to 20 m/s².*looks like g; try .*-unit g"
    ):
        read_recording(path)
    assert_same(read_recording(path, units=Units(acceleration="g")))


def test_accelerations_without_gravity_are_refused_until_they_are_said_to_be_right(tmp_path: Path) -> None:
    free = np.hstack([MADE.gyro, 0.01 * MADE.acc])
    path = write(tmp_path / "a.csv", EUROC, MADE.time_ns.tolist(), free)
    with pytest.raises(InvalidRequest, match="gravity may have been taken out, which AirIMU needs"):
        read_recording(path)
    assert len(read_recording(path, units=Units(acceleration="m/s^2"))) == len(MADE)


def test_all_units_that_are_wrong_are_named_together(tmp_path: Path) -> None:
    times = (MADE.time_ns // 1000).tolist()
    path = write(tmp_path / "a.csv", "", times, np.hstack([np.degrees(MADE.gyro), MADE.acc / G]))
    with pytest.raises(InvalidRequest, match="--time-unit us.*--acceleration-unit g.*--rate-unit deg/s"):
        read_recording(path)


@pytest.mark.parametrize("header", [
    "timestamp,gyro_x,gyro_y,gyro_z,acc_x,acc_y,acc_z",
    "time,gx,gy,gz,ax,ay,az",
    "timestamp_ns;wx;wy;wz;accelX;accelY;accelZ",
    "field.header.stamp\tangular_velocity.x\tangular_velocity.y\tangular_velocity.z"
    "\tlinear_acceleration.x\tlinear_acceleration.y\tlinear_acceleration.z",
    EUROC,
    EUROC.replace(",", ", "),
    "",
])  # fmt: skip
def test_columns_are_read_by_any_common_header(tmp_path: Path, header: str) -> None:
    separator = next((sign for sign in ";\t" if sign in header), ",")
    assert_same(read_recording(write(tmp_path / "a.csv", header, MADE.time_ns.tolist(), ROWS, separator)))


def test_columns_in_another_order_are_read_by_their_names(tmp_path: Path) -> None:
    header = "temperature,az,ay,ax,time [us],gz (deg/s),gy (deg/s),gx (deg/s)"
    lines = [header]
    for time, gyro, acc in zip(
        MADE.time_ns.tolist(), np.degrees(MADE.gyro).tolist(), MADE.acc.tolist(), strict=True
    ):
        lines.append(",".join(["20.5", *map(repr, acc[::-1]), in_unit(time, "us"), *map(repr, gyro[::-1])]))
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert_same(read_recording(tmp_path / "a.csv"))


def test_units_are_read_from_the_header(tmp_path: Path) -> None:
    header = "t_s,gyro_x_dps,gyro_y_dps,gyro_z_dps,acc_x [g],acc_y [g],acc_z [g]"
    rows = np.hstack([np.degrees(MADE.gyro), MADE.acc / G])
    path = write(tmp_path / "a.csv", header, [in_unit(time, "s") for time in MADE.time_ns.tolist()], rows)
    assert_same(read_recording(path))
    wrong = write(tmp_path / "b.csv", header.replace("[g]", "[counts]"), [0, 1], rows[:2])
    with pytest.raises(
        InvalidRequest, match="unit of acc must be m/s.2 or g, got 'counts' in the header; try --acc"
    ):
        read_recording(wrong)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (
            "time,gx,gy,gz,ax,ay,extra",
            "header must name a column for acc z, got time, gx, gy, gz, ax, ay, extra",
        ),
        ("time,gx,gy,gz,ax,ay,accel_y", "header must name one column for acc y, got ay and accel_y"),
        ("one,two,three,four,five,six,seven", "header must name the columns, such as time, gyro_x and acc_x"),
    ],
)
def test_header_that_does_not_name_each_column_once_is_refused(
    tmp_path: Path, header: str, problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        read_recording(write(tmp_path / "a.csv", header, MADE.time_ns.tolist(), ROWS))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", ",\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("\n", "\n# a remark, and no header\n", 3),
    ],
)
@pytest.mark.parametrize("header", [EUROC, "time,gx,gy,gz,ax,ay,az"])
def test_file_is_read_however_an_editor_saved_it(
    tmp_path: Path, header: str, change: Callable[[str], str]
) -> None:
    assert_same(read_recording(write(tmp_path / "a.csv", header, MADE.time_ns.tolist(), ROWS, text=change)))


def test_decimal_commas_are_read_between_semicolons(tmp_path: Path) -> None:
    header = "time;gx;gy;gz;ax;ay;az"
    path = write(
        tmp_path / "a.csv", header, MADE.time_ns.tolist(), ROWS, ";", lambda text: text.replace(".", ",")
    )
    assert_same(read_recording(path))


def test_times_with_an_exponent_keep_all_their_digits(tmp_path: Path) -> None:
    times = [f"{time // 10**18}.{time % 10**18:018}e18" for time in MADE.time_ns.tolist()]
    assert_same(read_recording(write(tmp_path / "a.csv", EUROC, times, ROWS)))
    short = write(tmp_path / "b.csv", EUROC, [f"{time:.8e}" for time in MADE.time_ns.tolist()], ROWS)
    with pytest.raises(InvalidRequest, match=r"got the same time as that .*e\+18 have lost digits"):
        read_recording(short)


@pytest.mark.parametrize(
    ("line", "row", "problem"),
    [
        (6, "1,2,3,4,5", "row 6 must have 7 columns like the others, got 5"),
        (2, "1,2,3,4,5", "row 2 must have 7 columns like the others, got 5"),
        (6, "1,2,3,4,5,6,7,8", "row 6 must have 7 columns like the others, got 8"),
        (6, f"{MADE.time_ns[4]},2,3,4,x,6,7", "row 6 must contain numbers only, got 'x' in column 5"),
        (6, "one,2,3,4,5,6,7", "row 6 must contain numbers only, got 'one' in column 1"),
        (6, "inf,2,3,4,5,6,7", "row 6 must contain numbers only, got 'inf' in column 1"),
        (6, "1e999999999,2,3,4,5,6,7", "row 6"),
        (6, "1e30,2,3,4,5,6,7", "time must lie within 292 years of 0, got 1e30 ns in row 6"),
        (6, "5,2,3,4,5,6,7", "got a time before that of the row before in row 6, and 0 more such rows"),
        (6, f"{MADE.time_ns[3]},2,3,4,5,6,7", "got the same time as that of the row before in row 6"),
        (6, f"{MADE.time_ns[4]},2,3,4,nan,6,7", "acc must be finite, got nan in frame 4"),
    ],
)
def test_row_that_is_wrong_is_named_by_its_line(tmp_path: Path, line: int, row: str, problem: str) -> None:
    path = write(tmp_path / "a.csv", EUROC, MADE.time_ns.tolist(), ROWS)
    lines = path.read_text().splitlines()
    lines[line - 1] = row
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidRequest, match=problem):
        read_recording(path)


def test_gaps_are_told_and_a_steady_recording_has_none(tmp_path: Path) -> None:
    assert describe_gaps(MADE) == ""
    assert describe_gaps(Recording("one", MADE.time_ns[:1], MADE.acc[:1], MADE.gyro[:1])) == ""
    times = MADE.time_ns.copy()
    times[400:] += 1_200_000_000
    times[600:] += 20_000_000
    said: list[str] = []
    read_recording(write(tmp_path / "a.csv", EUROC, times.tolist(), ROWS), say=said.append)
    assert len(said) == 1
    assert "a.csv: 2 gaps of more than 15 ms, the longest of 1.21 s after frame 399" in said[0]


def test_tum_vis_folder_is_read_with_its_motion_capture(tmp_path: Path) -> None:
    write_euroc(tmp_path, MADE)
    assert MADE.truth is not None
    (tmp_path / "mav0/state_groundtruth_estimate0/data.csv").unlink()
    capture = tmp_path / "mav0/mocap0/data.csv"
    capture.parent.mkdir()
    names = [f"p_RS_R_{axis} [m]" for axis in "xyz"] + [f"q_RS_{axis} []" for axis in "wxyz"]
    header = ", ".join(["#timestamp [ns]", *names])
    poses = np.hstack([MADE.truth.positions, np.roll(MADE.truth.rotations, 1, axis=1)])
    write(capture, header, MADE.time_ns.tolist(), poses)
    truth = read_recording(tmp_path).truth
    assert truth is not None
    np.testing.assert_allclose(truth.positions, MADE.truth.positions, atol=1e-9)
    sign = np.sign(np.sum(truth.rotations * MADE.truth.rotations, axis=1, keepdims=True))
    np.testing.assert_allclose(sign * truth.rotations, MADE.truth.rotations, atol=1e-9)
    np.testing.assert_allclose(truth.velocities[1:-1], MADE.truth.velocities[1:-1], atol=2e-3)
    write(capture, "", MADE.time_ns.tolist(), poses)
    with pytest.raises(InvalidRequest, match="got 8 columns without a header that names them"):
        read_recording(tmp_path)


def test_frames_outside_the_ground_truth_are_told(tmp_path: Path) -> None:
    write_euroc(tmp_path, MADE)
    path = tmp_path / "mav0/state_groundtruth_estimate0/data.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[101:501]]))
    said: list[str] = []
    assert len(read_recording(tmp_path, say=said.append)) == 400
    assert said == [f"{path}: 400 of 800 frames lie outside the ground truth and are left out"]


def test_ground_truth_has_the_stated_unit_of_time_where_its_header_says_none(tmp_path: Path) -> None:
    assert MADE.truth is not None
    times = (MADE.time_ns // 1000).tolist()
    signals = write(tmp_path / "a.csv", "", times, ROWS)
    states = np.hstack(
        [MADE.truth.positions, np.roll(MADE.truth.rotations, 1, axis=1), MADE.truth.velocities]
    )
    truth = write(tmp_path / "truth.csv", "", times, states)
    found = read_recording(signals, truth, Units(time="us")).truth
    assert found is not None
    np.testing.assert_allclose(found.positions, MADE.truth.positions, atol=1e-9)


def write_drive(folder: Path, rows: np.ndarray) -> Path:
    (folder / "oxts/data").mkdir(parents=True)
    stamps = "".join(
        f"2011-09-26 13:02:25.{i:03}389445\n" for i in range(0, 100 * len(rows), 100)[: len(rows)]
    )
    (folder / "oxts/timestamps.txt").write_text(stamps, encoding="utf-8-sig")
    for i, row in enumerate(rows):
        (folder / f"oxts/data/{i:010}.txt").write_text(" ".join(f"{value:.15g}" for value in row))
    return folder


def test_units_of_a_kitti_drive_are_checked_too(tmp_path: Path) -> None:
    rows = np.zeros((10, 30))
    rows[:, 0], rows[:, 13] = 49.0, 1.0
    drive = write_drive(tmp_path, rows)
    with pytest.raises(InvalidRequest, match="got 1; it looks like g; try --acceleration-unit g"):
        read_recording(drive)
    np.testing.assert_allclose(read_recording(drive, units=Units(acceleration="g")).acc, [[0, 0, G]] * 10)
    with pytest.raises(
        InvalidRequest, match="--time-unit must be left out for KITTI, whose times are dates, got us"
    ):
        read_recording(drive, units=Units(time="us", acceleration="g"))
    file = drive / "oxts/data/0000000003.txt"
    file.write_text("1 2 3 4 5")
    with pytest.raises(
        InvalidRequest, match=r"0000000003.txt: must be a line of 20 numbers or more, got shape \[5\]"
    ):
        read_recording(drive)
    file.write_text("1 2 three")
    with pytest.raises(InvalidRequest, match="0000000003.txt: must be a line of numbers, got"):
        read_recording(drive)


def test_any_text_is_a_recording_or_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", EUROC, MADE.time_ns[:8].tolist(), ROWS[:8])
    whole = path.read_text()

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        text = list(whole)
        for _ in range(data.draw(st.integers(0, 6))):
            place = data.draw(st.integers(0, len(text) - 1))
            text[place] = data.draw(
                st.one_of(st.sampled_from('0123456789.,;\t\n#-+e "[]'), st.characters(codec="utf-8"))
            )
        path.write_bytes("".join(text)[: data.draw(st.integers(0, len(text)))].encode("utf-8"))
        try:
            read_recording(path)
        except InvalidRequest as error:
            assert "a.csv" in str(error)

    holds()
