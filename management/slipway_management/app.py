"""Management API: HTTP routes over a models folder, a queue of exports and a running Triton.

``GET /api/models`` and ``…/onnx-status`` report the models, ``POST …/export-onnx`` queues an export, and
``DELETE …/onnx`` takes a model out of service. Names are checked before they become part of a path. Errors
are JSON with the code and the sentence that the command line would print.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from slipway_export.repository.publish import check_replaceable, remove
from slipway_export.spec import Family, Precision
from slipway_export.trained_models import Library, Status, UnknownModel, served_model
from slipway_management.exports import Busy, Exports, State
from slipway_management.worker import Job
from slipway_serving.protocol.errors import InvalidRequest, NotReady, Overloaded, SlipwayError
from slipway_serving.protocol.proxies import is_loopback
from slipway_serving.triton.control import ModelControl

MAX_BODY_BYTES = 1 << 16
_STATUS_CODES: tuple[tuple[type[SlipwayError], int], ...] = (
    (UnknownModel, 404),
    (InvalidRequest, 400),
    (Busy, 409),
    (Overloaded, 429),
    (NotReady, 503),
)
_BEARER = HTTPBearer(auto_error=False, description="Token of --token-file.")


@dataclass(frozen=True)
class Management:
    """Configuration of the management API.

    Args:
        family: Model family of the trained models.
        library: Library over the models folder.
        repository: Triton model repository that receives the exports.
        triton: Control client for the server of that repository; None if no server is to load the exports.
        token: Bearer token that callers must present; None is allowed on a loopback address only.
        host: Address that the API binds to.
        export_limit_s: Longest time for one export, in seconds.
    """

    family: Family
    library: Library
    repository: Path
    triton: ModelControl | None = None
    token: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    export_limit_s: float = 1800.0

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise InvalidRequest(
                "manage: token must be given when other machines can reach the API, got none for host"
                f" {self.host}; try --token-file"
            )
        # The paths must not depend on the working directory of the process that uses them.
        object.__setattr__(self, "library", replace(self.library, folder=self.library.folder.resolve()))
        object.__setattr__(self, "repository", self.repository.resolve())

    def job(self, model: str, options: ExportRequest) -> Job:
        """Return the job for an export request."""
        return Job(
            family=self.family.name,
            model=model,
            models=str(self.library.folder),
            repository=str(self.repository),
            precision=options.precision.value,
            variant=options.variant,
            triton=self.triton.url if self.triton else None,
            control_token=self.triton.token if self.triton else None,
        )


class ExportRequest(BaseModel):
    """Options of an export."""

    model_config = ConfigDict(extra="forbid")

    precision: Precision = Field(default=Precision.FP32, description="Precision of weights and arithmetic.")
    variant: str | None = Field(
        default=None, description="Variant of the family, e.g. fused; null for the default."
    )


class ModelStatus(BaseModel):
    """Status of a trained model, its exported graph and its last export."""

    id: str
    kind: Literal["custom", "default"]
    wake_word: str | None = Field(description="Wake word as people say it.")
    threshold: float | None = Field(description="Smallest probability at which the word is detected.")
    has_pt: bool
    has_onnx: bool
    onnx_size_bytes: int | None
    onnx_is_current: bool = Field(description="True if the graph was exported from the current weights.")
    onnx_precision: str | None
    onnx_variant: str | None
    onnx_error: str | None = Field(description="Reason why the last export failed.")
    export: State = Field(description="State of the last export since the API started.")
    served: bool | None = Field(
        description="True if Triton serves the model; null if Triton does not answer."
    )


class Problem(BaseModel):
    """An error, as its code and one sentence."""

    code: str
    message: str


def create_app(management: Management) -> FastAPI:
    """Create the FastAPI application of the management API.

    Args:
        management: Configuration of the API.
    """
    exports = Exports(management.export_limit_s)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            exports.close()

    app = FastAPI(
        title="Slipway management",
        summary="Trained models: their graphs exported, verified and brought into a running Triton.",
        lifespan=lifespan,
    )
    app.middleware("http")(_guard(management))
    app.add_exception_handler(SlipwayError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)

    @app.get("/health")
    def health() -> dict[str, str]:
        """Report that the API is running."""
        return {"status": "ok"}

    app.include_router(_routes(management, exports))
    return app


def _routes(management: Management, exports: Exports) -> APIRouter:
    """Build the routes below /api/models."""
    errors: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem} for code in (400, 401, 403, 404, 409, 413, 429, 503)
    }
    router = APIRouter(
        prefix="/api/models", dependencies=[Depends(_authorization(management.token))], responses=errors
    )
    library = management.library

    @router.get("")
    def models() -> list[ModelStatus]:
        """List the trained models."""
        served = _served_models(management)
        return [_model_status(library.status(model), management, exports, served) for model in library.ids()]

    @router.get("/{model}/onnx-status")
    def onnx_status(model: str) -> ModelStatus:
        """Report the status of a model and of its last export."""
        return _model_status(library.status(model), management, exports, _served_models(management))

    @router.post("/{model}/export-onnx", status_code=202)
    def export_onnx(model: str, options: ExportRequest | None = None) -> ModelStatus:
        """Queue the export of a model; Triton then loads it without a restart."""
        status = library.status(model)
        request = options or ExportRequest()
        if request.variant is not None and request.variant not in management.family.variants:
            known = ", ".join(management.family.variants)
            rule = f"one of {known}" if known else "left out"
            raise InvalidRequest(f"models: variant must be {rule}, got {request.variant!r}")
        exports.submit(management.job(model, request))
        return _model_status(status, management, exports, _served_models(management))

    @router.delete("/{model}/onnx")
    def delete_onnx(model: str) -> ModelStatus:
        """Delete a model's exported graph and unload it from Triton; the weights stay."""
        status = library.status(model)
        with exports.reserve(model):
            if not status.has_onnx:
                raise UnknownModel(f"models: {model} has no exported graph to delete; export it first")
            for variant in (None, *management.family.variants):
                _unload_and_remove(management, served_model(management.family, model, variant))
            library.delete_graph(model)
        return _model_status(library.status(model), management, exports, _served_models(management))

    return router


def _model_status(
    status: Status, management: Management, exports: Exports, served: frozenset[str] | None
) -> ModelStatus:
    name = served_model(management.family, status.id, status.onnx_variant)
    return ModelStatus(
        **asdict(status),
        export=exports.state(status.id),
        served=None if served is None else name in served,
    )


def _served_models(management: Management) -> frozenset[str] | None:
    """Return the models that Triton serves, or None if it does not answer."""
    if management.triton is None:
        return None
    try:
        return management.triton.ready_models()
    except NotReady:
        return None


def _unload_and_remove(management: Management, model: str) -> None:
    """Unload a model and remove it from the repository; do nothing if it is not there.

    Raises:
        InvalidRequest: No export wrote the model, or it was changed since; it stays in service.
        NotReady: Triton refuses to unload the model, so the model stays.
    """
    if not (management.repository / model).exists():
        return
    check_replaceable(management.repository, [model])
    if management.triton is not None:
        management.triton.unload(model)
    remove(management.repository, model)


def _authorization(token: str | None) -> Callable[..., None]:
    """Return the dependency that checks a caller's token."""

    def check(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if token is None:
            return
        presented = credentials.credentials if credentials is not None else ""
        if not hmac.compare_digest(presented.encode(), token.encode()):
            raise Unauthorized("manage: missing or wrong bearer token")

    return check


class Unauthorized(InvalidRequest):
    """Error: the caller did not present the correct token."""


class Forbidden(InvalidRequest):
    """Error: a page of another site sent the request through a user's browser."""


class TooLarge(InvalidRequest):
    """Error: the request's body exceeds the size limit."""


def _guard(
    management: Management,
) -> Callable[[Request, Callable[[Request], Awaitable[Any]]], Awaitable[Any]]:
    """Return the middleware that checks each request before its route runs.

    Without a token, only the loopback address keeps others out. A web page could get around that through a
    browser on this machine, with a DNS name of its own that resolves to this machine or with a cross-site
    request. The middleware therefore checks the Host and Origin headers.
    """

    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
        length = request.headers.get("content-length", "0")
        chunked = "transfer-encoding" in request.headers
        if chunked or not length.isdigit() or int(length) > MAX_BODY_BYTES:
            got = "one of unknown length" if chunked else f"{length} bytes"
            return await _answer_error(
                request, TooLarge(f"manage: the body must be at most {MAX_BODY_BYTES} bytes, got {got}")
            )
        if management.token is None:
            host = request.headers.get("host", "")
            own = (None, f"http://{host}")
            if not _is_this_machine(host) or request.headers.get("origin") not in own:
                return await _answer_error(
                    request,
                    Forbidden(
                        "manage: without a token, only programs on this machine may use the API, got host"
                        f" {host!r}, origin {request.headers.get('origin')!r}; try --token-file"
                    ),
                )
        return await call_next(request)

    return guard


def _is_this_machine(host: str) -> bool:
    """Return whether a Host header, with or without a port, names this machine."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name.strip("[]"))


async def _answer_error(_: Request, error: Exception) -> JSONResponse:
    """Answer with the error's own message."""
    if not isinstance(error, SlipwayError):
        raise error
    own = ((Unauthorized, 401), (Forbidden, 403), (TooLarge, 413))
    status = next((code for kind, code in (*own, *_STATUS_CODES) if isinstance(error, kind)), 500)
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else None
    content = Problem(code=error.code, message=str(error)).model_dump()
    return JSONResponse(content, status_code=status, headers=headers)


async def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    """Answer with every invalid field of the body."""
    if not isinstance(error, RequestValidationError):
        raise error
    fields = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
    return await _answer_error(request, InvalidRequest("manage: " + " | ".join(fields)))


async def _answer_http(_: Request, error: Exception) -> JSONResponse:
    """Answer a refusal by the framework (no such route, an unreadable body) in the same form."""
    if not isinstance(error, HTTPException):
        raise error
    content = Problem(code=InvalidRequest.code, message=f"manage: {error.detail}").model_dump()
    return JSONResponse(content, status_code=error.status_code, headers=error.headers)
