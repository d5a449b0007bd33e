"""Routes that train a word on recordings, below ``/v1/models/trained``."""

# FastAPI evaluates the annotations of the routes.

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.datastructures import FormData, UploadFile

from slipway_gateway.errors import ApiError, not_found
from slipway_gateway.routes.openapi import errors
from slipway_gateway.trained_models.exports import Busy
from slipway_gateway.trained_models.trainings import (
    NEGATIVE,
    POSITIVE,
    Training,
    Trainings,
    TrainingSettings,
    TrainingState,
)
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

FEWEST_RECORDINGS = 8
_SUFFIXES = (".flac", ".mp3", ".ogg", ".wav")
_MOST_FILES = 400
_FILES = {"type": "array", "minItems": FEWEST_RECORDINGS, "items": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [POSITIVE, NEGATIVE],
                    "properties": {
                        POSITIVE: {**_FILES, "description": "Recordings, the word once in each."},
                        NEGATIVE: {**_FILES, "description": "Recordings of anything but the word."},
                    },
                }
            }
        },
    }
}


class TrainingAnswer(BaseModel):
    """State of a word's training."""

    word: str = Field(description="Id of the word.")
    state: TrainingState = Field(description="State of the training.")
    error: str | None = Field(description="Reason why it failed; null if it has not.")


def training_router(settings: TrainingSettings, authorize: Callable[..., Any]) -> APIRouter:
    """Return the routes that train words; the running training ends with the application.

    Args:
        settings: Settings of every training.
        authorize: Dependency of FastAPI that refuses callers who may not administer models.
    """
    trainings = Trainings(settings)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await trainings.close()

    routes = APIRouter(
        prefix="/v1/models/trained",
        tags=["trained models"],
        dependencies=[Depends(authorize)],
        lifespan=lifespan,
    )

    @routes.post("/{word}", status_code=202, responses=errors(400, 409, 413, 415, 429), openapi_extra=_BODY)
    async def train_word(word: str, request: Request) -> TrainingAnswer:
        """Train a word on recordings, export it, and let the server load it."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise ApiError(
                "train: body must be a form (multipart/form-data), got another type",
                status=415,
                code="unsupported_media_type",
                final=True,
            )
        form = await request.form(max_files=_MOST_FILES, max_fields=4)
        try:
            recordings = {kind: await _recordings(form, kind) for kind in (POSITIVE, NEGATIVE)}
        finally:
            await form.close()
        try:
            return _answer(trainings.begin(word, recordings))
        except Busy as error:
            raise ApiError(str(error), status=409, code="model_busy", param="word") from None

    @routes.get("/{word}/training", responses=errors(404))
    async def get_training(word: str) -> TrainingAnswer:
        """Report the last training of a word since the gateway started."""
        found = trainings.find(word)
        if found is None:
            raise not_found("training", short(word))
        return _answer(found)

    return routes


async def _recordings(form: FormData, kind: str) -> Sequence[tuple[str, bytes]]:
    """Return the endings and contents of the files of a kind.

    Raises:
        InvalidRequest: There are too few files, or one has another ending.
    """
    files = [each for each in form.getlist(kind) if isinstance(each, UploadFile)]
    if len(files) < FEWEST_RECORDINGS:
        raise InvalidRequest(
            f"train: {kind} must be {FEWEST_RECORDINGS} recordings or more, got {len(files)}; try recording"
            " more of them"
        )
    found = []
    for file in files:
        suffix = PurePath(file.filename or "").suffix.lower()
        if suffix not in _SUFFIXES:
            raise InvalidRequest(
                f"train: {kind} must be files that end in {', '.join(_SUFFIXES)}, got {short(file.filename)}"
            )
        found.append((suffix, await file.read()))
    return found


def _answer(training: Training) -> TrainingAnswer:
    return TrainingAnswer(word=training.word, state=training.state, error=training.error)
