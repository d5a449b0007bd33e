"""Quality figures on arrays whose figures are known."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import structural_similarity

from slipway_benchmarks import similarity

RANDOM = np.random.default_rng(0)
FRAMES = RANDOM.integers(0, 256, (2, 3, 24, 32)).astype(np.uint8)
LATENTS = RANDOM.standard_normal((1, 16, 3, 8, 5)).astype(np.float32)


def test_relative_l2_is_the_share_of_the_norm_when_scaled() -> None:
    assert similarity.relative_l2(LATENTS * 1.25, LATENTS) == pytest.approx(0.25)


def test_relative_l2_is_the_difference_when_the_reference_is_zero() -> None:
    assert similarity.relative_l2(np.array([3.0, 4.0]), np.zeros(2)) == 5.0


def test_psnr_is_that_of_the_definition_when_pixels_are_off_by_one() -> None:
    expected = np.full((4, 4), 100, np.uint8)
    assert similarity.psnr_db(expected + 1, expected) == pytest.approx(48.1308, abs=1e-4)


def test_psnr_takes_the_range_of_the_reference_when_it_is_float() -> None:
    expected = np.array([-3.0, 1.0], np.float32)
    assert similarity.psnr_db(expected + np.float32(0.4), expected) == pytest.approx(20.0, abs=1e-4)


def test_psnr_does_not_wrap_around_when_uint8_values_differ_by_much() -> None:
    low, high = np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8)
    assert similarity.psnr_db(low, high) == pytest.approx(0.0)


@pytest.mark.parametrize("stack", [FRAMES, LATENTS], ids=["frames", "latents smaller than a window"])
def test_quality_is_perfect_when_both_are_identical(stack: np.ndarray) -> None:
    assert similarity.psnr_db(stack, stack) is None
    assert similarity.ssim(stack, stack) == pytest.approx(1.0)


def test_ssim_is_near_zero_when_pictures_are_unrelated() -> None:
    other = np.random.default_rng(1).integers(0, 256, FRAMES.shape).astype(np.uint8)
    assert abs(similarity.ssim(other, FRAMES)) < 0.1


def test_ssim_follows_the_formula_when_planes_are_flat() -> None:
    # Without variance only the luminance term is left: (2ab + c1) / (a^2 + b^2 + c1).
    a, e = np.full((9, 9), 100, np.uint8), np.full((9, 9), 200, np.uint8)
    c1 = (0.01 * 255) ** 2
    assert similarity.ssim(a, e) == pytest.approx((2 * 100 * 200 + c1) / (100**2 + 200**2 + c1))


@pytest.mark.parametrize("stack", [FRAMES, LATENTS.transpose(0, 2, 4, 3, 1)], ids=["frames", "latents"])
def test_ssim_is_that_of_scikit_image_when_planes_are_as_large_as_a_window(stack: np.ndarray) -> None:
    noise = np.random.default_rng(2).standard_normal(stack.shape) * np.ptp(stack) / 20
    actual = stack + noise
    planes = [each.reshape(-1, *stack.shape[-2:]) for each in (actual, stack)]
    found = structural_similarity(
        *planes, win_size=7, data_range=similarity.peak(stack), channel_axis=0, use_sample_covariance=False
    )
    assert similarity.ssim(actual, stack) == pytest.approx(found, rel=1e-9)


def test_ssim_falls_when_noise_grows() -> None:
    noise = RANDOM.standard_normal(LATENTS.shape).astype(np.float32)
    little, much = (similarity.ssim(LATENTS + scale * noise, LATENTS) for scale in (0.1, 0.5))
    assert much < little < 1.0
