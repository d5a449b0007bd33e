"""Cancellation of a task at the moment at which the answer to its call arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_client.grpc.async_transport import AsyncGrpcTransport
from slipway_client.retry import Deadline


class Stub:
    """Server whose answer a test gives.

    Args:
        answer: Future that is the call.
    """

    def __init__(self, answer: asyncio.Future[Any]) -> None:
        self._answer = answer

    def ModelInfer(self, *_: Any, **__: Any) -> asyncio.Future[Any]:  # noqa: N802 - the name of gRPC
        return self._answer


@pytest.mark.parametrize("ticks", range(6))
async def test_cancellation_is_not_lost_when_the_answer_has_just_arrived(
    monkeypatch: pytest.MonkeyPatch, ticks: int
) -> None:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @contextlib.asynccontextmanager
    async def stub(_: AsyncGrpcTransport) -> AsyncIterator[Stub]:
        yield Stub(answer)

    monkeypatch.setattr(AsyncGrpcTransport, "_stub", stub)
    monkeypatch.setattr(AsyncGrpcTransport, "_tensors", lambda _, message, model: message)
    transport = AsyncGrpcTransport("127.0.0.1:1", 1.0)
    waits_on = asyncio.Event()

    async def call_and_wait() -> None:
        await transport.infer("model", {}, Deadline(60.0, "model"))
        await waits_on.wait()

    task = asyncio.create_task(call_and_wait())
    for _ in range(10):
        await asyncio.sleep(0)
    answer.set_result({})
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=1)
    waits_on.set()
    assert not pending and task.cancelled()
