"""Schedules, noise and guidance against the published formulas and against diffusers."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from slipway_serving.diffusion.denoise import denoise
from slipway_serving.diffusion.guidance import (
    combine_branches,
    guidance_embedding,
    guided_steps,
    interval_problems,
)
from slipway_serving.diffusion.noise import Noise, make_noise
from slipway_serving.diffusion.schedules import DiffusersSchedule, FewStep, diffusers_schedule
from slipway_serving.protocol.diffusion.fields import FLOW_SHIFTS, MAX_GUIDANCE_SCALE, MAX_STEPS
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Unrecoverable
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import DENOISE_STEP, Recorder

SHAPE = (1, 16, 3, 4, 5)
WATCH = Interruption("world", lambda: False)
# Matrix-Game 2's configurations: the lists of steps, and what warping by a shift of 5 makes of them.
WARPED = {1000: 1000.0, 666: 908.84, 333: 713.98, 750: 937.5, 500: 833.33, 250: 625.0}


def few_step(*steps: int, seed: int = 3) -> FewStep:
    return FewStep(steps, 5.0, Noise(seed))


@pytest.mark.parametrize("steps", [(1000, 666, 333), (1000, 750, 500, 250), (500,)])
def test_few_steps_are_warped_as_matrix_game_has_them(steps: tuple[int, ...]) -> None:
    found = [float(timestep) for timestep in few_step(*steps).timesteps]
    assert found == pytest.approx([WARPED[step] for step in steps], abs=0.01)


def test_few_step_gives_clean_latents_and_fresh_noise_until_the_last_step() -> None:
    schedule, latents = few_step(1000, 666, 333), make_noise(5, SHAPE)
    noise, predictions = Noise(3), [make_noise(seed, SHAPE) for seed in (10, 11, 12)]
    for step, (timestep, prediction) in enumerate(zip(schedule.timesteps, predictions, strict=True)):
        sigma = float(timestep) / 1000
        clean = latents.double() - sigma * prediction.double()
        got = schedule.step(prediction, timestep, latents)
        assert got.dtype == torch.float32
        if step == 2:
            torch.testing.assert_close(got.double(), clean, rtol=1e-6, atol=1e-6)
            break
        following = float(schedule.timesteps[step + 1]) / 1000
        wanted = (1 - following) * clean + following * noise.next(SHAPE).double()
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
        latents = got


def test_few_step_takes_a_timestep_for_each_frame() -> None:
    latents, prediction = make_noise(5, SHAPE), make_noise(6, SHAPE)
    steps = few_step(1000, 666, 333).timesteps
    mixed = torch.stack([steps[0], steps[2], steps[1]])[None]
    got = few_step(1000, 666, 333).step(prediction, mixed, latents)
    for frame, place in enumerate((0, 2, 1)):
        alone = few_step(1000, 666, 333).step(prediction, steps[place], latents)
        assert torch.equal(got[:, :, frame], alone[:, :, frame])


def test_sigma_is_that_of_the_nearest_timestep_and_none_at_0() -> None:
    schedule = few_step(1000, 666, 333)
    near = torch.tensor([[1000.0, 908.9, 713.9, 0.0]])
    assert schedule.sigma(near)[0].tolist() == pytest.approx([1, 0.90884, 0.71398, 0], abs=1e-4)


@pytest.mark.parametrize("steps", [(), (333, 666), (666, 666), (1001, 5), (5, 0)])
def test_few_steps_are_refused_when_they_do_not_descend_within_the_table(steps: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="steps must be descending, 1000 to 1, got"):
        few_step(*steps)


def test_schedule_of_diffusers_gives_its_timesteps_and_steps() -> None:
    config = dict(FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True).config)
    config["_class_name"] = "FlowMatchEulerDiscreteScheduler"
    theirs = FlowMatchEulerDiscreteScheduler.from_config(config)
    theirs.set_timesteps(4, mu=1.5)
    ours = diffusers_schedule(config, None, 4, "x", Noise(0), mu=1.5)
    latents = expected = make_noise(0, SHAPE)
    for timestep, wanted in zip(ours.timesteps, theirs.timesteps, strict=True):
        assert timestep == wanted
        latents = ours.step(latents * 0.3, timestep, latents)
        expected = theirs.step(expected * 0.3, wanted, expected, return_dict=False)[0]
        assert torch.equal(latents, expected)


def test_schedule_is_refused_when_the_scheduler_takes_another_number_of_steps() -> None:
    class Stubborn(FlowMatchEulerDiscreteScheduler):
        def set_timesteps(self, steps: int) -> None:
            super().set_timesteps(steps + 1)

    with pytest.raises(Unrecoverable, match="x: the scheduler must take 3 steps, got 4"):
        DiffusersSchedule(Stubborn(), 3, "x", Noise(0))


def test_noise_goes_on_from_block_to_block() -> None:
    noise = Noise(7)
    assert torch.equal(noise.next(SHAPE), make_noise(7, SHAPE))
    assert not torch.equal(noise.next(SHAPE), make_noise(7, SHAPE))
    assert torch.equal(torch.cat([Noise(7).next((4,))]), make_noise(7, (4,)))


def test_one_prediction_comes_of_one_branch_or_two() -> None:
    branches = torch.tensor([[3.0], [1.0]])
    assert combine_branches(branches, 4.0).tolist() == [[9.0]]
    assert combine_branches(branches[:1], 4.0) is not None and combine_branches(
        branches[:1], 4.0
    ).tolist() == [[3.0]]


def test_embedded_guidance_is_in_thousandths() -> None:
    assert guidance_embedding(10.0).tolist() == [10_000.0]
    assert guidance_embedding(10.0).dtype == np.float32


def test_loop_runs_few_steps_block_after_block_with_the_same_schedule() -> None:
    schedule, asked = few_step(1000, 500), []

    def predict(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        asked.append((step, float(timestep)))
        return latents * 0.5

    blocks = []
    for _ in range(2):
        *_, last = denoise(schedule, make_noise(1, SHAPE), predict, WATCH, Recorder(), "world")
        blocks.append(last)
    assert [step for step, _ in asked] == [0, 1, 0, 1]
    # The same initial noise: what differs is the noise in between, which goes on.
    assert not torch.equal(*blocks)


def test_loop_names_whose_latents_are_not_finite_and_at_which_step() -> None:
    def predict(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        return latents * (float("nan") if step == 1 else 1)

    loop = denoise(few_step(1000, 500), make_noise(1, SHAPE), predict, WATCH, Recorder(), "world")
    next(loop)
    with pytest.raises(
        Unrecoverable, match="world: latents must be finite, .* after step 2 of 2 at timestep 833"
    ):
        next(loop)


def test_denoise_records_what_each_step_took_when_the_clock_has_gone_on() -> None:
    clock = iter([100.0, 101.0, 103.5, 110.0, 110.25])
    interruption = Interruption("world", lambda: False, clock=lambda: next(clock))
    recorder, points = Recorder(), []
    schedule, latents = few_step(1000, 500), make_noise(1, SHAPE)

    def predict(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        points.append((step, float(timestep)))
        return torch.zeros_like(latents)

    first, last = denoise(schedule, latents, predict, interruption, recorder, "world")
    (told,) = recorder.updates()
    assert (told.metric, told.amounts) == (DENOISE_STEP, (2.5, 0.25))
    assert points == [(0, 1000.0), (1, pytest.approx(833.33, abs=0.01))]
    # The last step gives the clean latents: those before it where nothing is predicted.
    torch.testing.assert_close(last, first)


def test_denoise_says_before_which_step_it_was_stopped() -> None:
    done: list[int] = []
    interruption = Interruption("world", lambda: bool(done))
    loop = denoise(
        few_step(1000, 500),
        make_noise(1, SHAPE),
        lambda latents, _, step: (done.append(step), torch.zeros_like(latents))[1],
        interruption,
        Recorder(),
        "world",
    )
    next(loop)
    with pytest.raises(Cancelled, match="world: cancelled by the caller before step 2 of 2"):
        next(loop)
    assert done == [0]


UNIPC = {
    "_class_name": "UniPCMultistepScheduler",
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
}


@pytest.mark.parametrize("config", [UNIPC, {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}])
@pytest.mark.parametrize("shift", FLOW_SHIFTS)
@pytest.mark.parametrize("steps", [1, 2, 3, 40, MAX_STEPS])
def test_latents_stay_finite_for_the_ends_of_what_a_request_may_ask(
    config: dict[str, object], shift: float, steps: int
) -> None:
    schedule, latents, noise = (
        diffusers_schedule(config, shift, steps, "x", Noise(0)),
        make_noise(0, SHAPE),
        Noise(1),
    )
    for timestep in schedule.timesteps:
        branches = torch.cat([noise.next(SHAPE), noise.next(SHAPE)])
        latents = schedule.step(combine_branches(branches, MAX_GUIDANCE_SCALE), timestep, latents)
    assert torch.isfinite(latents).all()


def test_noise_goes_on_from_a_state_when_it_is_taken_up_elsewhere() -> None:
    noise = Noise(5)
    assert torch.equal(noise.next(SHAPE), make_noise(5, SHAPE))
    state = noise.state
    assert state.dtype == np.uint8
    taken = Noise.at(state)
    following = noise.next((2, 3))
    assert torch.equal(taken.next((2, 3)), following)
    # What goes on elsewhere leaves the state as it was.
    assert torch.equal(Noise.at(state).next((2, 3)), following)
    with pytest.raises(ValueError, match="state"):
        Noise.at(state[:-1])


def test_guidance_is_for_the_steps_between_its_shares() -> None:
    assert guided_steps(1.5, 0.25, 0.75, 8) == range(2, 6)
    assert guided_steps(1.5, 0.0, 1.0, 8) == range(8)
    assert len(guided_steps(1.0, 0.0, 1.0, 8)) == 0
    assert guided_steps(5.0, 0.0, 0.99, 1) == range(0)
    assert interval_problems(0.2, 0.3) == []
    assert interval_problems(0.3, 0.3) == [
        "guidance_start must be below guidance_stop (0.3), got 0.3; try 0.0, or guidance_scale 1.0 for no"
        " guidance at all"
    ]
    assert len(interval_problems(0.4, 0.3)) == 1
