"""Routes of trained models, below ``/v1/models``: status, export and deletion of their graphs.

``GET /trained`` and ``GET /{model}/onnx-status`` report the models, ``POST /{model}/export-onnx`` queues an
export, and ``DELETE /{model}/onnx`` takes a model out of service. Names are checked before they become part
of a path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from slipway_export.repository.publish import check_replaceable, remove
from slipway_export.spec import Precision
from slipway_export.trained_models import Status, UnknownModel, served_model
from slipway_gateway.errors import ApiError
from slipway_gateway.routes.openapi import errors
from slipway_gateway.trained_models.exports import Busy, Exports, State
from slipway_gateway.trained_models.management import Management
from slipway_serving.protocol.errors import InvalidRequest, NotReady

PREFIX = "/v1/models"
MAX_BODY_BYTES = 1 << 16
"""Largest body of these routes, in bytes."""


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


class _Route(APIRoute):
    """Route that answers an unknown model with 404, and one that is in work with 409."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except UnknownModel as error:
                raise ApiError(
                    str(error), status=404, code="model_not_found", param="model", final=True
                ) from None
            except Busy as error:
                raise ApiError(str(error), status=409, code="model_busy", param="model") from None

        return answer


def router(management: Management, authorize: Callable[..., Any]) -> APIRouter:
    """Return the routes of trained models.

    Args:
        management: Configuration.
        authorize: Dependency of FastAPI that refuses callers who may not administer models.

    Returns:
        Routes with a lifespan that ends the running export with the application.
    """
    exports = Exports(management.export_limit_s)
    library = management.library

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            exports.close()

    routes = APIRouter(
        prefix=PREFIX,
        tags=["trained models"],
        dependencies=[Depends(authorize)],
        responses=errors(400, 413),
        route_class=_Route,
        lifespan=lifespan,
    )

    @routes.get("/trained")
    def models() -> list[ModelStatus]:
        """List the trained models."""
        served = _served_models(management)
        return [_model_status(library.status(model), management, exports, served) for model in library.ids()]

    @routes.get("/{model}/onnx-status", responses=errors(404))
    def onnx_status(model: str) -> ModelStatus:
        """Report the status of a model and of its last export."""
        return _model_status(library.status(model), management, exports, _served_models(management))

    @routes.post("/{model}/export-onnx", status_code=202, responses=errors(404, 409, 429))
    def export_onnx(model: str, options: ExportRequest | None = None) -> ModelStatus:
        """Queue the export of a model; Triton then loads it without a restart."""
        status = library.status(model)
        request = options or ExportRequest()
        if request.variant is not None and request.variant not in management.family.variants:
            known = ", ".join(management.family.variants)
            rule = f"one of {known}" if known else "left out"
            raise InvalidRequest(f"models: variant must be {rule}, got {request.variant!r}")
        exports.submit(management.job(model, request.precision, request.variant))
        return _model_status(status, management, exports, _served_models(management))

    @routes.delete("/{model}/onnx", responses=errors(404, 409))
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

    return routes


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
