"""Runs a network that was exported as two graphs with explicit caches, and keeps the caches between calls.

:class:`SteppedModel` runs ``first.onnx`` on the first element of a sequence and ``next.onnx`` on each other.
A graph's outputs ``next_<name>`` are its caches; they stay where they were computed (OrtValues, by I/O
binding) and become the inputs ``<name>`` of the following step: memory is flat in the number of steps.
:class:`StateStore` holds the caches of the sequences under way: bounded in number, dropped when idle.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from slipway_serving.errors import InvalidRequest, Overloaded, Unrecoverable
from slipway_serving.graph import Array, Graph, State
from slipway_serving.metrics import SESSIONS_LIMIT, SESSIONS_OPEN
from slipway_serving.program import Settings

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
        self._first, self._next = Graph(settings, "first.onnx"), Graph(settings, "next.onnx")
        wanted = set(self._next.inputs) - set(self._first.inputs)
        for graph in (self._first, self._next):
            given = {
                name.removeprefix(CACHE_OUTPUT_PREFIX)
                for name in graph.outputs
                if name.startswith(CACHE_OUTPUT_PREFIX)
            }
            if given != wanted:
                raise Unrecoverable(
                    f"{settings.model}: outputs {CACHE_OUTPUT_PREFIX}* of {graph.filename} must feed the "
                    f"inputs of next.onnx, got a difference in {', '.join(sorted(given ^ wanted))}"
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
        plain = [name for name in graph.outputs if not name.startswith(CACHE_OUTPUT_PREFIX)]
        outputs = graph.run({**inputs, **(state or {})}, in_memory=plain)
        results = {name: outputs.pop(name).numpy() for name in plain}
        return results, {name.removeprefix(CACHE_OUTPUT_PREFIX): value for name, value in outputs.items()}


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
        self._at_work: frozenset[Hashable] = frozenset()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name=f"{where}-states", daemon=True)
        self._sweeper.start()

    @classmethod
    def of_model(cls, settings: Settings) -> StateStore[S]:
        """Open the store of a model, whose config limits it, and have its sequences counted.

        Raises:
            InvalidRequest: `max_sequences` or `sequence_idle_s` of the config is no number.
        """
        limit = settings.positive("max_sequences")
        store: StateStore[S] = cls(settings.model, limit, settings.positive("sequence_idle_s"))
        settings.recorder.follow(SESSIONS_OPEN, store.open_sequences)
        settings.recorder.follow(SESSIONS_LIMIT, lambda: limit)
        return store

    def __len__(self) -> int:
        return len(self._held)

    def open_sequences(self) -> int:
        """Return how many sequences there are: those that wait, and those that are at work."""
        with self._lock:
            return len(self._held.keys() | self._at_work)

    @contextlib.contextmanager
    def at_work(self, keys: Iterable[Hashable]) -> Iterator[None]:
        """Count the sequences of a batch of requests as open while they are worked on; 0 and "" are none."""
        self._at_work = frozenset(key for key in keys if key)
        try:
            yield
        finally:
            self._at_work = frozenset()

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
