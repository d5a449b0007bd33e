"""Programs: served Python models, independent of Triton, that turn a call into responses.

A model's ``config.pbtxt`` names its program in the parameter ``program`` (``package.module:Class``). Triton's
adapter (:mod:`slipway_serving.runtime.adapter`) and the in-process runner
(:mod:`slipway_serving.runtime.in_process`) build the program from the model's :class:`Settings` and pass it
one :class:`Call` per request. Each item that the program yields is one response.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime import queue_limits
from slipway_serving.runtime.limits import LIMITS_VARIABLE, NO_LIMITS, Limits, model_limits
from slipway_serving.runtime.metrics import Recorder
from slipway_serving.runtime.named_code import load_named
from slipway_serving.runtime.queue_limits import QueueLimit
from slipway_serving.system.process_state import NO_PROCESS_STATE, ProcessState

Tensors = Mapping[str, NDArray[Any]]
Responses = Generator[Tensors, None, None]


class Last(dict[str, NDArray[Any]]):
    """Tensors of the last response of a decoupled model, marked as the final one.

    If no response is marked, an empty response with the mark follows. When a model calls another, Triton 2.51
    forwards the first response at once, but waits until the caller has taken each later one. If the caller's
    process dies meanwhile, Triton waits forever, and so does the model that was called.
    """


class Models(Protocol):
    """Interface through which a program calls other served models."""

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, NDArray[Any]]:
        """Call a model that answers once; raise the model's error."""

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Call a model that answers several times, optionally as one turn of a session.

        Triton 2.51 never ends a stream between two models in which an error follows a response. If errors
        matter, ask for one response at a time.
        """

    def is_ready(self, model: str) -> bool:
        """Return True if a model is loaded; False for an unknown one."""


@dataclass(frozen=True)
class Call:
    """One request to a program.

    Attributes:
        tensors: Arrays by input name, with a batch axis if the model has one.
        models: Interface to the other served models.
        is_cancelled: Function that returns True if the caller has cancelled the request.
        is_stop_asked: Function that returns True if the caller wants the request to stop and send its state.
        limit_s: Time limit that came with the request beside its tensors, in seconds; None without one.
        turn: Position of the request in a session.
    """

    tensors: Tensors
    models: Models
    is_cancelled: Callable[[], bool] = lambda: False
    is_stop_asked: Callable[[], bool] = lambda: False
    limit_s: float | None = None
    turn: Turn = NO_SESSION


class Program(Protocol):
    """Interface of the class that a model's parameter ``program`` names.

    Attributes:
        reports_requests: True if each request writes two lines to the server's log.
    """

    reports_requests: bool

    def __init__(self, settings: Settings) -> None: ...

    def run(self, call: Call) -> Responses:
        """Yield the responses to a call: exactly one unless the model is decoupled."""

    def close(self) -> None:
        """Free what the program holds."""


@runtime_checkable
class BatchProgram(Program, Protocol):
    """Program of a model that is not decoupled, which answers the calls of a batch together.

    Triton's dynamic batcher fills the batch in the order in which the requests came.
    """

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the answer or the error of each call, in order; a failed call does not affect the others."""


@runtime_checkable
class CheckedProgram(Protocol):
    """Program class that can tell from its model's files whether it will load, without loading anything.

    An export asks before it places the model, so that no server is the first to refuse the files.
    """

    @staticmethod
    def check_files(settings: Settings) -> None:
        """Raise InvalidRequest if the program cannot serve the files of its model."""


@runtime_checkable
class ReadinessProgram(Program, Protocol):
    """Program that knows whether it can answer, beyond what the adapter knows of its process."""

    def is_ready(self) -> bool:
        """Return whether the program can answer now; it must not wait for anything."""


@dataclass(frozen=True)
class Settings:
    """Settings from which a program is built.

    Attributes:
        model: Name of the served model.
        folder: Version folder of the model.
        config: Configuration of the model in Triton's JSON form.
        kind: Device kind of the instance, "CPU" or "GPU".
        device_id: Index of the GPU.
        recorder: Recorder of the program's metrics.
        limits: Upper limits that the operator sets for requests.
        process_state: Store of the state that must outlive the process.
        parameters: String values of the configuration's parameters, by name.
    """

    model: str
    folder: Path
    config: Mapping[str, Any]
    kind: str = "CPU"
    device_id: int = 0
    recorder: Recorder = field(default_factory=Recorder, compare=False)
    limits: Limits = NO_LIMITS
    process_state: ProcessState = field(default=NO_PROCESS_STATE, compare=False)
    parameters: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        given = self.config.get("parameters", {})
        values = {name: str(value.get("string_value", "")) for name, value in given.items()}
        object.__setattr__(self, "parameters", values)

    @property
    def repository(self) -> Path:
        """Model repository, the parent of the model's folder."""
        return self.folder.parent.parent

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> Settings:
        """Build settings from the arguments of the Python backend's ``initialize`` and the operator's limits.

        Raises:
            InvalidRequest: The file of limits is invalid.
        """
        model, config, limits = args["model_name"], json.loads(args["model_config"]), NO_LIMITS
        if file := os.environ.get(LIMITS_VARIABLE):
            limits, replaced = model_limits(model, Path(file), config)
            values = {name: {"string_value": value} for name, value in replaced.items()}
            config = {**config, "parameters": {**config.get("parameters", {}), **values}}
        return cls(
            model=model,
            folder=Path(args["model_repository"]) / args["model_version"],
            config=config,
            kind=args["model_instance_kind"],
            device_id=int(args["model_instance_device_id"]),
            limits=limits,
            process_state=ProcessState.for_instance(args),
        )

    def queue_limit(self, warn: Callable[[str], None]) -> QueueLimit:
        """Return the queue limit of the model from the config's parameters.

        Args:
            warn: Callback that receives a warning if the limit cannot be enforced.

        Raises:
            InvalidRequest: The limit is not a whole number above 0.
        """
        limit = (
            self.positive_integer(queue_limits.QUEUE_LIMIT_PARAMETER)
            if queue_limits.QUEUE_LIMIT_PARAMETER in self.parameters
            else None
        )
        models = [self.model, *self.parameters.get(queue_limits.QUEUE_MODELS_PARAMETER, "").split()]
        return QueueLimit(self.model, limit, queue_limits.pending_from_metrics(models, warn))

    def positive_integer(self, name: str) -> int:
        """Return a parameter of the config that is a whole number above 0.

        Raises:
            InvalidRequest: The parameter is missing or is not a whole number above 0.
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
        InvalidRequest: The parameter is missing or names no importable class.
    """
    return program_class(settings)(settings)


def program_class(settings: Settings) -> type[Program]:
    """Return the class of the program that a model's config names.

    Raises:
        InvalidRequest: The parameter is missing or names no importable class.
    """
    name = settings.parameters.get("program", "")
    try:
        program: type[Program] = load_named(name)
    except (ValueError, ModuleNotFoundError, AttributeError) as error:
        raise InvalidRequest(
            f"{settings.model}: parameter program must be an importable package.module:Class, "
            f"got {name!r} ({error})"
        ) from error
    return program


class BatchOfOne:
    """Mixin that implements ``run`` of a :class:`BatchProgram` as a batch of one."""

    def run(self: BatchProgram, call: Call) -> Responses:
        """Yield the one response to a call."""
        (answer,) = self.run_batch([call])
        if isinstance(answer, SlipwayError):
            raise answer
        yield answer


def text_tensor(text: str) -> NDArray[np.object_]:
    """Return a text as a BYTES tensor, [batch, 1], with batch size 1."""
    return np.array([[text.encode()]], dtype=np.object_)
