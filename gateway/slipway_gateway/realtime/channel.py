"""One WebSocket: its messages are JSON objects with a `type`, and bytes; every message has a size limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from slipway_gateway.errors import ApiError, answer_to
from slipway_gateway.realtime.limits import CONTROL_BYTES, PIECE_BYTES, STALL_S, CloseCode
from slipway_serving.protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SessionLost,
    SlipwayError,
)
from slipway_serving.protocol.texts import short

Message = dict[str, Any]
SUBPROTOCOL = "realtime"
"""Subprotocol that browsers may offer beside one that carries their key."""


class Disconnected(Exception):
    """The peer is gone, or does not read."""


class Refused(SlipwayError):
    """A message breaks a rule of the socket, which is closed with a code of its own.

    Args:
        message: Sentence for people.
        close_code: Code with which the socket closes.
    """

    def __init__(self, message: str, close_code: CloseCode) -> None:
        super().__init__(message)
        self.close_code = close_code


class CallerSilent(DeadlineExceeded):
    """The caller sent nothing for too long."""


class Channel:
    """Messages of one socket.

    Args:
        websocket: Socket that is not accepted yet.
        where: Name of the socket, for messages.
    """

    def __init__(self, websocket: WebSocket, where: str) -> None:
        self._websocket, self.where = websocket, where
        self._sending = asyncio.Lock()

    async def accept(self) -> None:
        """Accept the connection."""
        offered = self._websocket.scope.get("subprotocols", [])
        await self._websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)

    async def deny(self, error: SlipwayError) -> None:
        """Refuse the connection with the status and the JSON document of an error."""
        answer = answer_to(error)
        response = JSONResponse(answer.content, answer.status, answer.headers)
        await self._websocket.send_denial_response(response)

    async def receive(
        self,
        *,
        json_bytes: int = CONTROL_BYTES,
        binary_bytes: int = PIECE_BYTES,
        timeout_s: float | None = None,
    ) -> Message | bytes:
        """Return the next message: a JSON object that has a `type`, or bytes.

        Args:
            json_bytes: Largest size of a JSON message, in bytes.
            binary_bytes: Largest size of a binary message, in bytes.
            timeout_s: Longest wait in seconds; None waits without a limit.

        Raises:
            Disconnected: The peer is gone.
            Refused: The message is too large, or is no JSON object.
            TimeoutError: No message came in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                event = await self._websocket.receive()
        except (WebSocketDisconnect, RuntimeError):
            raise Disconnected from None
        if event["type"] == "websocket.disconnect":
            raise Disconnected
        if (data := event.get("bytes")) is not None:
            self._check_size(len(data), binary_bytes)
            return bytes(data)
        text = event["text"]
        self._check_size(len(text.encode()), json_bytes)
        return self._parsed(text)

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            raise Refused(
                f"{self.where}: message must have at most {limit} bytes, got {size}", CloseCode.TOO_LARGE
            )

    def _parsed(self, text: str) -> Message:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            raise Refused(
                f"{self.where}: message must be JSON, got {short(text)}", CloseCode.NOT_JSON
            ) from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise Refused(
                f"{self.where}: message must be a JSON object with a type, got {short(text)}",
                CloseCode.NOT_JSON,
            )
        return message

    async def send(self, message: Mapping[str, Any], data: bytes | None = None) -> None:
        """Send a JSON message, and the binary message that follows it.

        Raises:
            Disconnected: The peer is gone, or has read nothing for :data:`STALL_S`.
        """
        try:
            async with self._sending, asyncio.timeout(STALL_S):
                await self._websocket.send_text(json.dumps(message, allow_nan=False))
                if data is not None:
                    await self._websocket.send_bytes(data)
        except (WebSocketDisconnect, RuntimeError, OSError):  # a TimeoutError is an OSError
            raise Disconnected from None

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """Close the socket; do nothing if it is closed."""
        if self._websocket.application_state is WebSocketState.DISCONNECTED:
            return
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            async with asyncio.timeout(STALL_S):
                # A reason has at most 123 bytes (RFC 6455, 5.5).
                await self._websocket.close(code, reason.encode()[:120].decode(errors="ignore"))

    async def fail(self, error: SlipwayError) -> None:
        """Send an error and close the socket with the code of the error."""
        with contextlib.suppress(Disconnected):
            await self.send(error_message(error))
        await self.close(close_code_of(error), error_code_of(error))


def error_message(error: SlipwayError, event_id: Any = None) -> Message:
    """Return the `error` message for an error.

    Args:
        error: Error.
        event_id: Id of the interaction that the error is about.
    """
    is_retryable = isinstance(error, NotReady | Overloaded | SessionLost)
    message = {
        "type": "error",
        "message": str(error),
        "code": error_code_of(error),
        "retryable": is_retryable,
    }
    return message | ({"event_id": event_id} if event_id is not None else {})


def error_code_of(error: SlipwayError) -> str:
    """Return the name of an error for programs."""
    if isinstance(error, SessionLost):
        return "session_lost"
    if isinstance(error, Refused):
        return "message_refused"
    code = answer_to(error).content["error"]["code"]
    return str(code)


def close_code_of(error: SlipwayError) -> CloseCode:
    """Return the code with which a socket closes after an error."""
    if isinstance(error, Refused):
        return error.close_code
    if isinstance(error, InvalidRequest | DeadlineExceeded):
        return CloseCode.RULE_BROKEN
    if isinstance(error, Overloaded):
        return CloseCode.TRY_AGAIN
    if isinstance(error, NotReady | SessionLost):
        return CloseCode.REPLICA_GONE
    if isinstance(error, ApiError):
        return CloseCode.FAILED if error.status >= 500 else CloseCode.RULE_BROKEN
    return CloseCode.FAILED
