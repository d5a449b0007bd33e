"""Route of the fleet: servers, models, queue, sessions and failures, for a key that administers.

Servers and models come from the last poll of this process, jobs and their failures from the database. A world
or a microphone that failed is known to its process alone.
"""

# FastAPI evaluates the annotations of the routes, which name local dependencies.

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from slipway_gateway.access.keys import Key
from slipway_gateway.errors import ApiError
from slipway_gateway.jobs.job import Count, Failure, Status, is_job_id
from slipway_gateway.replicas.hardware import Hardware
from slipway_gateway.replicas.replica import Replica, ReplicaState
from slipway_gateway.routes.openapi import errors
from slipway_gateway.routes.own_jobs import OwnJobs
from slipway_gateway.services import Services
from slipway_serving.protocol.export_facts import ExportFacts

FAILURES_S = 3600.0
"""Time for which the fleet shows failures, in seconds."""
_MOST_FAILURES = 200
_State = Literal["ready", "draining", "unreachable"]


class GpuAnswer(BaseModel):
    """Load of one GPU of a server."""

    id: str
    share: float | None = Field(description="Share of the time in which it worked, 0 to 1.")
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_w: float | None


class ServerAnswer(BaseModel):
    """A server, and the load of its machine; null where the server does not report it."""

    url: str
    state: _State
    reason: str = Field(description="Sentence that says why it is not ready; empty if it is.")
    models: int = Field(description="Number of models that are ready.")
    processor_share: float | None = Field(description="Share of all processors that work, 0 to 1.")
    memory_used_bytes: int | None
    memory_bytes: int | None
    gpus: list[GpuAnswer]


class ParityAnswer(BaseModel):
    """Worst differences between a model's graphs and the checkpoint's own network in float32."""

    points: int = Field(description="Number of verified points of all graphs and outputs.")
    left_out: int = Field(description="Number of points that were not verified.")
    max_abs: float
    relative_l2: float
    cosine: float
    of_bound: float = Field(description="Largest difference as a share of its allowed bound.")


class QueueAnswer(BaseModel):
    """Jobs of a model, of all keys."""

    waiting: int
    running: int
    paused: int
    oldest_s: float | None = Field(description="Time since the creation of the oldest waiting job.")


class SessionsAnswer(BaseModel):
    """Sessions of a model that keeps a state for each caller."""

    open: int
    limit: int | None = Field(description="Number of sessions that its ready servers take at a time.")
    waiting: int = Field(description="Number of sockets of this gateway that wait for a session.")


class FleetModel(BaseModel):
    """A model with its state and its work."""

    id: str
    state: _State = Field(description="Best state of the servers that have it.")
    ready: int = Field(description="Number of servers that are ready with it.")
    servers: int = Field(description="Number of servers that have it.")
    engine: str | None = Field(description="Engine of its graphs; null for a model without graphs.")
    precision: str | None
    parity: ParityAnswer | None
    requests_running: int | None = Field(description="Requests in it by the servers' metrics.")
    queue: QueueAnswer | None = Field(description="Null for a model that no job names.")
    sessions: SessionsAnswer | None = Field(description="Null for a model without sessions.")
    failures: int = Field(description="Number of its jobs and sessions that failed in the last hour.")


class FailureAnswer(BaseModel):
    """A job, a world or a microphone that failed."""

    video_id: str | None = Field(description="Null for a world or a microphone.")
    session_id: str | None = Field(description="Name of a world or a microphone in the log; null for a job.")
    model: str
    at: int = Field(description="Unix time of the failure, in seconds.")
    code: str
    message: str


class FleetAnswer(BaseModel):
    """Everything that an operator looks at first."""

    object: Literal["fleet"] = "fleet"
    servers: list[ServerAnswer]
    models: list[FleetModel]
    failures: list[FailureAnswer] = Field(description="Failures of the last hour, the newest first.")


def router(services: Services, own: OwnJobs) -> APIRouter:
    """Return the route of the fleet.

    Args:
        services: Services of the process.
        own: Access of callers to their keys.
    """
    routes = APIRouter(prefix="/v1/fleet", tags=["fleet"])

    @routes.get("", responses=errors())
    async def get_fleet(key: Annotated[Key, Depends(own.key)]) -> FleetAnswer:
        """Return servers, models, queue, sessions and the failures of the last hour, of all keys.

        It needs a key that administers the gateway.
        """
        if not key.is_admin:
            raise ApiError(
                "gateway: the key must be one that administers it, got another one; ask the operator for"
                " `slipway gateway keys create NAME --admin`",
                status=403,
                code="admin_required",
                final=True,
            )
        now_s = time.time()
        counts = await services.store.counts()
        jobs = await services.store.failures(now_s - FAILURES_S, _MOST_FAILURES)
        sessions = services.session_failures.since(now_s - FAILURES_S)
        failures = sorted([*jobs, *sessions], key=lambda failure: failure.at, reverse=True)[:_MOST_FAILURES]
        known = await services.catalog.models()
        return FleetAnswer(
            servers=[_server(replica) for replica in services.replicas.all],
            models=_models(services, known, counts, failures, now_s),
            failures=[
                FailureAnswer(
                    video_id=each.id if is_job_id(each.id) else None,
                    session_id=None if is_job_id(each.id) else each.id,
                    model=each.model,
                    at=int(each.at),
                    code=each.code,
                    message=each.message,
                )
                for each in failures
            ],
        )

    return routes


def _server(replica: Replica) -> ServerAnswer:
    hardware = replica.metrics.hardware if replica.metrics is not None else Hardware()
    reachable = replica.state is not ReplicaState.UNREACHABLE
    return ServerAnswer(
        url=replica.url,
        state=replica.state.value,
        reason=replica.reason,
        models=len(replica.models) if reachable else 0,
        processor_share=hardware.processor_share,
        memory_used_bytes=hardware.memory_used_bytes,
        memory_bytes=hardware.memory_bytes,
        gpus=[GpuAnswer(**vars(gpu)) for gpu in hardware.gpus],
    )


def _models(
    services: Services,
    known: Iterable[str],
    counts: Sequence[Count],
    failures: Sequence[Failure],
    now_s: float,
) -> list[FleetModel]:
    """Return all models that a server has, or that jobs and the catalog name."""
    replicas = services.replicas
    reachable = [each for each in replicas.all if each.state is not ReplicaState.UNREACHABLE]
    served, waiting = replicas.served(), replicas.waiting()
    with_jobs = {count.model for count in counts if not count.status.is_final}
    found = []
    for name in sorted({*served, *known, *with_jobs, *(each.model for each in failures)}):
        having = [replica for replica in reachable if name in replica.models]
        parameters = served[name].parameters if name in served else {}
        facts = ExportFacts.read(parameters)
        is_ready = any(replica.is_ready for replica in having)
        state: _State = "ready" if is_ready else "draining" if having else "unreachable"
        found.append(
            FleetModel(
                id=name,
                state=state,
                ready=sum(replica.is_ready for replica in having),
                servers=len(having),
                engine=facts.engine,
                precision=facts.precision,
                parity=None if facts.parity is None else ParityAnswer(**vars(facts.parity)),
                requests_running=_sum(
                    each.metrics.requests_running.get(name) for each in having if each.metrics is not None
                ),
                queue=_queue(name, counts, now_s) if name in services.kinds or name in with_jobs else None,
                sessions=_sessions(name, having, waiting),
                failures=sum(each.model == name for each in failures),
            )
        )
    return found


def _queue(model: str, counts: Sequence[Count], now_s: float) -> QueueAnswer:
    own = {count.status: count for count in counts if count.model == model}
    waiting = own.get(Status.QUEUED)
    return QueueAnswer(
        waiting=0 if waiting is None else waiting.number,
        running=own[Status.IN_PROGRESS].number if Status.IN_PROGRESS in own else 0,
        paused=own[Status.PAUSED].number if Status.PAUSED in own else 0,
        oldest_s=None if waiting is None else round(max(0.0, now_s - waiting.oldest), 1),
    )


def _sessions(model: str, having: Sequence[Replica], waiting: Mapping[str, int]) -> SessionsAnswer | None:
    """Return the sessions of a model, by the servers' metrics; None for a model without sessions."""
    pages = [each.metrics for each in having if each.metrics is not None and each.is_ready]
    limit = _sum(page.sessions_limit.get(model) for page in pages)
    opened = _sum(each.metrics.sessions_open.get(model) for each in having if each.metrics is not None)
    if limit is None and opened is None and model not in waiting:
        return None
    return SessionsAnswer(open=opened or 0, limit=limit, waiting=waiting.get(model, 0))


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the numbers that are known; None if none is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
