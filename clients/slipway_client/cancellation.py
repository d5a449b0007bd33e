"""Cancellation of a call by the client: it asks the server to end the work, and cuts the call if needed.

The client sends the request's id to the model `slipway_cancel` of the same server. The loop that works on the
request sees it at its next step and ends the stream with an error. If that does not happen in time, because
the server has no such model, does not know the request, or is in one long step, the client cuts the call.
Triton 2.51 sometimes crashes when a gRPC call is cut (server#7368, #8034), so this is the last resort. Both
protocols deliver the responses of a call as one iterator (:func:`stream_responses`,
:func:`async_stream_responses`).
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
from slipway_serving.protocol.cancellation import CancelRequest
from slipway_serving.protocol.errors import Cancelled, Malformed, SlipwayError
from slipway_serving.protocol.requests import encode

CANCEL_GRACE_S = 5.0
"""Time in seconds for the server's loop to end after a cancel request; then the client cuts the call."""
FIND_REQUEST_S = 1.0
"""Time in seconds for the server to find the request; a request that waits in a queue has not begun."""
DEADLINE_GRACE_S = 1.0
"""Time in seconds for the server's loop to end after a time limit; then the client cuts the call. A call with
one response gets this long to end by itself."""
_RETRY_INTERVAL_S = 0.05
_POLL_S = 0.1


def new_request_id() -> str:
    """Return a unique request id, by which the request can be ended."""
    return f"slipway-{secrets.token_hex(16)}"


def cancel_message(request_id: str, *, stop: bool = False) -> tuple[str, Tensors]:
    """Return the name of the model that ends requests, and the tensors to send it.

    Args:
        request_id: Id of the request to end.
        stop: True if the request should stop and send its state.
    """
    tensors = encode(CancelRequest(request_id, stop))
    # A server without stops takes no such input, and it can still cancel.
    return CancelRequest.model, tensors if stop else {"ended_id": tensors["ended_id"]}


def request_found(answer: Tensors) -> bool | None:
    """Return True if the server knows the request, or None if the answer does not tell."""
    found = answer.get("found")
    return None if found is None else bool(np.any(found))


def stream_responses(
    call: Iterator[Tensors | SlipwayError],
    end: Callable[[], bool | None],
    cut: Callable[[], object],
    deadline: Deadline,
    remaining_s: float | None,
) -> Generator[Tensors, None, None]:
    """Yield the responses of a blocking call; closing the generator, or the deadline, ends the server's work.

    Args:
        call: Iterator of the responses, the last of which may be an error; a separate thread reads it.
        end: Callback that asks the server to end the request, as for :class:`CallCancellation`.
        cut: Callback that cuts the call, as for :class:`CallCancellation`; `call` then ends with
            :class:`Cancelled`.
        deadline: Deadline of the work.
        remaining_s: Time left until the deadline when the call was made, in seconds.

    Raises:
        SlipwayError: The call answered with this error.
    """
    call_error: SlipwayError | None = None
    with CallCancellation(end, cut, remaining_s) as cancellation:
        reader = _BackgroundReader(call)
        try:
            for message in reader:
                # An error is the last message, but the client must wait until the server ends the call:
                # if it cancels earlier, Triton 2.51 keeps the request, and its model loaded, forever.
                if isinstance(message, SlipwayError):
                    if call_error is None:
                        call_error = message
                        cancellation.expect_end()
                    if isinstance(message, Malformed):
                        break
                elif call_error is None:
                    yield message
        finally:
            if not reader.has_ended:
                cancellation.cancel()
                with _cut_on_interruption(cut):
                    reader.discard_rest()
    if call_error is not None:
        raise _caller_error(call_error, deadline, cancellation.timed_out)


async def async_stream_responses(
    call: AsyncGenerator[Tensors | SlipwayError, None],
    end: Callable[[], Awaitable[bool | None]],
    deadline: Deadline,
    remaining_s: float | None,
) -> AsyncGenerator[Tensors, None]:
    """Like :func:`stream_responses` for asyncio, where cancelling the task that reads the call cuts it."""
    call_error: SlipwayError | None = None
    reader = _ShieldedReader(call)
    with AsyncCallCancellation(end, reader.cut, remaining_s) as cancellation:
        try:
            async for message in reader:
                if isinstance(message, SlipwayError):
                    if call_error is None:
                        call_error = message
                        cancellation.expect_end()
                    if isinstance(message, Malformed):
                        break
                elif call_error is None:
                    yield message
        finally:
            if not reader.has_ended:
                cancellation.cancel()
                with _cut_on_interruption(reader.cut):
                    await reader.discard_rest()
    if call_error is not None:
        raise _caller_error(call_error, deadline, cancellation.timed_out)


class CallCancellation:
    """Cancellation of one blocking call; use it as a context manager around the call.

    Args:
        end: Callback that asks the server to end the request. It returns True if the server knows the
            request, and None if the server cannot be asked.
        cut: Callback that cuts the call.
        limit_s: Time in seconds after which the call is cancelled automatically; None means never.

    Attributes:
        timed_out: True if the call was cancelled at its time limit.
    """

    def __init__(
        self, end: Callable[[], bool | None], cut: Callable[[], object], limit_s: float | None
    ) -> None:
        self._end, self._cut = end, cut
        self._ended = threading.Event()
        self._limit_s = limit_s
        self._timers: list[threading.Timer] = []
        self.timed_out = False

    def __enter__(self) -> CallCancellation:
        if self._limit_s is not None:
            self._start(self._limit_s, self._on_deadline)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for timer in self._timers:
            timer.cancel()

    def cancel(self) -> None:
        """Cancel the call; reading it then ends, at the latest when the call is cut."""
        try:
            threading.Thread(target=self._request_cancel, args=(CANCEL_GRACE_S,), daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down
            self._cut()

    def expect_end(self) -> None:
        """Cut the call after :data:`CANCEL_GRACE_S` if the server does not end it after its last message."""
        self._start(CANCEL_GRACE_S, self._cut_unless_ended)

    def _cut_unless_ended(self) -> None:
        if not self._ended.is_set():
            self._cut()

    def _start(self, after_s: float, work: Callable[[], object]) -> None:
        timer = threading.Timer(after_s, work)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _on_deadline(self) -> None:
        self.timed_out = True
        self._request_cancel(DEADLINE_GRACE_S)

    def _request_cancel(self, grace_s: float) -> None:
        """Ask the server to end the request, and cut the call if that takes longer than `grace_s`."""
        started_s, found = time.monotonic(), None
        with contextlib.suppress(Exception):  # the call must end whatever the server answers
            while not (found := self._end()):
                if (
                    found is None
                    or self._ended.wait(_RETRY_INTERVAL_S)
                    or time.monotonic() - started_s > FIND_REQUEST_S
                ):
                    break
        remaining_s = started_s + grace_s - time.monotonic() if found else 0.0
        if not self._ended.wait(max(0.0, remaining_s)):
            self._cut()


class AsyncCallCancellation:
    """Cancellation of one asyncio call; the counterpart of :class:`CallCancellation`."""

    def __init__(
        self, end: Callable[[], Awaitable[bool | None]], cut: Callable[[], object], limit_s: float | None
    ) -> None:
        self._end, self._cut, self._limit_s = end, cut, limit_s
        self._tasks: list[asyncio.Task[None]] = []
        self.timed_out = False

    def __enter__(self) -> AsyncCallCancellation:
        if self._limit_s is not None:
            self._start(self._cancel_at_deadline(self._limit_s))
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()

    def cancel(self) -> None:
        """Cancel the call, like :meth:`CallCancellation.cancel`."""
        self._start(self._request_cancel(CANCEL_GRACE_S))

    def expect_end(self) -> None:
        """Cut the call after a while, like :meth:`CallCancellation.expect_end`."""
        self._start(self._cut_later())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _cancel_at_deadline(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        self.timed_out = True
        await self._request_cancel(DEADLINE_GRACE_S)

    async def _cut_later(self) -> None:
        await asyncio.sleep(CANCEL_GRACE_S)
        self._cut()

    async def _request_cancel(self, grace_s: float) -> None:
        """Ask the server to end the request, and cut the call if that takes longer than `grace_s`."""
        started_s, found = time.monotonic(), None
        with contextlib.suppress(Exception):  # the call must end whatever the server answers
            while not (found := await self._end()):
                if found is None or time.monotonic() - started_s > FIND_REQUEST_S:
                    break
                await asyncio.sleep(_RETRY_INTERVAL_S)
        if found:
            await asyncio.sleep(max(0.0, started_s + grace_s - time.monotonic()))
        self._cut()


class _BackgroundReader:
    """Messages of a blocking call, read by a separate thread.

    Ctrl-C interrupts the thread that reads a call, and the rest of the call can then not be read.

    Attributes:
        has_ended: True if the server has ended the call.
    """

    def __init__(self, call: Iterator[Tensors | SlipwayError]) -> None:
        self._call = call
        self.has_ended = self._discarding = False
        self._queue: queue.Queue[Any] = queue.Queue(1)  # bounded, so that a slow reader slows the server down
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def discard_rest(self) -> None:
        """Discard further messages and wait until the call has ended or is cut."""
        self._discarding = True
        self._thread.join()

    def __iter__(self) -> Iterator[Tensors | SlipwayError]:
        while (message := self._queue.get()) is not None:
            if isinstance(message, Exception) and not isinstance(message, SlipwayError):
                raise message
            yield message

    def _run(self) -> None:
        """Read the call to its end and queue its messages; None follows the last one."""
        failure: Exception | None = None
        try:
            for message in self._call:
                self._put(message)
        except Exception as error:  # noqa: BLE001 - raised where the messages are wanted
            failure = error
        self.has_ended = True
        if failure is not None:
            self._put(failure)
        self._put(None)

    def _put(self, message: Any) -> None:
        while not self._discarding:
            with contextlib.suppress(queue.Full):
                self._queue.put(message, timeout=_POLL_S)
                return


class _ShieldedReader:
    """Messages of an asyncio call, shielded so that cancelling the reading task does not cut the call.

    Attributes:
        has_ended: True if the server has ended the call.
    """

    def __init__(self, call: AsyncGenerator[Tensors | SlipwayError, None]) -> None:
        self._call = call
        self._reading: asyncio.Task[Tensors | SlipwayError | None] | None = None
        self.has_ended = self._is_cut = False

    def cut(self) -> None:
        """Cut the call, whether or not it is being read."""
        self._is_cut = True
        if self._reading is None:
            self._reading = asyncio.create_task(self._close())
        else:
            self._reading.cancel()

    async def discard_rest(self) -> None:
        """Discard the remaining messages until the call ends or is cut."""
        async for _ in self:
            pass

    def __aiter__(self) -> _ShieldedReader:
        return self

    async def __anext__(self) -> Tensors | SlipwayError:
        if self._reading is None:
            if self.has_ended:
                raise StopAsyncIteration
            self._reading = asyncio.create_task(self._close() if self._is_cut else self._next())
        try:
            message = await asyncio.shield(self._reading)
        except asyncio.CancelledError:
            if not self._reading.cancelled():
                raise
            message, self.has_ended = _cut_error(), True
        self._reading = None
        if message is None:
            raise StopAsyncIteration
        return message

    async def _next(self) -> Tensors | SlipwayError | None:
        try:
            return await anext(self._call)
        except StopAsyncIteration:
            self.has_ended = True
            return None
        except Exception:
            self.has_ended = True
            raise

    async def _close(self) -> SlipwayError:
        await self._call.aclose()
        self.has_ended = True
        return _cut_error()


@contextlib.contextmanager
def _cut_on_interruption(cut: Callable[[], object]) -> Iterator[None]:
    """Cut a call if a second Ctrl-C or cancellation interrupts the wait for its end."""
    try:
        yield
    except BaseException:
        cut()
        raise


def _cut_error() -> Cancelled:
    return Cancelled("the client cut the call before the server ended it; try again")


def _caller_error(call_error: SlipwayError, deadline: Deadline, timed_out: bool) -> SlipwayError:
    """Return the error for the caller: a call cancelled at its time limit raises DeadlineExceeded."""
    return deadline.exceeded() if timed_out and isinstance(call_error, Cancelled) else call_error
