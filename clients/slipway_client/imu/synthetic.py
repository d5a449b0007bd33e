"""Makes recordings of a known motion, smooth sums of sines, as a sensor with bias and noise sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from slipway_client.imu.recording import Motion, Recording

GRAVITY_M_S2 = 9.81007
_SINES = 4


@dataclass(frozen=True)
class Sensor:
    """How far a sensor is off; the defaults are a cheap one's.

    Attributes:
        acc_bias_m_s2: size of the constant error of the acceleration.
        gyro_bias_rad_s: size of the constant error of the rate of rotation.
        acc_noise_m_s2: standard deviation of each sample.
        gyro_noise_rad_s: standard deviation of each sample.
        seed: of the directions of the constant errors: one sensor is off the same way in every recording.
    """

    acc_bias_m_s2: float = 0.1
    gyro_bias_rad_s: float = 0.003
    acc_noise_m_s2: float = 0.03
    gyro_noise_rad_s: float = 0.002
    seed: int = 0


PERFECT = Sensor(0, 0, 0, 0)


def make_recording(
    seconds: float = 60.0, rate_hz: float = 200.0, seed: int = 0, sensor: Sensor | None = None
) -> Recording:
    """Make a recording with its ground truth.

    Args:
        seconds: duration.
        rate_hz: frames per second.
        seed: of the motion and the noise.
        sensor: how far the sensor is off.
    """
    sensor = sensor or Sensor()
    random, directions = np.random.default_rng(seed), np.random.default_rng(sensor.seed)
    frames = max(1, round(seconds * rate_hz))
    time_s = np.arange(frames) / rate_hz
    positions, velocities, accelerations = _sines(random, time_s, size=2.0, longest_s=12.0)
    angles, angle_rates, _ = _sines(random, time_s, size=0.5, longest_s=9.0)
    rotations = Rotation.from_euler("xyz", angles)
    up = np.array([0.0, 0.0, GRAVITY_M_S2])

    def seen(signal: NDArray[np.float64], bias: float, noise: float) -> NDArray[np.float64]:
        direction = directions.standard_normal(3)
        offset = bias * direction / np.linalg.norm(direction)
        return np.asarray(signal + offset + noise * random.standard_normal(signal.shape))

    acc = rotations.inv().apply(accelerations + up)
    gyro = _body_rates(angles, angle_rates)
    return Recording(
        name=f"synthetic {seconds:g} s, seed {seed}",
        time_ns=np.round(time_s * 1e9).astype(np.int64),
        acc=seen(acc, sensor.acc_bias_m_s2, sensor.acc_noise_m_s2),
        gyro=seen(gyro, sensor.gyro_bias_rad_s, sensor.gyro_noise_rad_s),
        truth=Motion(positions, rotations.as_quat(), velocities),
    )


def _sines(
    random: np.random.Generator, time_s: NDArray[np.float64], size: float, longest_s: float
) -> tuple[NDArray[np.float64], ...]:
    """Return three sums of sines, [frames, 3], with their first and second derivatives."""
    shape = (_SINES, 1, 3)
    rates = 2 * np.pi / random.uniform(longest_s / 4, longest_s, shape)
    phases = random.uniform(0, 2 * np.pi, shape)
    sizes = size * random.uniform(0.2, 1, shape) / _SINES
    turns = rates * time_s[:, None] + phases
    values = sizes * np.sin(turns)
    slopes, bends = sizes * rates * np.cos(turns), -sizes * rates**2 * np.sin(turns)
    return tuple(np.asarray(terms.sum(axis=0)) for terms in (values, slopes, bends))


def _body_rates(angles: NDArray[np.float64], rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rate of rotation in the body, rad/s, of roll, pitch and yaw and their rates."""
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
