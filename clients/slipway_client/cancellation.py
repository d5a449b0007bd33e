"""Cancellation of a call by the client: it asks the server to end the work, and cuts the call if needed.

The client sends the request's id to the model `slipway_cancel` of the same server. The loop that works on the
request sees it at its next step and ends the stream with an error. If that does not happen in time, because
the server has no such model, does not know the request, or is in one long step, the client cuts the call.
Triton 2.51 sometimes crashes when a gRPC call is cut (server#7368, #8034), so this is the last resort. Both
protocols deliver the answers of a call as one iterator (:func:`answers`, :func:`async_answers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import numpy as np

from slipway_client.retry import Deadline
from slipway_client.tensors import Tensors
from slipway_serving.protocol.cancellation import EndRequest
from slipway_serving.protocol.errors import Cancelled, Malformed, SlipwayError
from slipway_serving.protocol.requests import encode

CUT_S = 5.0
"""Time in seconds for the server's loop to end after a cancel request; then the client cuts the call."""
KNOWN_S = 1.0
"""Time in seconds for the server to find the request; a request that waits in a queue has not begun."""
LATE_S = 1.0
"""As :data:`CUT_S`, but after a time limit. A call with one response gets this long to end by itself."""
_AGAIN_S = 0.05
_LOOK_S = 0.1


def made_id() -> str:
    """Return a unique request id, by which the request can be ended."""
    return f"slipway-{secrets.token_hex(16)}"


def ending(request_id: str) -> tuple[str, Tensors]:
    """Return the name of the model that ends requests, and the tensors to send it."""
    return EndRequest.model, encode(EndRequest(request_id))


def was_found(answer: Tensors) -> bool | None:
    """Return True if the server knows the request, or None if the answer does not tell."""
    found = answer.get("found")
    return None if found is None else bool(np.any(found))


def answers(
    call: Iterator[Tensors | SlipwayError],
    end: Callable[[], bool | None],
    cut: Callable[[], object],
    deadline: Deadline,
    left_s: float | None,
) -> Generator[Tensors, None, None]:
    """Yield the answers of a blocking call; closing the generator, or the deadline, ends the server's work.

    Args:
        call: Iterator of the answers, the last of which may be an error; a separate thread reads it.
        end: Callback that asks the server to end the request, as for :class:`Leave`.
        cut: Callback that cuts the call, as for :class:`Leave`; `call` then ends with :class:`Cancelled`.
        deadline: Deadline of the work.
        left_s: Time left until the deadline when the call was made, in seconds.

    Raises:
        SlipwayError: The call answered with this error.
    """
    refusal: SlipwayError | None = None
    with Leave(end, cut, left_s) as leave:
        messages = _Messages(call)
        try:
            for found in messages:
                # An error is the last message, but the client must wait until the server ends the call:
                # if it cancels earlier, Triton 2.51 keeps the request, and its model loaded, forever.
                if isinstance(found, SlipwayError):
                    if refusal is None:
                        refusal = found
                        leave.ends_soon()
                    if isinstance(found, Malformed):
                        break
                elif refusal is None:
                    yield found
        finally:
            if not messages.have_ended:
                leave.now()
                with _cut_by_another_interruption(cut):
                    messages.skip()
    if refusal is not None:
        raise _told(refusal, deadline, leave.is_late)


async def async_answers(
    call: AsyncGenerator[Tensors | SlipwayError, None],
    end: Callable[[], Awaitable[bool | None]],
    deadline: Deadline,
    left_s: float | None,
) -> AsyncGenerator[Tensors, None]:
    """Like :func:`answers` for asyncio, where cancelling the task that reads the call cuts it."""
    refusal: SlipwayError | None = None
    messages = _AsyncMessages(call)
    with AsyncLeave(end, messages.cut, left_s) as leave:
        try:
            async for found in messages:
                if isinstance(found, SlipwayError):
                    if refusal is None:
                        refusal = found
                        leave.ends_soon()
                    if isinstance(found, Malformed):
                        break
                elif refusal is None:
                    yield found
        finally:
            if not messages.have_ended:
                leave.now()
                with _cut_by_another_interruption(messages.cut):
                    await messages.skip()
    if refusal is not None:
        raise _told(refusal, deadline, leave.is_late)


class Leave:
    """Cancellation of one blocking call; use it as a context manager around the call.

    Args:
        end: Callback that asks the server to end the request. It returns True if the server knows the
            request, and None if the server cannot be asked.
        cut: Callback that cuts the call.
        limit_s: Time in seconds after which the call is cancelled automatically; None means never.

    Attributes:
        is_late: True if the call was cancelled at its time limit.
    """

    def __init__(
        self, end: Callable[[], bool | None], cut: Callable[[], object], limit_s: float | None
    ) -> None:
        self._end, self._cut = end, cut
        self._over = threading.Event()
        self._limit_s = limit_s
        self._timers: list[threading.Timer] = []
        self.is_late = False

    def __enter__(self) -> Leave:
        if self._limit_s is not None:
            self._start(self._limit_s, self._expired)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for timer in self._timers:
            timer.cancel()

    def now(self) -> None:
        """Cancel the call; reading it then ends, at the latest when the call is cut."""
        try:
            threading.Thread(target=self._ask, args=(CUT_S,), daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down
            self._cut()

    def ends_soon(self) -> None:
        """Cut the call after :data:`CUT_S` if the server does not end it after its last message."""
        self._start(CUT_S, self._cut_unless_over)

    def _cut_unless_over(self) -> None:
        if not self._over.is_set():
            self._cut()

    def _start(self, after_s: float, work: Callable[[], object]) -> None:
        timer = threading.Timer(after_s, work)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _expired(self) -> None:
        self.is_late = True
        self._ask(LATE_S)

    def _ask(self, cut_s: float) -> None:
        started_s, found = time.monotonic(), None
        with contextlib.suppress(Exception):  # the call must end whatever the server answers
            while not (found := self._end()):
                if found is None or self._over.wait(_AGAIN_S) or time.monotonic() - started_s > KNOWN_S:
                    break
        left_s = started_s + cut_s - time.monotonic() if found else 0.0
        if not self._over.wait(max(0.0, left_s)):
            self._cut()


class AsyncLeave:
    """Cancellation of one asyncio call; the counterpart of :class:`Leave`."""

    def __init__(
        self, end: Callable[[], Awaitable[bool | None]], cut: Callable[[], object], limit_s: float | None
    ) -> None:
        self._end, self._cut, self._limit_s = end, cut, limit_s
        self._tasks: list[asyncio.Task[None]] = []
        self.is_late = False

    def __enter__(self) -> AsyncLeave:
        if self._limit_s is not None:
            self._start(self._expire(self._limit_s))
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()

    def now(self) -> None:
        """Cancel the call, like :meth:`Leave.now`."""
        self._start(self._ask(CUT_S))

    def ends_soon(self) -> None:
        """Cut the call after a while, like :meth:`Leave.ends_soon`."""
        self._start(self._cut_later())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _expire(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        self.is_late = True
        await self._ask(LATE_S)

    async def _cut_later(self) -> None:
        await asyncio.sleep(CUT_S)
        self._cut()

    async def _ask(self, cut_s: float) -> None:
        started_s, found = time.monotonic(), None
        with contextlib.suppress(Exception):  # the call must end whatever the server answers
            while not (found := await self._end()):
                if found is None or time.monotonic() - started_s > KNOWN_S:
                    break
                await asyncio.sleep(_AGAIN_S)
        if found:
            await asyncio.sleep(max(0.0, started_s + cut_s - time.monotonic()))
        self._cut()


class _Messages:
    """Messages of a blocking call, read by a separate thread.

    Ctrl-C interrupts the thread that reads a call, and the rest of the call can then not be read.

    Attributes:
        have_ended: True if the server has ended the call.
    """

    def __init__(self, call: Iterator[Tensors | SlipwayError]) -> None:
        self._call = call
        self.have_ended = self._skipping = False
        self._read: queue.Queue[Any] = queue.Queue(1)  # bounded, so that a slow reader slows the server down
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def skip(self) -> None:
        """Discard further messages and wait until the call has ended or is cut."""
        self._skipping = True
        self._thread.join()

    def __iter__(self) -> Iterator[Tensors | SlipwayError]:
        while (found := self._read.get()) is not None:
            if isinstance(found, Exception) and not isinstance(found, SlipwayError):
                raise found
            yield found

    def _run(self) -> None:
        last: Exception | None = None
        try:
            for message in self._call:
                self._hand_on(message)
        except Exception as error:  # noqa: BLE001 - raised where the messages are wanted
            last = error
        self.have_ended = True
        if last is not None:
            self._hand_on(last)
        self._hand_on(None)

    def _hand_on(self, found: Any) -> None:
        while not self._skipping:
            with contextlib.suppress(queue.Full):
                self._read.put(found, timeout=_LOOK_S)
                return


class _AsyncMessages:
    """Messages of an asyncio call, shielded so that cancelling the reading task does not cut the call.

    Attributes:
        have_ended: True if the server has ended the call.
    """

    def __init__(self, call: AsyncGenerator[Tensors | SlipwayError, None]) -> None:
        self._call = call
        self._reading: asyncio.Task[Tensors | SlipwayError | None] | None = None
        self.have_ended = self._is_cut = False

    def cut(self) -> None:
        """Cut the call, whether or not it is being read."""
        self._is_cut = True
        if self._reading is None:
            self._reading = asyncio.create_task(self._close())
        else:
            self._reading.cancel()

    async def skip(self) -> None:
        """Discard the remaining messages until the call ends or is cut."""
        async for _ in self:
            pass

    def __aiter__(self) -> _AsyncMessages:
        return self

    async def __anext__(self) -> Tensors | SlipwayError:
        if self._reading is None:
            if self.have_ended:
                raise StopAsyncIteration
            self._reading = asyncio.create_task(self._close() if self._is_cut else self._next())
        try:
            message = await asyncio.shield(self._reading)
        except asyncio.CancelledError:
            if not self._reading.cancelled():
                raise
            message, self.have_ended = _cut_off(), True
        self._reading = None
        if message is None:
            raise StopAsyncIteration
        return message

    async def _next(self) -> Tensors | SlipwayError | None:
        try:
            return await anext(self._call)
        except StopAsyncIteration:
            self.have_ended = True
            return None
        except Exception:
            self.have_ended = True
            raise

    async def _close(self) -> SlipwayError:
        await self._call.aclose()
        self.have_ended = True
        return _cut_off()


@contextlib.contextmanager
def _cut_by_another_interruption(cut: Callable[[], object]) -> Iterator[None]:
    """Cut a call if a second Ctrl-C or cancellation interrupts the wait for its end."""
    try:
        yield
    except BaseException:
        cut()
        raise


def _cut_off() -> Cancelled:
    return Cancelled("the call was cut before its end; try again")


def _told(refusal: SlipwayError, deadline: Deadline, is_late: bool) -> SlipwayError:
    """Return the error for the caller: a call cancelled at its time limit raises DeadlineExceeded."""
    return deadline.exceeded() if is_late and isinstance(refusal, Cancelled) else refusal
