"""States of a video on their way to the caller, serialized while the next step computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from slipway_serving.protocol.diffusion.stopping import StatePart
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState


class Checkpoints:
    """Checkpoints of one request; use it as a context manager.

    Args:
        every_steps: Number of steps between two checkpoints; None makes none.
    """

    def __init__(self, every_steps: int | None) -> None:
        self._every_steps = every_steps
        self._executor = ThreadPoolExecutor(1) if every_steps is not None else None
        self._pending: Future[list[StatePart]] | None = None
        self._last_step = 0

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def begin(self, step: int, make_state: Callable[[], DenoisingState]) -> None:
        """Begin to serialize the state after a step, if its turn has come.

        Only the first call after a step counts: the end of a section and the beginning of the next one are
        boundaries after the same step.

        Args:
            step: Number of finished steps.
            make_state: Function that returns the state, called at once.
        """
        if self._executor is None or not self._every_steps or step == self._last_step:
            return
        if step % self._every_steps == 0:
            self._last_step = step
            state = make_state()
            self._pending = self._executor.submit(lambda: list(state_parts(state)))

    def take(self) -> Iterator[StatePart]:
        """Yield the parts of the state that was begun before, and wait for them if need be."""
        pending, self._pending = self._pending, None
        if pending is not None:
            yield from pending.result()


def state_parts(state: DenoisingState) -> Iterator[StatePart]:
    """Yield the events that carry a state."""
    parts = list(state.parts())
    for number, part in enumerate(parts):
        yield StatePart(part, number, len(parts), state.step)
