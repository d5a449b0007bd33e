"""Noise schedules: the timesteps of a denoising loop, and the latents after each step.

A :class:`Schedule` serves one run of the loop. :func:`diffusers_schedule` builds one of diffusers' schedulers
from its configuration. :class:`FewStep` is for networks that were distilled to a few steps: each step
predicts the clean latents and adds fresh noise for the next step.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from slipway_serving.diffusion.noise import Noise
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable


class Schedule(Protocol):
    """Interface of the schedules of :func:`slipway_serving.diffusion.denoise.denoise`."""

    @property
    def timesteps(self) -> Sequence[torch.Tensor]:
        """Timestep of each step: a number, or one for each latent frame, [batch, latent frames]."""

    def step(self, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents after a step; a schedule may require its steps in order."""

    def clean(self, prediction: torch.Tensor, step: int, latents: torch.Tensor) -> torch.Tensor:
        """Return the clean latents that the prediction of a step, counted from 0, stands for."""

    def state(self) -> dict[str, Any]:
        """Return what the steps so far have changed: plain values, lists and arrays by name."""

    def restore(self, state: Mapping[str, Any], step: int, latents: torch.Tensor) -> None:
        """Continue from the :meth:`state` of an equal schedule; raise ValueError if it cannot be one.

        Args:
            state: Attributes by name.
            step: Number of finished steps, 1 or more.
            latents: Latents after these steps.
        """


class DiffusersSchedule:
    """Schedule of one of diffusers' flow schedulers.

    Args:
        scheduler: Scheduler from :func:`make_scheduler`; the steps change its state.
        steps: Number of steps.
        where: Name of the model or request, for messages.
        noise: Noise of the request, from which a stochastic scheduler draws that of its steps.
        timing: Further arguments of the scheduler's ``set_timesteps``, such as ``mu``.

    Raises:
        Unrecoverable: The scheduler takes another number of steps.
    """

    def __init__(self, scheduler: Any, steps: int, where: str, noise: Noise, **timing: Any) -> None:
        self.config = scheduler.config
        self._scheduler, self._where, self._noise = scheduler, where, noise
        self._takes_generator = "generator" in inspect.signature(scheduler.step).parameters
        scheduler.set_timesteps(steps, **timing)
        scheduler.set_begin_index(0)
        self.timesteps: Sequence[torch.Tensor] = scheduler.timesteps
        if len(self.timesteps) != steps:
            raise Unrecoverable(f"{where}: the scheduler must take {steps} steps, got {len(self.timesteps)}")
        self._at_start = {name: _copied(value) for name, value in vars(scheduler).items()}

    def clean(self, prediction: torch.Tensor, step: int, latents: torch.Tensor) -> torch.Tensor:
        """Return the clean latents that a prediction of the flow stands for: latents - sigma * prediction.

        Args:
            prediction: Predicted flow, shape of the latents.
            step: Number of the step, from 0.
            latents: Latents before the step.
        """
        cleaned: torch.Tensor = latents - self._scheduler.sigmas[step].to(latents.dtype) * prediction
        return cleaned

    def state(self) -> dict[str, Any]:
        """Return what the steps so far have changed: the scheduler's attributes by name, tensors as arrays.

        Later steps do not change the arrays, since a scheduler replaces its tensors.

        Raises:
            Unrecoverable: An attribute is neither a number, a text, a tensor nor a list of these.
        """
        now = vars(self._scheduler)
        changed = {
            name: value for name, value in now.items() if not _is_same(value, self._at_start.get(name))
        }
        return {name: self._as_plain(name, value) for name, value in changed.items()}

    def restore(self, state: Mapping[str, Any], step: int, latents: torch.Tensor) -> None:
        """Continue from the :meth:`state` of a schedule with the same configuration and number of steps.

        Args:
            state: Attributes by name.
            step: Number of finished steps, 1 or more.
            latents: Latents after these steps. Arrays of the state have their shape or are single numbers.

        Raises:
            ValueError: It is not such a state: a copy of the scheduler cannot take the next step from it.
        """
        for name, value in state.items():
            # Some attributes exist only after a first step; those of the class are its methods and settings.
            if hasattr(type(self._scheduler), name):
                raise ValueError(f"the scheduler's {name[:40]} must not be replaced")
            setattr(self._scheduler, name, _as_tensors(value, tuple(latents.shape)))
        if self._scheduler.step_index != step:
            raise ValueError(f"the scheduler must be at step {step}, got {self._scheduler.step_index!r:.40}")
        if step == len(self.timesteps):
            return
        trial = copy.deepcopy(self._scheduler)
        try:
            # The trial must not use up numbers of the request's own generator.
            after = self._advance(trial, Noise(0), torch.zeros_like(latents), self.timesteps[step], latents)
        except Exception as error:  # The errors of diffusers have no common base.
            raise ValueError(f"the scheduler cannot take step {step + 1}: {str(error)[:200]}") from error
        if after.shape != latents.shape:
            raise ValueError(f"the scheduler's step {step + 1} must keep the shape of the latents")

    def _as_plain(self, name: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._as_plain(name, each) for each in value]
        if isinstance(value, torch.Tensor):
            return value.numpy()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise Unrecoverable(
            f"{self._where}: {type(self._scheduler).__name__}.{name} must be a number, a text or a tensor, so"
            f" that the video can be stopped, got {type(value).__name__}"
        )

    def step(self, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents after a step; the steps must come in order."""
        return self._advance(self._scheduler, self._noise, prediction, timestep, latents)

    def _advance(
        self,
        scheduler: Any,
        noise: Noise,
        prediction: torch.Tensor,
        timestep: torch.Tensor,
        latents: torch.Tensor,
    ) -> torch.Tensor:
        random = {"generator": noise.generator} if self._takes_generator else {}
        after: torch.Tensor = scheduler.step(prediction, timestep, latents, return_dict=False, **random)[0]
        return after


def _copied(value: Any) -> Any:
    """Return a copy of a list, which a scheduler changes in place, or the value itself."""
    return list(value) if isinstance(value, list) else value


def _is_same(value: Any, before: Any) -> bool:
    """Return True if an attribute has not changed; a tensor has changed if it is another object."""
    if isinstance(value, list) and isinstance(before, list):
        return len(value) == len(before) and all(map(_is_same, value, before))
    if isinstance(value, torch.Tensor) or isinstance(before, torch.Tensor):
        return value is before
    return value is before or bool(type(value) is type(before) and value == before)


def _as_tensors(value: Any, latents_shape: tuple[int, ...]) -> Any:
    """Return an attribute of a scheduler from its plain form; see :meth:`DiffusersSchedule.restore`."""
    if isinstance(value, list):
        return [_as_tensors(each, latents_shape) for each in value]
    if isinstance(value, Mapping):
        raise ValueError("the scheduler's attributes must be numbers, texts or arrays, got a mapping")  # noqa: TRY004
    if not isinstance(value, np.ndarray):
        return value
    if value.shape not in ((), latents_shape):
        raise ValueError(
            f"the scheduler's arrays must have the shape {list(latents_shape)}, got {list(value.shape)}"
        )
    return torch.from_numpy(value.copy())


def scheduler_class(config: Mapping[str, Any], where: str) -> Any:
    """Return the diffusers class of a scheduler's configuration.

    Args:
        config: Contents of scheduler_config.json, ``_class_name`` included.
        where: Name of the file, for messages.

    Raises:
        InvalidRequest: The configuration is not a mapping, or diffusers has no such scheduler.
    """
    import diffusers.schedulers  # This module imports a scheduler only when its name is used.

    name = config.get("_class_name") if isinstance(config, Mapping) else None
    # If a scheduler's library is missing, diffusers has a placeholder whose attributes raise ImportError.
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
        config: Contents of scheduler_config.json, ``_class_name`` included.
        flow_shift: Shift that replaces the checkpoint's own; None keeps that.
        where: Name of the model or request, for messages.

    Raises:
        InvalidRequest: The scheduler has no flow shift, or diffusers has no such scheduler.
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
    config: Mapping[str, Any], flow_shift: float | None, steps: int, where: str, noise: Noise, **timing: Any
) -> DiffusersSchedule:
    """Build the schedule of one request; see :func:`make_scheduler` and :class:`DiffusersSchedule`."""
    return DiffusersSchedule(make_scheduler(config, flow_shift, where), steps, where, noise, **timing)


def listed_schedule(
    config: Mapping[str, Any], steps: Sequence[int], flow_shift: float | None, where: str, noise: Noise
) -> DiffusersSchedule:
    """Build the schedule of a network that was distilled to a few given steps, with Euler's method.

    This is the schedule of lightx2v's step distillation: the timesteps are sigmas before the shift, times the
    number of training steps. A checkpoint whose own scheduler is FlowMatchLCMScheduler keeps it.

    Args:
        config: Contents of the checkpoint's scheduler_config.json, which gives what is not listed.
        steps: Timesteps before the shift, descending, e.g. (1000, 750, 500, 250).
        flow_shift: Shift; None for the checkpoint's own.
        where: Name of the model or request, for messages.
        noise: Noise of the request.
    """
    kind = _RENOISING if config.get("_class_name") == _RENOISING else "FlowMatchEulerDiscreteScheduler"
    few = _few_step_config(config, kind, flow_shift)
    sigmas = [step / few["num_train_timesteps"] for step in steps]
    return diffusers_schedule(few, None, len(steps), where, noise, sigmas=sigmas)


def renoising_schedule(
    config: Mapping[str, Any], steps: Sequence[int], flow_shift: float | None, where: str, noise: Noise
) -> DiffusersSchedule:
    """Build the schedule of a network that distribution matching distillation made (DMD), such as FastWan's.

    Each step predicts the clean latents and adds fresh noise for the next step, as diffusers'
    FlowMatchLCMScheduler does. As in FastVideo, the network gets the listed timesteps themselves, and the
    sigma of a step is that of the nearest training step after the shift.

    Args:
        config: Contents of the checkpoint's scheduler_config.json, which gives what is not listed.
        steps: Timesteps after the shift, descending, e.g. (1000, 757, 522).
        flow_shift: Shift; None for the checkpoint's own.
        where: Name of the model or request, for messages.
        noise: Noise of the request, from which each step draws.
    """
    few = _few_step_config(config, _RENOISING, flow_shift)
    train_steps, shift = few["num_train_timesteps"], few["shift"]
    unshifted = np.arange(1, train_steps + 1) / train_steps
    shifted = train_steps * shift * unshifted / (1 + (shift - 1) * unshifted)
    sigmas = [float(unshifted[np.abs(shifted - step).argmin()]) for step in steps]
    timing = {"sigmas": sigmas, "timesteps": [float(step) for step in steps]}
    return diffusers_schedule(few, None, len(steps), where, noise, **timing)


_RENOISING = "FlowMatchLCMScheduler"


def _few_step_config(config: Mapping[str, Any], kind: str, flow_shift: float | None) -> dict[str, Any]:
    """Return the configuration of a scheduler for listed steps, with the shift of another one's."""
    shift = config.get("flow_shift", config.get("shift", 1.0)) if flow_shift is None else flow_shift
    train_steps = int(config.get("num_train_timesteps", 1000))
    return {"_class_name": kind, "num_train_timesteps": train_steps, "shift": shift}


class FewStep:
    """Flow schedule of a few given steps: predict the clean latents, add noise for the next step.

    The steps are places in a shifted table of sigmas, as in distribution matching distillation
    (self-forcing) and Matrix-Game 2.

    Args:
        steps: Places in the table, descending, each above 0, e.g. (1000, 666, 333).
        shift: Shift of the flow's sigmas.
        noise: Source of fresh noise; it continues over the blocks of a session.
        train_steps: Number of entries of the table.

    Raises:
        InvalidRequest: The steps do not descend within the table, or the shift is not above 0.

    Attributes:
        timesteps: Sigmas times `train_steps`, float32, descending.
    """

    def __init__(self, steps: Sequence[int], shift: float, noise: Noise, train_steps: int = 1000) -> None:
        are_integers = all(type(step) is int for step in steps)
        descending = are_integers and all(earlier > later for earlier, later in pairwise(steps))
        if not steps or not descending or steps[0] > train_steps or steps[-1] < 1:
            raise InvalidRequest(
                f"few-step schedule: steps must be descending, {train_steps} to 1, got {list(steps)}"
            )
        if type(shift) not in (int, float) or not (shift > 0 and math.isfinite(shift)):
            raise InvalidRequest(f"few-step schedule: shift must be a finite number above 0, got {shift!r}")
        unshifted = torch.linspace(1.0, 0.0, train_steps + 1)[:-1]
        self._sigmas = shift * unshifted / (1 + (shift - 1) * unshifted)
        self._table = self._sigmas * train_steps
        self._noise = noise
        self._step_timesteps = self._table[[train_steps - step for step in steps]]
        self.timesteps: Sequence[torch.Tensor] = list(self._step_timesteps)

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        """Return the sigma of the table entry nearest to each timestep; 0 for timestep 0."""
        nearest = (self._table - timestep.reshape(-1, 1)).abs().argmin(dim=1)
        return torch.where(timestep == 0, 0.0, self._sigmas[nearest].reshape(timestep.shape))

    def step(self, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents after a step; after the last step they are clean.

        Args:
            prediction: Predicted flow, shape of the latents.
            timestep: Timestep of this schedule: a number, or one for each latent frame,
                [batch, latent frames].
            latents: Latents, [batch, channels, latent frames, height, width].
        """
        clean = self._clean(prediction, timestep, latents)
        following = self._following(timestep)
        if not following.any():
            return clean
        sigma = _over_frames(self.sigma(following), latents)
        return (1 - sigma) * clean + sigma * self._noise.next(tuple(latents.shape))

    def clean(self, prediction: torch.Tensor, step: int, latents: torch.Tensor) -> torch.Tensor:
        """Return the clean latents that the prediction of a step, counted from 0, stands for."""
        return self._clean(prediction, self.timesteps[step], latents)

    def state(self) -> dict[str, Any]:
        """Return an empty mapping: steps change only the noise, which the caller keeps."""
        return {}

    def restore(self, state: Mapping[str, Any], step: int, latents: torch.Tensor) -> None:
        """Do nothing with an empty state; raise ValueError for any other."""
        if state:
            raise ValueError(f"a few-step schedule must have no state, got {', '.join(state)[:80]}")

    def _clean(self, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return x0 = x_t - sigma * v, in float64 like upstream."""
        sigma = _over_frames(self.sigma(timestep), latents)
        return (latents.double() - sigma.double() * prediction.double()).to(latents.dtype)

    def _following(self, timestep: torch.Tensor) -> torch.Tensor:
        """Return the timestep that follows each given one; 0 follows the last."""
        step = (self._step_timesteps - timestep.reshape(-1, 1)).abs().argmin(dim=1)
        return torch.cat([self._step_timesteps[1:], torch.zeros(1)])[step].reshape(timestep.shape)


def _over_frames(values: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """Reshape one value, or a value for each latent frame, so that it broadcasts over latents."""
    return values if values.ndim == 0 else values.reshape(len(latents), 1, -1, 1, 1)
