"""Application of `slipway manage`: the routes of trained models alone, protected by one token."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from slipway_gateway import app
from slipway_gateway.errors import ApiError
from slipway_gateway.guard import GuardSettings
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.routes import docs
from slipway_gateway.trained_models import routes
from slipway_gateway.trained_models.management import Management
from slipway_serving.protocol import distribution
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.proxies import is_loopback

_BEARER = HTTPBearer(auto_error=False, description="Token of --token-file.")


def create_app(management: Management, token: str | None = None, host: str = "127.0.0.1") -> FastAPI:
    """Create the application.

    Args:
        management: Configuration of the routes.
        token: Bearer token that callers must present; None is allowed on a loopback address only.
        host: Address that the application listens on.

    Raises:
        InvalidRequest: Other machines can reach the application, and there is no token.
    """
    if token is None and not is_loopback(host):
        raise InvalidRequest(
            f"manage: token must be given when other machines can reach the API, got none for host {host};"
            " try --token-file"
        )
    health = APIRouter()

    @health.get("/health")
    def report() -> dict[str, str]:
        """Report that the API is running."""
        return {"status": "ok"}

    guard = GuardSettings(keys_required=token is not None, body_bytes=routes.MAX_BODY_BYTES)
    routers = (health, docs.router(), routes.router(management, _authorization(token)))
    return app.create_app(routers, guard, GatewayMetrics(), version(distribution.NAME))


def _authorization(token: str | None) -> Callable[..., None]:
    """Return the dependency that checks a caller's token."""

    def check(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if token is None:
            return
        presented = credentials.credentials if credentials is not None else ""
        if not hmac.compare_digest(presented.encode(), token.encode()):
            raise ApiError(
                "manage: missing or wrong bearer token", status=401, code="invalid_token", final=True
            )

    return check
