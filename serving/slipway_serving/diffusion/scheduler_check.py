"""Check that a checkpoint's scheduler can take every number of steps that a request may ask for.

An export calls :func:`check_scheduler` before any work, and a served pipeline calls it while it loads, so
that no request is the first to try a configuration. The scheduler takes several numbers of steps along a
flow that leads to known clean latents, where a scheduler for flows ends. The flow is constant for a scheduler
whose steps draw no numbers. A stochastic scheduler leaves its path with each step; at any place the flow then
leads from there to the clean latents. All random numbers must come from the request's noise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import Schedule, scheduler_class
from slipway_serving.protocol.diffusion.fields import MAX_STEPS
from slipway_serving.protocol.errors import InvalidRequest, raise_all

Make = Callable[[Mapping[str, Any], int, Noise], Schedule]
"""Builds the schedule of a configuration for a number of steps and the noise of a request, as the pipeline
builds it for a request."""

STEP_COUNTS = (1, 2, 40, MAX_STEPS)
SUPPORTED = (
    "FlowMatchEulerDiscreteScheduler, or UniPCMultistepScheduler with prediction_type flow_prediction and"
    " use_flow_sigmas true"
)
# With these values a scheduler treats the network's output as a flow.
_FLOW_VALUES: Mapping[str, Any] = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
# Largest share of the noise that may be left, since schedules begin a little below a noise level of 1.
_MAX_RESIDUAL_NOISE = 0.05


_CLEAN, _NOISE = torch.randn((2, 1, 4, 1, 2, 2), generator=torch.Generator().manual_seed(0))


def check_scheduler(config: Mapping[str, Any], make: Make, where: str) -> None:
    """Refuse a scheduler that a pipeline cannot use for every number of steps.

    Args:
        config: Contents of scheduler_config.json, ``_class_name`` included.
        make: Builder of the schedule.
        where: Name of the file, for messages.

    Raises:
        InvalidRequest: The class is unknown, or a value has another type than the class expects, or the
            scheduler fails, draws random numbers, or does not end at the clean latents; the message names the
            key, its value and what is supported.
    """
    kind = scheduler_class(config, where)
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    raise_all(where, [*_type_problems(config, known), *_flow_problems(config, known)])
    fault = _fault(config, make)
    if fault is None:
        return
    for key in [key for key in config if key != "_class_name"]:
        if _fault({other: value for other, value in config.items() if other != key}, make) is None:
            rule = f"{known[key]!r}" if key in known else "left out"
            raise InvalidRequest(
                f"{where}: {key} must be {rule}, the value with which {kind.__name__} works, got"
                f" {config[key]!r}: {fault}"
            )
    raise InvalidRequest(
        f"{where}: _class_name must be a scheduler that solves a flow in as many steps as a request asks for,"
        f" such as {SUPPORTED}; got {kind.__name__}: {fault}"
    )


def _type_problems(config: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Return the problems of values whose type differs from that of the class's own default."""
    problems = []
    for key, default in known.items():
        value = config.get(key, default)
        if default is None or value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        kind = type(default)
        fits = is_number if kind in (int, float) else isinstance(value, kind)
        if kind is int and isinstance(value, float):
            fits = value.is_integer()
        if not fits:
            problems.append(f"{key} must be of type {kind.__name__}, such as {default!r}, got {value!r}")
    return problems


def _flow_problems(config: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Return the problems of keys that describe a prediction other than a flow.

    A class without ``use_flow_sigmas`` supports only flows or none at all; :func:`_fault` finds out which.
    """
    if "use_flow_sigmas" not in known:
        return []
    return [
        f"{key} must be {wanted!r}, since the network predicts a flow, got {config.get(key, known[key])!r};"
        f" supported is {SUPPORTED}"
        for key, wanted in _FLOW_VALUES.items()
        if key in known and config.get(key, known[key]) != wanted
    ]


def _fault(config: Mapping[str, Any], make: Make) -> str | None:
    """Return the reason why a configuration cannot be used, or None."""
    try:
        for steps in STEP_COUNTS:
            _check_steps(config, make, steps)
    except _Unusable as error:
        return str(error)
    return None


class _Unusable(Exception):
    """A scheduler cannot be used; the message says why."""


def _check_steps(config: Mapping[str, Any], make: Make, steps: int) -> None:
    """Take a number of steps several times; raise _Unusable if the result is wrong or differs."""

    def run(seed: int, ambient_seed: int, *, is_stochastic: bool = False) -> torch.Tensor:
        return _residual(make(config, steps, Noise(seed)), ambient_seed, is_stochastic)

    try:
        residual, repeated, other = run(0, 0), run(0, 1), run(1, 0)
        is_stochastic = not torch.equal(residual, other)
        if is_stochastic:
            residual, repeated = (run(0, ambient, is_stochastic=True) for ambient in (0, 1))
    except Exception as error:  # The errors of diffusers have no common base.
        reason = " ".join(str(error).split())[:300]
        raise _Unusable(f"{steps} steps end with {type(error).__name__}: {reason}") from error
    if not torch.equal(residual, repeated):
        raise _Unusable(
            f"its steps draw random numbers that do not depend on the request's seed ({steps} steps)"
        )
    left = float(residual.norm() / (_NOISE - _CLEAN).norm())
    if not left < _MAX_RESIDUAL_NOISE:
        flow = "a flow to known latents" if is_stochastic else "a constant flow"
        raise _Unusable(f"{steps} steps along {flow} must remove the noise, but {left:.3g} of it is left")


def _residual(schedule: Schedule, ambient_seed: int, is_stochastic: bool) -> torch.Tensor:
    """Return the noise that a schedule leaves in the latents.

    Args:
        schedule: The schedule; the call uses it up.
        ambient_seed: Seed of torch's own random numbers, which no scheduler should use.
        is_stochastic: True if the flow leads to the clean latents from wherever the steps have gone.
    """
    latents: torch.Tensor = _NOISE
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(ambient_seed)
        for step, timestep in enumerate(schedule.timesteps):
            flow = _NOISE - _CLEAN
            if is_stochastic:
                # `clean` is latents - sigma * prediction, so a prediction of ones gives sigma.
                ones = torch.ones_like(latents)
                flow = (latents - _CLEAN) / (latents - schedule.clean(ones, step, latents))
            latents = schedule.step(flow, timestep, latents)
    left: torch.Tensor = latents - _CLEAN
    return left
