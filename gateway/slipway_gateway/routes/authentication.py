"""Authentication of callers: a key as bearer token, or as a subprotocol of a WebSocket.

A browser cannot set headers of a WebSocket, so a page sends its key as a second subprotocol,
``openai-insecure-api-key.KEY``, the form that clients of OpenAI's sockets use.
Without keys, which is possible on a loopback address only, every caller is the owner "local".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection

from slipway_gateway.access.keys import Key, KeyStore
from slipway_gateway.errors import ApiError

PROTOCOL_PREFIX = "openai-insecure-api-key."
Authenticate = Callable[[HTTPConnection], Awaitable[Key]]


def authentication(keys: KeyStore, *, required: bool) -> Authenticate:
    """Return the function that finds the key of a caller.

    Args:
        keys: Keys of the callers.
        required: True if a caller needs a key; otherwise one without a key is the local owner.
    """

    async def authenticate(connection: HTTPConnection) -> Key:
        """Return the key of a caller.

        Raises:
            ApiError: The caller has no key, an unknown one or a revoked one.
        """
        secret = _secret_of(connection)
        if secret is None:
            if required:
                raise ApiError(
                    "gateway: a key must be given in the header Authorization, got none; try"
                    " `Authorization: Bearer KEY`",
                    status=401,
                    code="missing_key",
                    final=True,
                )
            return await keys.local()
        key = await keys.authenticate(secret)
        if key is None and not required:
            # Clients of the video API always send a key, even to a server that has none.
            return await keys.local()
        if key is None:
            raise ApiError(
                "gateway: the key must be one of `slipway gateway keys list` that is not revoked, got"
                " another one",
                status=401,
                code="invalid_key",
                final=True,
            )
        return key

    return authenticate


def _secret_of(connection: HTTPConnection) -> str | None:
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and value.strip():
        return value.strip()
    for protocol in connection.headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(PROTOCOL_PREFIX):
            return protocol.strip().removeprefix(PROTOCOL_PREFIX)
    return None
