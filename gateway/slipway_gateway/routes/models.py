"""Route of the models: what is served, and the fields that each model takes."""

# FastAPI evaluates the annotations of the routes, which name local dependencies.

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from slipway_client import CorrectionStreamRequest, ListenRequest
from slipway_gateway.access.keys import Key
from slipway_gateway.errors import not_found
from slipway_gateway.fields.description import model_description
from slipway_gateway.realtime.description import world_description
from slipway_gateway.realtime.world_kinds import world_kinds
from slipway_gateway.routes.openapi import errors
from slipway_gateway.routes.own_jobs import OwnJobs
from slipway_gateway.services import Services


class ModelAnswer(BaseModel):
    """A model that a caller may name."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Always 0: a model repository does not record it.")
    owned_by: str = "slipway"
    ready: bool = Field(description="True if a server is ready to work with the model now.")
    replicas: int = Field(description="Number of servers that are ready with the model.")
    routes: list[str] = Field(description="Routes that call the model.")
    video: dict[str, Any] | None = Field(description="Fields of a model for videos; null for other models.")
    world: dict[str, Any] | None = Field(
        description="Formats, fields and controls of a world; null for other models."
    )


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelAnswer]


def _routes(name: str, services: Services) -> list[str]:
    """Return the routes that call a model."""
    callers = {
        "/v1/videos": name in services.kinds,
        "/v1/realtime/video": name in world_kinds(),
        "/v1/listen": name == ListenRequest.model,
        "/v1/imu": name == CorrectionStreamRequest.model,
    }
    return [route for route, calls in callers.items() if calls]


def router(services: Services, own: OwnJobs) -> APIRouter:
    """Return the routes of the models."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    async def models() -> dict[str, ModelAnswer]:
        catalog = await services.catalog.models()
        served = services.replicas.served()
        names = sorted({name for name in catalog if name in services.kinds} | served.keys())
        return {
            name: ModelAnswer(
                id=name,
                created=0,
                ready=name in served and served[name].ready > 0,
                replicas=served[name].ready if name in served else 0,
                video=model_description(services.kinds[name], catalog[name])
                if name in services.kinds and name in catalog
                else None,
                routes=_routes(name, services),
                world=world_description(world_kinds()[name], served[name].parameters)
                if name in world_kinds() and name in served
                else None,
            )
            for name in names
        }

    @routes.get("", responses=errors())
    async def list_models(key: Annotated[Key, Depends(own.key)]) -> ModelList:
        """List the models, those for videos with their fields, usual values and ranges."""
        return ModelList(data=list((await models()).values()))

    @routes.get("/{model}", responses=errors(404))
    async def get_model(model: str, key: Annotated[Key, Depends(own.key)]) -> ModelAnswer:
        """Return a model."""
        found = (await models()).get(model)
        if found is None:
            raise not_found("model", model)
        return found

    return routes
