"""Synthetic recordings of a known motion, sums of sines with rests, as seen by an imperfect sensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from slipway_client.imu.recording import Array, Motion, Recording

GRAVITY_M_S2 = 9.81007
_SINES = 4
_RAMP_S = 0.6
_STEP_S = 1.0


@dataclass(frozen=True)
class Sensor:
    """Errors of a sensor; the defaults are those of a cheap one.

    Attributes:
        acc_bias_m_s2: Size of the constant error of the acceleration.
        gyro_bias_rad_s: Size of the constant error of the rate of rotation.
        acc_noise_m_s2: Standard deviation of each acceleration sample.
        gyro_noise_rad_s: Standard deviation of each sample of the rate of rotation.
        scale: Standard deviation of the relative error of each axis' scale.
        misalignment_rad: Standard deviation of the angles between the axes and their nominal directions.
        acc_walk_m_s2: Random walk of the acceleration's error in a second, standard deviation of each axis.
        gyro_walk_rad_s: Random walk of the rate of rotation's error, likewise.
        seed: Seed of the directions of the constant errors, so that one sensor has the same errors in every
            recording.
    """

    acc_bias_m_s2: float = 0.1
    gyro_bias_rad_s: float = 0.003
    acc_noise_m_s2: float = 0.03
    gyro_noise_rad_s: float = 0.002
    scale: float = 0.0
    misalignment_rad: float = 0.0
    acc_walk_m_s2: float = 0.0
    gyro_walk_rad_s: float = 0.0
    seed: int = 0


PERFECT = Sensor(0, 0, 0, 0)


@dataclass(frozen=True)
class Style:
    """Style of a body's motion; the defaults are those of a waving hand.

    Attributes:
        reach_m: Size of the movements.
        longest_s: Period of the slowest movements.
        tilt_rad: Size of the turns about all axes.
        turn_s: Period of the slowest turns.
        heading_rad: Size of additional turns about the vertical axis.
        step_m: Size of a quick bobbing like that of steps, several times a second.
        rest_s: Time before the body first moves.
        pause_s: Longest movement between two rests; a rest takes at most a quarter of it. 0 means no rests.
    """

    reach_m: float = 2.0
    longest_s: float = 12.0
    tilt_rad: float = 0.5
    turn_s: float = 9.0
    heading_rad: float = 0.0
    step_m: float = 0.0
    rest_s: float = 0.0
    pause_s: float = 0.0


WAVING = Style()


def make_recording(
    seconds: float = 60.0,
    rate_hz: float = 200.0,
    seed: int = 0,
    sensor: Sensor | None = None,
    style: Style = WAVING,
) -> Recording:
    """Generate a recording with its ground truth.

    Args:
        seconds: Duration in seconds.
        rate_hz: Frames per second.
        seed: Seed of the motion and the noise.
        sensor: Errors of the sensor.
        style: Style of the motion.
    """
    sensor = sensor or Sensor()
    random = np.random.default_rng(seed)
    frames = max(1, round(seconds * rate_hz))
    time_s = np.arange(frames) / rate_hz
    acc, gyro, truth = _ideal_signals(seed, random, time_s, style)
    measured_acc, measured_gyro = apply_sensor_errors(random, acc, gyro, sensor, rate_hz)
    return Recording(
        name=f"synthetic {seconds:g} s, seed {seed}",
        time_ns=np.round(time_s * 1e9).astype(np.int64),
        acc=measured_acc,
        gyro=measured_gyro,
        truth=truth,
    )


def _ideal_signals(
    seed: int, random: np.random.Generator, time_s: Array, style: Style
) -> tuple[Array, Array, Motion]:
    """Return the acceleration and rate of rotation that a perfect sensor measures, and the motion."""
    pace = _pace(np.random.default_rng([seed, 1]), time_s, style)
    positions, velocities, accelerations = _sines(random, pace, style.reach_m, style.longest_s)
    angles, turning, _ = _sines(random, pace, style.tilt_rad, style.turn_s)
    if style.heading_rad:
        heading, heading_rate, _ = _sines(random, pace, style.heading_rad, 4 * style.turn_s)
        angles[:, 2] += heading[:, 2]
        turning[:, 2] += heading_rate[:, 2]
    if style.step_m:
        bobbing = _sines(random, pace, style.step_m, _STEP_S)
        positions, velocities, accelerations = (
            movement + step
            for movement, step in zip((positions, velocities, accelerations), bobbing, strict=True)
        )
    rotations = Rotation.from_euler("xyz", angles)
    acc = rotations.inv().apply(accelerations + np.array([0.0, 0.0, GRAVITY_M_S2]))
    return acc, _body_rates(angles, turning), Motion(positions, rotations.as_quat(), velocities)


def apply_sensor_errors(
    random: np.random.Generator, acc: Array, gyro: Array, sensor: Sensor, rate_hz: float
) -> tuple[Array, Array]:
    """Apply a sensor's errors to the signals of a perfect one.

    Args:
        random: Generator of the noise and the random walk.
        acc: Acceleration, gravity included, [frames, 3], m/s².
        gyro: Rate of rotation, [frames, 3], rad/s.
        sensor: Errors of the sensor.
        rate_hz: Frames per second.
    """
    directions = np.random.default_rng(sensor.seed)
    axes = np.random.default_rng([sensor.seed, 1])

    def with_errors(signal: Array, bias: float, noise: float, walk: float) -> Array:
        direction = directions.standard_normal(3)
        offset = bias * direction / np.linalg.norm(direction)
        measured = signal + offset + noise * random.standard_normal(signal.shape)
        if sensor.scale or sensor.misalignment_rad:
            mixed = sensor.misalignment_rad * axes.standard_normal((3, 3))
            np.fill_diagonal(mixed, sensor.scale * axes.standard_normal(3))
            measured += signal @ mixed.T
        if walk:
            measured += np.cumsum(walk / np.sqrt(rate_hz) * random.standard_normal(signal.shape), axis=0)
        return np.asarray(measured)

    return (
        with_errors(acc, sensor.acc_bias_m_s2, sensor.acc_noise_m_s2, sensor.acc_walk_m_s2),
        with_errors(gyro, sensor.gyro_bias_rad_s, sensor.gyro_noise_rad_s, sensor.gyro_walk_rad_s),
    )


def _pace(random: np.random.Generator, time_s: Array, style: Style) -> tuple[Array, Array, Array]:
    """Return a motion's own time, [frames], with its first and second derivatives.

    This time stands still while the body rests; it accelerates and slows down within 0.6 s.
    """
    if not style.rest_s and not style.pause_s:
        return time_s, np.ones_like(time_s), np.zeros_like(time_s)
    own, pace, change = (np.zeros_like(time_s) for _ in range(3))
    moment, sign = style.rest_s, 1.0
    while moment < time_s[-1]:
        share = np.clip((time_s - moment) / _RAMP_S, 0, 1)
        own += sign * (_RAMP_S * (share**3 - share**4 / 2) + np.maximum(0, time_s - moment - _RAMP_S))
        pace += sign * share**2 * (3 - 2 * share)
        change += sign * 6 * share * (1 - share) / _RAMP_S
        if not style.pause_s:
            break
        moment += _RAMP_S + style.pause_s * random.uniform(0.3, 1.0) * (1.0 if sign > 0 else 0.25)
        sign = -sign
    return own, pace, change


def _sines(
    random: np.random.Generator, pace: tuple[Array, Array, Array], size: float, longest_s: float
) -> tuple[Array, ...]:
    """Return a sum of sines for each axis, [frames, 3], with its first and second derivatives."""
    own, speed, change = (series[:, None] for series in pace)
    shape = (_SINES, 1, 3)
    rates = 2 * np.pi / random.uniform(longest_s / 4, longest_s, shape)
    phases = random.uniform(0, 2 * np.pi, shape)
    sizes = size * random.uniform(0.2, 1, shape) / _SINES
    turns = rates * own + phases
    values = (sizes * np.sin(turns)).sum(axis=0)
    slopes = (sizes * rates * np.cos(turns)).sum(axis=0)
    bends = -(sizes * rates**2 * np.sin(turns)).sum(axis=0)
    return values, slopes * speed, bends * speed**2 + slopes * change


def _body_rates(angles: Array, rates: Array) -> Array:
    """Return the rate of rotation in the body, rad/s, from roll, pitch, yaw and their rates."""
    roll, pitch, _ = angles.T
    roll_rate, pitch_rate, yaw_rate = rates.T
    return np.stack(
        [
            roll_rate - yaw_rate * np.sin(pitch),
            pitch_rate * np.cos(roll) + yaw_rate * np.cos(pitch) * np.sin(roll),
            -pitch_rate * np.sin(roll) + yaw_rate * np.cos(pitch) * np.cos(roll),
        ],
        axis=1,
    )
