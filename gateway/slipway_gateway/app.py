"""The application of a gateway: its routes, the form of its errors, and the checks before them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from slipway_gateway.errors import answer_to, envelope
from slipway_gateway.guard import App, Guard, GuardSettings, Message, Receive, Scope, Send
from slipway_gateway.metrics import GatewayMetrics
from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.protocol.texts import short

_CODES = {404: "not_found", 405: "method_not_allowed"}
SUMMARY = "Videos as jobs, worlds, microphones and IMU recordings, made by models on NVIDIA Triton."


def create_app(
    routers: Sequence[APIRouter], guard: GuardSettings, metrics: GatewayMetrics, version: str
) -> FastAPI:
    """Create the application.

    Args:
        routers: Routes in their order.
        guard: Checks of host, origin and body.
        metrics: Metrics of the process.
        version: Version of Slipway.
    """
    app = FastAPI(title="Slipway gateway", summary=SUMMARY, version=version, docs_url=None, redoc_url=None)
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(SlipwayError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_unknown)
    app.add_middleware(_Counting, metrics=metrics)
    app.openapi = partial(_described, app)  # type: ignore[method-assign]  # FastAPI's own way to change it
    app.add_middleware(Guard, settings=guard)
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, without the answer that FastAPI adds and our handler replaces."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        for item in document.get("paths", {}).values():
            for operation in item.values():
                answer = operation["responses"].get("422", {})
                if "HTTPValidationError" in str(answer):
                    del operation["responses"]["422"]
        for name in ("HTTPValidationError", "ValidationError"):
            document.get("components", {}).get("schemas", {}).pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


class _Counting:
    """ASGI middleware that counts the answers of each route.

    Starlette's middleware of functions would start a task and a queue for every request and every stream.

    Args:
        app: Application whose answers are counted.
        metrics: Metrics of the process.
    """

    def __init__(self, app: App, metrics: GatewayMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count its answer when it begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                # Paths without a route come from strangers and would make any number of series.
                path = route.path if isinstance(route, APIRoute) else "none"
                self._metrics.request(path, message["status"])
            await send(message)

        await self._app(scope, receive, counted)


async def _answer_error(_: Request, error: Exception) -> JSONResponse:
    """Answer with the error's own message."""
    assert isinstance(error, SlipwayError)
    answer = answer_to(error)
    return JSONResponse(answer.content, status_code=answer.status, headers=answer.headers)


async def _answer_invalid(_: Request, error: Exception) -> JSONResponse:
    """Answer to a parameter of a path or a query that breaks its rule."""
    assert isinstance(error, RequestValidationError)
    problems, names = [], []
    for problem in error.errors():
        name = str(problem["loc"][-1]) if problem["loc"] else "request"
        names.append(name)
        text = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
        problems.append(f"{name} {_rule(text)}, got {short(problem.get('input'))}")
    message = "gateway: " + " | ".join(problems)
    return JSONResponse(envelope(400, message, "invalid_value", names[0] if names else None), status_code=400)


def _rule(text: str) -> str:
    return text.replace("should be", "must be", 1) if text.startswith("should") else f"must be valid ({text})"


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    """Answer a refusal of the framework, such as an unknown route, in the same form."""
    assert isinstance(error, HTTPException)
    message = f"gateway: {request.method} {request.url.path[:200]}: {error.detail}"
    code = _CODES.get(error.status_code, "invalid_request")
    headers: dict[str, Any] = dict(error.headers or {})
    return JSONResponse(
        envelope(error.status_code, message, code), status_code=error.status_code, headers=headers
    )


async def _answer_unknown(request: Request, error: Exception) -> JSONResponse:
    """Answer to an error that nobody expected; the log has its traceback, the answer does not."""
    message = f"gateway: {request.method} {request.url.path[:200]} failed; see the gateway's log"
    return JSONResponse(envelope(500, message, "internal"), status_code=500)
