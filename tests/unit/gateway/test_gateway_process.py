"""What a process of the gateway sets on its connections."""

from __future__ import annotations

import asyncio
import socket

from slipway_gateway.process import listen


async def test_answers_are_sent_at_once_when_a_caller_connects() -> None:
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = writer.get_extra_info("socket")
        accepted.set_result(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listen("127.0.0.1", 0) as listening:
        async with await asyncio.start_server(meet, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            assert await accepted
            writer.close()
