"""The seed decides the video with every scheduler that the check accepts, those that draw noise included."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import diffusers.schedulers
import pytest
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchLCMScheduler,
)
from test_framepack_pipeline import FACTS as FRAMEPACK

from slipway_serving.diffusion import scheduler_check
from slipway_serving.diffusion.noise import Noise, make_noise
from slipway_serving.diffusion.scheduler_check import check_scheduler
from slipway_serving.diffusion.schedules import (
    DiffusersSchedule,
    diffusers_schedule,
    listed_schedule,
    renoising_schedule,
)
from slipway_serving.families.framepack_i2v import pipeline as framepack
from slipway_serving.families.wan_t2v import pipeline as wan
from slipway_serving.protocol.errors import InvalidRequest

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
# Options that make a scheduler draw random numbers, or that change its steps.
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"stochastic_sampling": True},
    {"algorithm_type": "sde-dpmsolver++"},
    {"euler_at_final": True, "algorithm_type": "sde-dpmsolver++"},
    {"shift": 5.0},
)
STEPS, SHAPE = 6, (1, 4, 2, 4, 4)
STOCHASTIC = {
    "FlowMatchLCMScheduler": {},
    "LTXEulerAncestralRFScheduler": {},
    "FlowMatchEulerDiscreteScheduler": {"stochastic_sampling": True},
}


def accepted() -> list[dict[str, Any]]:
    """Return the configurations of all of diffusers' schedulers that the pipeline of Wan accepts."""
    found = []
    for name in sorted(dir(diffusers.schedulers)):
        kind = getattr(diffusers.schedulers, name)
        try:
            known = inspect.signature(kind).parameters
        except (TypeError, ValueError, ImportError):
            continue
        if not name.endswith("Scheduler"):
            continue
        flow = {key: value for key, value in FLOW.items() if key in known}
        for options in OPTIONS:
            config = {"_class_name": name, **flow, **options}
            if not set(options) <= set(known):
                continue
            try:
                wan.check_schedules(config, "s.json")
            except InvalidRequest:
                continue
            found.append(config)
    return found


ACCEPTED = accepted()


def run(schedule: DiffusersSchedule, latents: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Take the steps of a schedule with a prediction that depends on latents and step."""
    for step in range(first, len(schedule.timesteps)):
        latents = schedule.step(torch.sin(3 * latents + step), schedule.timesteps[step], latents)
    return latents


def video(config: Mapping[str, Any], seed: int, ambient_seed: int) -> torch.Tensor:
    """Return the latents of a request's seed, while other requests use torch's own random numbers."""
    noise = Noise(seed)
    torch.manual_seed(ambient_seed)
    latents = noise.next(SHAPE)
    return run(diffusers_schedule(config, None, STEPS, "x", noise), latents)


def test_check_accepts_stochastic_schedulers() -> None:
    names = [config["_class_name"] for config in ACCEPTED]
    assert set(STOCHASTIC) | {"UniPCMultistepScheduler", "DPMSolverMultistepScheduler"} <= set(names)


@pytest.mark.parametrize("config", ACCEPTED, ids=str)
def test_latents_are_bit_equal_when_the_seed_is_the_same(config: dict[str, Any]) -> None:
    first, second, other = video(config, 7, 0), video(config, 7, 1), video(config, 8, 0)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("config", ACCEPTED, ids=str)
@pytest.mark.parametrize("stop", [1, 3, STEPS - 1])
def test_latents_are_bit_equal_when_a_video_is_stopped_and_continued(
    config: dict[str, Any], stop: int
) -> None:
    noise = Noise(7)
    latents = noise.next(SHAPE)
    schedule = diffusers_schedule(config, None, STEPS, "x", noise)
    for step in range(stop):
        latents = schedule.step(torch.sin(3 * latents + step), schedule.timesteps[step], latents)
    later = Noise(0)
    continued = diffusers_schedule(config, None, STEPS, "x", later)
    continued.restore(schedule.state(), stop, latents)
    later.restore(noise.state)
    assert torch.equal(run(continued, latents, stop), run(schedule, latents, stop))


def test_steps_equal_diffusers_when_it_is_given_the_same_generator() -> None:
    generator = torch.Generator().manual_seed(3)
    scheduler = FlowMatchLCMScheduler(shift=5.0)
    scheduler.set_timesteps(4)
    latents = torch.randn(SHAPE, generator=generator)
    for step, timestep in enumerate(scheduler.timesteps):
        prediction = torch.sin(3 * latents + step)
        latents = scheduler.step(prediction, timestep, latents, generator=generator, return_dict=False)[0]
    noise = Noise(3)
    start = noise.next(SHAPE)
    ours = diffusers_schedule({"_class_name": "FlowMatchLCMScheduler", "shift": 5.0}, None, 4, "x", noise)
    assert torch.equal(run(ours, start), latents)


UNIPC = {"_class_name": "UniPCMultistepScheduler", **FLOW, "flow_shift": 5.0}
FASTWAN_STEPS = (1000, 757, 522)
# Schedules of listed steps: FastWan's, and those of lightx2v with the checkpoint's kind of scheduler.
LISTED: dict[str, Callable[[Noise], DiffusersSchedule]] = {
    "fastwan": lambda noise: renoising_schedule(UNIPC, FASTWAN_STEPS, None, "x", noise),
    "euler": lambda noise: listed_schedule(UNIPC, (1000, 750, 250), 5.0, "x", noise),
    "lcm": lambda noise: listed_schedule(
        {"_class_name": "FlowMatchLCMScheduler"}, (1000, 750, 250), 5.0, "x", noise
    ),
}


@pytest.mark.parametrize("make", LISTED.values(), ids=LISTED)
def test_listed_steps_are_bit_equal_when_the_seed_is_the_same(
    make: Callable[[Noise], DiffusersSchedule],
) -> None:
    def latents(seed: int, ambient_seed: int) -> torch.Tensor:
        noise = Noise(seed)
        torch.manual_seed(ambient_seed)
        start = noise.next(SHAPE)
        return run(make(noise), start)

    assert torch.equal(latents(7, 0), latents(7, 1))
    assert not torch.equal(latents(7, 0), latents(8, 0))


@pytest.mark.parametrize("make", LISTED.values(), ids=LISTED)
@pytest.mark.parametrize("stop", [1, 2])
def test_listed_steps_are_bit_equal_when_a_video_is_stopped_and_continued(
    make: Callable[[Noise], DiffusersSchedule], stop: int
) -> None:
    noise = Noise(7)
    latents = noise.next(SHAPE)
    schedule = make(noise)
    for step in range(stop):
        latents = schedule.step(torch.sin(3 * latents + step), schedule.timesteps[step], latents)
    later = Noise(0)
    continued = make(later)
    continued.restore(schedule.state(), stop, latents)
    later.restore(noise.state)
    assert torch.equal(run(continued, latents, stop), run(schedule, latents, stop))


def test_listed_steps_draw_noise_when_the_checkpoints_scheduler_does() -> None:
    def after(name: str, seed: int) -> torch.Tensor:
        schedule = LISTED[name](Noise(seed))
        return run(schedule, torch.zeros(SHAPE))

    assert torch.equal(after("euler", 1), after("euler", 2))
    assert not torch.equal(after("lcm", 1), after("lcm", 2))


def test_fastwan_gives_the_network_its_timesteps_and_takes_the_sigmas_of_the_shifted_table() -> None:
    table = FlowMatchEulerDiscreteScheduler(shift=5.0)
    schedule = LISTED["fastwan"](Noise(0))
    assert [float(each) for each in schedule.timesteps] == list(FASTWAN_STEPS)
    latents = torch.ones(1, 1, 1, 1, 1)
    for step, timestep in enumerate(FASTWAN_STEPS):
        sigma = 1 - schedule.clean(latents, step, latents)
        nearest = table.sigmas[(table.timesteps - timestep).abs().argmin()]
        torch.testing.assert_close(sigma.flatten()[0], nearest, atol=1e-6, rtol=0)


def test_stochastic_scheduler_is_accepted_for_framepack() -> None:
    config = {"_class_name": "FlowMatchLCMScheduler"}
    framepack.check_schedules(replace(FRAMEPACK, scheduler=config), "s.json")


class _Ambient(DPMSolverMultistepScheduler):  # type: ignore[misc]
    """Scheduler that ignores the generator."""

    def step(self, *args: Any, generator: object = None, **kwargs: Any) -> Any:
        (after,) = super().step(*args, **kwargs)
        return (after + 0.01 * torch.randn(after.shape),)


def test_scheduler_is_refused_when_it_draws_numbers_that_are_not_the_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_check, "scheduler_class", lambda *_: _Ambient)

    def make(config: Mapping[str, Any], steps: int, noise: Noise) -> DiffusersSchedule:
        return DiffusersSchedule(_Ambient.from_config(config), steps, "x", noise)

    with pytest.raises(InvalidRequest, match="its steps draw random numbers that do not depend on the req"):
        check_scheduler({"_class_name": "Ambient", **FLOW}, make, "s.json")


def test_noise_of_a_seed_is_that_of_its_generator() -> None:
    assert torch.equal(torch.randn((3,), generator=Noise(5).generator), make_noise(5, (3,)))
