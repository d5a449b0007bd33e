"""Routes of trained models in a gateway, for callers whose key may administer it."""

from __future__ import annotations

from fastapi import APIRouter, Request

from slipway_export.commands.sources import trained_family
from slipway_export.families import family_named
from slipway_export.trained_models import Library
from slipway_gateway.errors import ApiError
from slipway_gateway.routes.authentication import Authenticate
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.trained_models.management import Management
from slipway_gateway.trained_models.routes import router
from slipway_gateway.trained_models.training_routes import training_router
from slipway_gateway.trained_models.trainings import TrainingSettings
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.triton.control import ModelControl, read_token


def admin_router(settings: GatewaySettings, authenticate: Authenticate) -> APIRouter:
    """Return the routes of trained models.

    Args:
        settings: Settings of the gateway, with a folder of models and a repository.
        authenticate: Function that finds the key of a caller.

    Raises:
        InvalidRequest: A setting of these routes is missing or cannot be used.
    """
    if settings.models is None or settings.repository is None:
        raise InvalidRequest(
            "gateway: models and repository must both be given, got one; try --models trained"
        )
    token = read_token(settings.control_token_file) if settings.control_token_file else None
    management = Management(
        family=trained_family(family_named(settings.trained_family)),
        library=Library(settings.models),
        repository=settings.repository,
        triton=ModelControl(settings.control, token) if settings.control else None,
    )

    async def authorize(request: Request) -> None:
        key = await authenticate(request)
        if not key.is_admin:
            raise ApiError(
                "gateway: the key must be one that administers models, got another one; ask the operator for"
                " `slipway gateway keys create NAME --admin`",
                status=403,
                code="admin_required",
                final=True,
            )

    routes = APIRouter()
    routes.include_router(router(management, authorize))
    if settings.backbone is not None:
        training = TrainingSettings(
            settings.backbone,
            settings.models,
            settings.repository,
            settings.control,
            settings.control_token_file,
        )
        routes.include_router(training_router(training, authorize))
    return routes
