"""The recipe of AirIMU's demo checkpoint: simulated sensors, batches, and what the checkpoint reaches."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from slipway_client.imu.recording import Recording
from slipway_client.imu.synthetic import PERFECT, Sensor, Style, make_recording
from slipway_client.imu.trajectory import errors, integrate
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.airimu.family import FAMILY, facts_of
from slipway_recipes.airimu.simulation import Batch, drawn_batch
from slipway_serving.families.airimu.facts import Facts

RESTING = Style(rest_s=2.0, pause_s=4.0)


@pytest.fixture(scope="module")
def facts() -> Facts:
    with open_checkpoint(FAMILY, "tiny") as checkpoint:
        return facts_of(checkpoint, FAMILY.axes)


def drawn(facts: Facts, seed: int = 0) -> Batch:
    return drawn_batch(np.random.default_rng(seed), facts, 4, 3.0)


def test_body_stands_still_until_its_rest_is_over() -> None:
    made = make_recording(6.0, 200.0, seed=1, sensor=PERFECT, style=RESTING)
    assert made.truth is not None
    assert np.ptp(made.acc[:400], axis=0).max() < 1e-9
    assert np.abs(made.gyro[:400]).max() < 1e-9
    assert np.linalg.norm(made.truth.velocities[500:700], axis=1).max() > 0.1
    # The motion and its signals are still one another's.
    found = errors(made, integrate(made), 200)
    assert found.ate_m < 0.02 and found.aoe_deg < 0.1


def test_pauses_come_again_and_again_when_they_are_asked_for() -> None:
    made = make_recording(60.0, 200.0, seed=1, sensor=PERFECT, style=RESTING)
    still = np.linalg.norm(made.gyro, axis=1) < 1e-9
    assert np.count_nonzero(np.diff(still.astype(int)) == 1) >= 5


def seen_by(sensor: Sensor) -> Recording:
    return make_recording(60.0, 200.0, seed=3, sensor=sensor)


def test_errors_of_scale_and_axes_grow_with_the_signal() -> None:
    true, seen = seen_by(PERFECT), seen_by(Sensor(0, 0, 0, 0, scale=0.01, misalignment_rad=0.01))
    mixing, *_ = np.linalg.lstsq(true.acc, seen.acc - true.acc, rcond=None)
    np.testing.assert_allclose(true.acc @ mixing, seen.acc - true.acc, atol=1e-9)
    assert 0.001 < np.abs(mixing).max() < 0.04


def test_bias_wanders_as_far_as_its_time_allows() -> None:
    true, seen = seen_by(PERFECT), seen_by(Sensor(0, 0, 0, 0, acc_walk_m_s2=0.01, gyro_walk_rad_s=0.001))
    for name, walk in (("acc", 0.01), ("gyro", 0.001)):
        wandered = getattr(seen, name) - getattr(true, name)
        assert np.diff(wandered, axis=0).std() == pytest.approx(walk / np.sqrt(200), rel=0.05)
        assert 0.1 < np.abs(wandered[-1]).mean() / (walk * np.sqrt(60)) < 3


def test_batch_repeats_with_its_seed_and_fits_the_network(facts: Facts) -> None:
    first, again, other = drawn(facts), drawn(facts), drawn(facts, seed=1)
    for one, two in zip(astuple(first), astuple(again), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first.acc, other.acc)
    assert first.acc.shape == first.gyro.shape == (4, 609, 3)
    assert first.acc_error.shape == first.gyro_noise.shape == (4, 600, 3)
    assert {array.dtype for array in astuple(first)} == {np.dtype(np.float32)}


def test_batch_shows_gravity_where_its_bodies_rest_and_what_is_wrong_is_told_apart(facts: Facts) -> None:
    batch = drawn(facts)
    # All of these four rest for the first second.
    true = (batch.acc[:, 9:] - batch.acc_error - batch.acc_noise)[:, :200]
    np.testing.assert_allclose(true, np.broadcast_to(batch.acc[:, 8:9], true.shape), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(true, axis=2), 9.81007, atol=1e-4)
    assert np.abs(batch.acc_error.mean(axis=1)).max() > 0.01
    assert np.abs(batch.gyro[:, :9]).max() == 0


def test_demo_checkpoint_halves_the_errors_of_sensors_and_motions_that_it_never_saw() -> None:
    from slipway_export.families.airimu.local import by_torch
    from slipway_recipes.airimu.measures import figures

    found = figures(by_torch("demo"), recordings=16, seconds=30.0)
    for name in ("ate_share", "aoe_share", "rte_share", "roe_share"):
        assert found[name] < 0.5, found
    for name in ("acc_normalized_error", "gyro_normalized_error"):
        # Of so few a single one moves the mean; over 120 it is within 0.2 of 1 (the model card).
        assert 0.5 < found[name] < 2, found
