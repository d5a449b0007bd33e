"""Runs a network that was exported as two graphs with explicit caches, and keeps the caches between calls.

:class:`SteppedModel` runs ``first.onnx`` on the first element of a sequence and ``next.onnx`` on each other.
A graph's outputs ``next_<name>`` are its caches; they stay where they were computed (OrtValues, by I/O
binding) and become the inputs ``<name>`` of the following step: memory is flat in the number of steps.
:class:`StateStore` holds the caches of the sequences under way: bounded in number, dropped when idle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from serving.backends.onnxruntime import session
from serving.errors import InvalidRequest, Overloaded, Unrecoverable
from serving.program import Settings

Array = NDArray[Any]
State = dict[str, ort.OrtValue]
S = TypeVar("S")

CACHE_OUTPUT_PREFIX = "next_"
_SWEEPS_PER_IDLE_TIME = 6


class SteppedModel:
    """A network as a first-step and a next-step graph.

    Args:
        settings: of the model: its folder holds ``first.onnx`` and ``next.onnx``, its config has the session
            parameters of the onnxruntime backend and the device, where the caches stay too.

    Raises:
        InvalidRequest: a graph does not load or a parameter cannot be read.
        Unrecoverable: the graphs' caches do not fit together.
    """

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._device = ("cuda", settings.device_id) if settings.kind == "GPU" else ("cpu", 0)
        providers = session.providers(settings.config, settings.kind, settings.device_id)
        self._first, self._next = (
            session.load({**settings.config, "default_model_filename": name}, settings.folder, providers)
            for name in ("first.onnx", "next.onnx")
        )
        inputs = {value.name for value in self._first.get_inputs()}
        wanted = {value.name for value in self._next.get_inputs()} - inputs
        for name, graph in (("first.onnx", self._first), ("next.onnx", self._next)):
            given = {
                value.name.removeprefix(CACHE_OUTPUT_PREFIX)
                for value in graph.get_outputs()
                if value.name.startswith(CACHE_OUTPUT_PREFIX)
            }
            if given != wanted:
                raise Unrecoverable(
                    f"{settings.model}: outputs {CACHE_OUTPUT_PREFIX}* of {name} must feed the inputs of "
                    f"next.onnx, got a difference in {', '.join(sorted(given ^ wanted))}"
                )

    def step(self, inputs: Mapping[str, Array], state: State | None) -> tuple[dict[str, Array], State]:
        """Run one element of a sequence.

        Args:
            inputs: the tensors of this element, without caches.
            state: the caches that the step before returned; None for the first element.

        Returns:
            The outputs that are no caches, and the caches for the next element.
        """
        graph = self._first if state is None else self._next
        binding = graph.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, value in (state or {}).items():
            binding.bind_ortvalue_input(name, value)
        names = [output.name for output in graph.get_outputs()]
        for name in names:
            cache = name.startswith(CACHE_OUTPUT_PREFIX)
            binding.bind_output(name, *(self._device if cache else ("cpu", 0)))
        graph.run_with_iobinding(binding)
        results: dict[str, Array] = {}
        following: State = {}
        for name, value in zip(names, binding.get_outputs(), strict=True):
            if name.startswith(CACHE_OUTPUT_PREFIX):
                following[name.removeprefix(CACHE_OUTPUT_PREFIX)] = value
            else:
                results[name] = value.numpy()
        return results, following


class StateStore(Generic[S]):
    """States of sequences between their requests, by key.

    A state is taken out while its sequence is worked on and put back after: work that fails leaves nothing
    behind. A thread drops states that nobody asked for in a while.

    Args:
        where: the model, for messages.
        limit: how many states may be held.
        idle_s: seconds after which an untouched state is dropped.
        clock: monotonic seconds.
    """

    def __init__(
        self, where: str, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where, self._limit, self._idle_s, self._clock = where, limit, idle_s, clock
        self._held: dict[Hashable, tuple[float, S]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name=f"{where}-states", daemon=True)
        self._sweeper.start()

    def __len__(self) -> int:
        return len(self._held)

    def make_room(self) -> None:
        """Check that one more state may be held.

        Raises:
            Overloaded: the limit is reached by sequences that are not idle.
        """
        self.drop_idle()
        if len(self._held) >= self._limit:
            raise Overloaded(
                f"{self._where}: sequences must be at most {self._limit} at a time, got one more; "
                "try again when one has ended"
            )

    def take(self, key: Hashable) -> S:
        """Take a sequence's state out.

        Raises:
            InvalidRequest: there is none.
        """
        self.drop_idle()
        with self._lock:
            found = self._held.pop(key, None)
        if found is None:
            raise InvalidRequest(
                f"{self._where}: correlation id must be of a sequence under way, got {key!r}; "
                f"try SEQUENCE_START (a sequence ends after {self._idle_s:g} s without a request)"
            )
        return found[1]

    def put(self, key: Hashable, state: S) -> None:
        """Keep a sequence's state for its next request."""
        with self._lock:
            self._held[key] = (self._clock(), state)

    def drop(self, key: Hashable) -> None:
        """Free a sequence's state; nothing happens if there is none."""
        with self._lock:
            self._held.pop(key, None)

    def drop_idle(self) -> None:
        """Free the states of sequences that were idle for too long."""
        oldest = self._clock() - self._idle_s
        with self._lock:
            for key in [key for key, (since, _) in self._held.items() if since < oldest]:
                del self._held[key]

    def close(self) -> None:
        """Free all states and end the thread."""
        self._closed.set()
        self._sweeper.join()
        with self._lock:
            self._held.clear()

    def _sweep(self) -> None:
        while not self._closed.wait(self._idle_s / _SWEEPS_PER_IDLE_TIME):
            self.drop_idle()
