"""Noise schedules: which timesteps a loop goes through, and what a step makes of the network's prediction.

A :class:`Schedule` is made for one piece of work. :func:`diffusers_schedule` takes one of diffusers' own by
its configuration. :class:`FewStep` is for networks that were distilled to a few steps: each predicts the
clean latents, which are noised anew for the next.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

from slipway_serving.diffusion.noise import Noise
from slipway_serving.errors import InvalidRequest, Unrecoverable


class Schedule(Protocol):
    """What :func:`slipway_serving.diffusion.denoise.denoise` goes by."""

    @property
    def timesteps(self) -> Sequence[torch.Tensor]:
        """The timestep of each step: a number, or one for each latent frame, [batch, latent frames]."""

    def step(self, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents after a step; a schedule may ask for its steps in their order."""


class DiffusersSchedule:
    """One of diffusers' flow schedulers.

    Args:
        scheduler: see :func:`make_scheduler`; changed by the work.
        steps: how many to take.
        where: who takes them, for messages.
        timing: further arguments of the scheduler's ``set_timesteps``, such as ``mu``.

    Raises:
        Unrecoverable: the scheduler takes another number of steps.
    """

    def __init__(self, scheduler: Any, steps: int, where: str, **timing: Any) -> None:
        self.config = scheduler.config
        self._scheduler = scheduler
        scheduler.set_timesteps(steps, **timing)
        scheduler.set_begin_index(0)
        self.timesteps: Sequence[torch.Tensor] = scheduler.timesteps
        if len(self.timesteps) != steps:
            raise Unrecoverable(f"{where}: the scheduler must take {steps} steps, got {len(self.timesteps)}")

    def step(self, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents after a step; the steps come in their order."""
        after: torch.Tensor = self._scheduler.step(prediction, timestep, latents, return_dict=False)[0]
        return after


def scheduler_class(config: Mapping[str, Any], where: str) -> Any:
    """Return the diffusers class of a scheduler's configuration.

    Args:
        config: Contents of scheduler_config.json, ``_class_name`` included.
        where: Name of the file, for messages.

    Raises:
        InvalidRequest: The configuration is no mapping, or diffusers has no such scheduler.
    """
    import diffusers.schedulers  # lazily loads the one scheduler that is asked for

    name = config.get("_class_name") if isinstance(config, Mapping) else None
    # A scheduler whose library is not installed is a placeholder, whose attributes raise ImportError.
    kind: Any = getattr(diffusers.schedulers, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or "set_begin_index" not in {
        key for base in kind.__mro__ for key in vars(base)
    }:
        raise InvalidRequest(
            f"{where}: _class_name must be one of diffusers' schedulers for flows, got {name!r}"
        )
    return kind


def make_scheduler(config: Mapping[str, Any], flow_shift: float | None, where: str) -> Any:
    """Build a diffusers scheduler.

    Args:
        config: contents of scheduler_config.json, ``_class_name`` included.
        flow_shift: replaces the checkpoint's own shift; None keeps it.
        where: whose request it is, for messages.

    Raises:
        InvalidRequest: the scheduler has no flow shift, or diffusers no such scheduler.
    """
    kind = scheduler_class(config, f"{where}: scheduler")
    if flow_shift is None:
        return kind.from_config(config)
    known = inspect.signature(kind).parameters
    # UniPC and others apply flow_shift to flow sigmas only; FlowMatchEuler calls the same thing shift.
    key = "flow_shift" if "flow_shift" in known and config.get("use_flow_sigmas") else "shift"
    if key not in known:
        raise InvalidRequest(
            f"{where}: flow_shift must be left out with this checkpoint's {kind.__name__}, got {flow_shift}"
        )
    return kind.from_config(config, **{key: flow_shift})


def diffusers_schedule(
    config: Mapping[str, Any], flow_shift: float | None, steps: int, where: str, **timing: Any
) -> DiffusersSchedule:
    """Build the schedule of one piece of work; see :func:`make_scheduler` and :class:`DiffusersSchedule`."""
    return DiffusersSchedule(make_scheduler(config, flow_shift, where), steps, where, **timing)


class FewStep:
    """A flow schedule of a few given steps: predict the clean latents, noise them for the next step.

    The steps are places in a shifted table of sigmas, as distillation by distribution matching (self-forcing)
    and Matrix-Game 2 have them.

    Args:
        steps: places in the table, descending, each above 0, e.g. (1000, 666, 333).
        shift: of the flow's sigmas.
        noise: gives fresh numbers; goes on over the blocks of a session.
        train_steps: entries of the table.

    Raises:
        InvalidRequest: The steps do not descend within the table, or the shift is not above 0.

    Attributes:
        timesteps: sigma times `train_steps`, float32, descending.
    """

    def __init__(self, steps: Sequence[int], shift: float, noise: Noise, train_steps: int = 1000) -> None:
        whole = all(type(step) is int for step in steps)
        falling = whole and all(earlier > later for earlier, later in pairwise(steps))
        if not steps or not falling or steps[0] > train_steps or steps[-1] < 1:
            raise InvalidRequest(
                f"few-step schedule: steps must be descending, {train_steps} to 1, got {list(steps)}"
            )
        if type(shift) not in (int, float) or not (shift > 0 and math.isfinite(shift)):
            raise InvalidRequest(f"few-step schedule: shift must be a finite number above 0, got {shift!r}")
        plain = torch.linspace(1.0, 0.0, train_steps + 1)[:-1]
        self._sigmas = shift * plain / (1 + (shift - 1) * plain)
        self._table = self._sigmas * train_steps
        self._noise = noise
        self._places = self._table[[train_steps - step for step in steps]]
        self.timesteps: Sequence[torch.Tensor] = list(self._places)

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        """Return the sigma of each timestep: that of the nearest entry of the table; 0 for timestep 0."""
        nearest = (self._table - timestep.reshape(-1, 1)).abs().argmin(dim=1)
        return torch.where(timestep == 0, 0.0, self._sigmas[nearest].reshape(timestep.shape))

    def step(self, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents after a step; after the last one they are clean.

        Args:
            prediction: the flow, shape of the latents.
            timestep: of this schedule: a number, or one for each latent frame, [batch, latent frames].
            latents: [batch, channels, latent frames, height, width].
        """
        sigma = _over_frames(self.sigma(timestep), latents)
        # x0 = x_t - sigma * v, in float64 as upstream has it.
        clean = (latents.double() - sigma.double() * prediction.double()).to(latents.dtype)
        following = self._following(timestep)
        if not following.any():
            return clean
        sigma = _over_frames(self.sigma(following), latents)
        return (1 - sigma) * clean + sigma * self._noise.next(tuple(latents.shape))

    def _following(self, timestep: torch.Tensor) -> torch.Tensor:
        """Return the timestep after each one; 0 after the last."""
        place = (self._places - timestep.reshape(-1, 1)).abs().argmin(dim=1)
        return torch.cat([self._places[1:], torch.zeros(1)])[place].reshape(timestep.shape)


def _over_frames(values: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """Shape a number, or one for each latent frame, so that it multiplies latents."""
    return values if values.ndim == 0 else values.reshape(len(latents), 1, -1, 1, 1)
