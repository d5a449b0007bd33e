"""Simulation of sensors and motions, and of the training batches that the sensors record.

The sensors have many qualities, with errors between those of a good industrial sensor and a cheap phone's.
The motions are those of hands, walkers and robots. All begin at rest, as a recording does when the device is
switched on. During the rest a network can distinguish a sensor's bias from motion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slipway_client.imu.synthetic import PERFECT, Sensor, Style, apply_sensor_errors, make_recording
from slipway_serving.families.airimu.facts import Facts

RATE_HZ = 200.0
_MOST_SEED = 2**31

Signal = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """Batch of recordings of equal length.

    Args:
        acc: Measured acceleration, [batch, lead + frames, 3], in m/s².
        gyro: Measured rate of rotation, same shape, in rad/s.
        acc_error: Error of `acc` without the noise, [batch, frames, 3], in m/s².
        gyro_error: Error of `gyro` without the noise, same shape, in rad/s.
        acc_noise: Noise of `acc`, [batch, frames, 3], in m/s².
        gyro_noise: Noise of `gyro`, same shape, in rad/s.
    """

    acc: Signal
    gyro: Signal
    acc_error: Signal
    gyro_error: Signal
    acc_noise: Signal
    gyro_noise: Signal


def drawn_sensor(random: np.random.Generator) -> Sensor:
    """Draw a sensor of random quality."""

    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    return Sensor(
        acc_bias_m_s2=between(0.03, 0.4),
        gyro_bias_rad_s=between(0.001, 0.02),
        acc_noise_m_s2=between(0.008, 0.08),
        gyro_noise_rad_s=between(0.0007, 0.005),
        scale=between(0.0005, 0.005),
        misalignment_rad=between(0.0005, 0.005),
        acc_walk_m_s2=between(0.0002, 0.002),
        gyro_walk_rad_s=between(0.00001, 0.0001),
        seed=int(random.integers(_MOST_SEED)),
    )


def drawn_style(random: np.random.Generator) -> Style:
    """Draw a style of motion that begins with a rest of 1 to 3 s."""
    longest_s = random.uniform(5.0, 20.0)
    return Style(
        # Slow movements are larger, so that accelerations are similar.
        reach_m=random.uniform(0.3, 2.5) * (longest_s / 12.0) ** 1.5,
        longest_s=longest_s,
        tilt_rad=random.uniform(0.05, 0.7),
        turn_s=random.uniform(6.0, 15.0),
        heading_rad=random.uniform(0.0, 3.0) * float(random.random() < 0.7),
        step_m=random.uniform(0.005, 0.04) * float(random.random() < 0.5),
        rest_s=random.uniform(1.0, 3.0),
        pause_s=random.uniform(4.0, 12.0) * float(random.random() < 0.5),
    )


def drawn_batch(random: np.random.Generator, facts: Facts, batch: int, seconds: float) -> Batch:
    """Draw recordings as network inputs, with a lead-in at rest before their first frames.

    Args:
        random: Generator of sensors, motions and noise.
        facts: Facts of the network.
        batch: Number of recordings.
        seconds: Length of each recording, in seconds.
    """
    true, errors, noises, turned = [], [], [], []
    for _ in range(batch):
        sensor, seed = drawn_sensor(random), int(random.integers(_MOST_SEED))
        still = make_recording(seconds, RATE_HZ, seed, PERFECT, drawn_style(random))
        quiet = replace(sensor, acc_noise_m_s2=0.0, gyro_noise_rad_s=0.0)
        signals = np.hstack([still.acc, still.gyro])
        true.append(signals)
        errors.append(np.hstack(apply_sensor_errors(random, still.acc, still.gyro, quiet, RATE_HZ)) - signals)
        spread = np.repeat([sensor.acc_noise_m_s2, sensor.gyro_noise_rad_s], 3)
        noises.append(spread * random.standard_normal(signals.shape))
        turned.append(still.rotation_at(0))
    lead = facts.lead_in(np.stack(turned).astype(np.float32), batch)
    error, noise = np.stack(errors), np.stack(noises)
    given = np.concatenate([lead, np.stack(true) + error + noise], axis=1)
    return Batch(
        *(part.astype(np.float32) for whole in (given, error, noise) for part in np.split(whole, 2, 2))
    )
