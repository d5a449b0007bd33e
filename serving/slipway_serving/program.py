"""What a served Python model is, free of Triton: a program that turns a call into responses.

A model's ``config.pbtxt`` names its program in the parameter ``program`` (``package.module:Class``). Triton's
adapter (:mod:`slipway_serving.adapter`) and the in-process runner (:mod:`slipway_serving.models`) build it
from the model's :class:`Settings` and hand it one :class:`Call` per request; each item that it yields is one
response.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from slipway_serving import waiting
from slipway_serving.errors import InvalidRequest, SlipwayError
from slipway_serving.footprints import NO_FOOTPRINT, Footprint
from slipway_serving.limits import NO_LIMITS, VARIABLE, Limits, limits_of
from slipway_serving.metrics import Recorder
from slipway_serving.turns import NO_SESSION, Turn
from slipway_serving.waiting import Waiting

Tensors = Mapping[str, NDArray[Any]]
Responses = Generator[Tensors, None, None]


class Last(dict[str, NDArray[Any]]):
    """Tensors of a response of a decoupled model that is the last one, and is marked so.

    Where none is, an empty response follows that has the mark. Where a model called another, a Triton 2.51
    server hands on the first response at once, but waits until the caller has taken each that follows: when
    the caller's process dies meanwhile, it waits for ever, and with it the model that was called.
    """


class Models(Protocol):
    """How a program calls other served models."""

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        """Ask a model that answers once; raises the model's error."""

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Ask a model that answers several times, perhaps as one turn of a session.

        A Triton 2.51 server never ends a stream of a model to a model in which an error follows a response:
        where errors matter, ask for one response at a time.
        """

    def is_ready(self, model: str) -> bool:
        """Tell whether a model is loaded; an unknown one is not."""


@dataclass(frozen=True)
class Call:
    """One request to a program.

    Attributes:
        tensors: by input name; with a batch axis where the model has one.
        models: the other served models.
        is_cancelled: whether the caller has given up.
        limit_s: the time limit that came with the request beside its tensors, seconds; None without one.
        turn: the request's place in a session.
    """

    tensors: Tensors
    models: Models
    is_cancelled: Callable[[], bool] = lambda: False
    limit_s: float | None = None
    turn: Turn = NO_SESSION


class Program(Protocol):
    """What a model's ``program`` must be.

    Attributes:
        reports_requests: whether each request is worth two lines in the server's log.
    """

    reports_requests: bool

    def __init__(self, settings: Settings) -> None: ...

    def run(self, call: Call) -> Responses:
        """Yield the responses to a call: exactly one unless the model is decoupled."""

    def close(self) -> None:
        """Free what the program holds."""


@runtime_checkable
class BatchProgram(Program, Protocol):
    """A program that answers the calls of a batch together; of a model that is not decoupled.

    Triton's dynamic batcher fills the batch, in the order in which the requests came.
    """

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the answer to each call, in order, or why it failed; none of them can fail another."""


@dataclass(frozen=True)
class Settings:
    """What a program is built from.

    Attributes:
        model: the served model's name.
        folder: the model's version folder.
        config: the model's config in Triton's JSON form.
        kind: "CPU" or "GPU", where the instance shall run.
        device_id: of the GPU.
        recorder: takes the numbers that the program records.
        limits: what the operator lets requests ask for.
        footprint: takes what must outlive the process.
    """

    model: str
    folder: Path
    config: Mapping[str, Any]
    kind: str = "CPU"
    device_id: int = 0
    recorder: Recorder = field(default_factory=Recorder, compare=False)
    limits: Limits = NO_LIMITS
    footprint: Footprint = field(default=NO_FOOTPRINT, compare=False)
    parameters: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        given = self.config.get("parameters", {})
        values = {name: str(value.get("string_value", "")) for name, value in given.items()}
        object.__setattr__(self, "parameters", values)

    @property
    def repository(self) -> Path:
        """The model repository: the folder of the model's folder."""
        return self.folder.parent.parent

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> Settings:
        """Read the arguments that Triton's Python backend gives to ``initialize``, and the operator's limits.

        Raises:
            InvalidRequest: the file of limits is not as it must be.
        """
        model, config, limits = args["model_name"], json.loads(args["model_config"]), NO_LIMITS
        if file := os.environ.get(VARIABLE):
            limits, replaced = limits_of(model, Path(file), config)
            values = {name: {"string_value": value} for name, value in replaced.items()}
            config = {**config, "parameters": {**config.get("parameters", {}), **values}}
        return cls(
            model=model,
            folder=Path(args["model_repository"]) / args["model_version"],
            config=config,
            kind=args["model_instance_kind"],
            device_id=int(args["model_instance_device_id"]),
            limits=limits,
            footprint=Footprint.of_instance(args),
        )

    def waiting(self, warn: Callable[[str], None]) -> Waiting:
        """Return the limit of what waits for the model, by the config's parameters.

        Args:
            warn: told where it cannot be kept.

        Raises:
            InvalidRequest: the limit is no number above 0.
        """
        limit = self.positive(waiting.PARAMETER) if waiting.PARAMETER in self.parameters else None
        models = [self.model, *self.parameters.get(waiting.MODELS_PARAMETER, "").split()]
        return Waiting(self.model, limit, waiting.pending_by_metrics(models, warn))

    def positive(self, name: str) -> int:
        """Return a parameter of the config that is a whole number above 0.

        Raises:
            InvalidRequest: it is missing or is none.
        """
        text = self.parameters.get(name, "")
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise InvalidRequest(
                f"{self.model}: parameter {name} of config.pbtxt must be a whole number above 0, "
                f'got {text!r}; try string_value: "512"'
            )
        return int(text)


def load_program(settings: Settings) -> Program:
    """Build the program that a model's config names.

    Raises:
        InvalidRequest: the parameter is missing or names nothing.
    """
    return program_class(settings)(settings)


def program_class(settings: Settings) -> type[Program]:
    """Return the program that a model's config names, not built yet.

    Raises:
        InvalidRequest: the parameter is missing or names nothing.
    """
    name = settings.parameters.get("program", "")
    module, _, attribute = name.partition(":")
    try:
        program: type[Program] = getattr(importlib.import_module(module), attribute)
    except (ValueError, ModuleNotFoundError, AttributeError) as error:
        raise InvalidRequest(
            f"{settings.model}: parameter program must be an importable package.module:Class, "
            f"got {name!r} ({error})"
        ) from error
    return program


class Single:
    """Gives a :class:`BatchProgram` its ``run``: a batch of one."""

    def run(self: BatchProgram, call: Call) -> Responses:
        """Yield the one response to a call."""
        (answer,) = self.run_batch([call])
        if isinstance(answer, SlipwayError):
            raise answer
        yield answer


def one_text(text: str) -> NDArray[np.object_]:
    """Return a text as a BYTES tensor of shape [1, 1], the first axis being the batch."""
    return np.array([[text.encode()]], dtype=np.object_)
